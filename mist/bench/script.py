"""What one publisher says and every subscriber hears of it, written before the clock runs.

A message's data begins with its publisher's letter and its number, so that a subscriber can
tell which one it has; the rest is padding. All deliveries of a run have one size. Both
streams are one bytes object each: publishing is a slice, and checking what arrived is
`bytes.startswith`, which is memcmp.

A script is played in a cycle, so that its memory is bounded whatever the number of messages.
Numbers are those within the cycle; it is longer than what can be in flight.
"""

import string
from collections.abc import Sequence
from typing import Final

import attrs

from mist.bench.dialect import Dialect

__all__ = [
    "CHUNK",
    "DIGITS",
    "LETTERS",
    "MANY",
    "MAX_SIZE",
    "MIN_SIZE",
    "NEVER_AGAIN",
    "TAG",
    "Script",
    "lists_that_never_come_again",
    "tag_lists",
    "write_script",
]

LETTERS: Final = string.digits + string.ascii_letters  # a publisher each
DIGITS: Final = 9  # of a message's number
MIN_SIZE: Final = 1 + DIGITS  # bytes of data
MAX_SIZE: Final = 60_000  # bytes of data
CHUNK: Final = 1 << 18  # bytes; the longest piece that is sent, read or compared at once
TAG: Final = "bench"  # what every subscriber subscribes to
MANY: Final = 10_000  # tag lists
NEVER_AGAIN: Final = 200_000  # messages, each with a tag list of its own

_MIN_CYCLE: Final = 1_024  # messages
_MAX_BYTES: Final = 64 << 20  # of one stream, unless a minimal cycle needs more
_OVERLAP: Final = 2 * CHUNK  # a chunk, and what was left over from the one before


@attrs.frozen
class Script:
    """One publisher's messages.

    Attributes:
        cycle: messages; message n is the one with number n % cycle.
        publish: what it sends for a cycle, and the beginning of the next.
        publish_size: bytes of one message in it.
        delivery: what every subscriber gets, likewise.
        delivery_size: bytes of one message in it.
        mark: where in a delivery the data begin.
    """

    cycle: int
    publish: bytes = attrs.field(repr=False)
    publish_size: int
    delivery: bytes = attrs.field(repr=False)
    delivery_size: int
    mark: int

    def slice_to_publish(self, sent: int, until: int) -> memoryview:
        """What is to be sent after the first `sent` bytes, up to message `until`.

        At most a chunk. `sent` counts over all cycles.
        """
        start = sent % (self.cycle * self.publish_size)
        size = min(until * self.publish_size - sent, CHUNK)
        return memoryview(self.publish)[start : start + size]


def tag_lists(count: int) -> list[tuple[str, ...]]:
    """`count` tag lists of one length in bytes, all with the tag that subscribers want.

    A single one is that tag alone; others have a second tag. Many have three of their own each, as
    an order, a user and a request have.
    """
    if count == 1:
        return [(TAG,)]
    width = len(str(count - 1))
    own = ("order-", "request-", "user-") if count >= MANY else ("t",)
    return [(TAG, *[f"{name}{n:0{width}d}" for name in own]) for n in range(count)]


def lists_that_never_come_again(messages: int) -> int:
    """How many tag lists so many messages have where each has one of its own: a cycle's."""
    # An eighth more than what is played, so that a number far behind the expected one is
    # told from one far ahead of it.
    return messages * 9 // 8


def write_script(
    publisher: int,
    messages: int,
    size: int,
    lists: Sequence[Sequence[str]],
    publishing: Dialect,
    hearing: Dialect,
) -> Script:
    """The script of publisher number `publisher`, for about `messages` messages in all.

    Takes some 0.5 µs a message and at most 64 MiB a stream.

    Args:
        size: bytes of data in a message, at least `MIN_SIZE`.
        lists: tag lists, taken in turns.
        publishing: how it publishes.
        hearing: how subscribers get it.
    """
    data = LETTERS[publisher] + "0" * DIGITS + "x" * (size - MIN_SIZE)
    publishes = [publishing.publish(tags, data.encode()) for tags in lists]
    deliveries = [hearing.delivery(tags, data.encode()) for tags in lists]
    publish_size, delivery_size = len(publishes[0]), len(deliveries[0])
    cycle = min(
        lists_that_never_come_again(messages), _MAX_BYTES // max(publish_size, delivery_size)
    )
    cycle = -(-max(cycle, _MIN_CYCLE) // len(lists)) * len(lists)
    return Script(
        cycle=cycle,
        publish=_play([_template(each, data) for each in publishes], cycle),
        publish_size=publish_size,
        delivery=_play([_template(each, data) for each in deliveries], cycle),
        delivery_size=delivery_size,
        mark=deliveries[0].index(data.encode()),
    )


def _template(whole: bytes, data: str) -> bytes:
    """A message with a place for its number, for the `%` operator."""
    head, found, tail = whole.replace(b"%", b"%%").partition(data.encode())
    assert found, "a dialect carries data as they are"
    return b"%b%b%%0%dd%b%b" % (head, found[:1], DIGITS, found[MIN_SIZE:], tail)


def _play(templates: Sequence[bytes], cycle: int) -> bytes:
    turns = len(templates)
    whole = b"".join([templates[n % turns] % n for n in range(cycle)])
    while len(whole) < _OVERLAP:
        whole += whole
    return whole + whole[:_OVERLAP]
