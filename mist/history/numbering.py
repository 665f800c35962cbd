"""Numbers of messages in their channels: each counts from 1, and never again.

A channel is a tag that begins with `/`. A message that carries one is the next in it, whatever
becomes of those before; one that carries two has a number in each. Two things are kept for it:

    of a channel    how many there ever were; a row that each append to it writes anew
    of a block      how many there had been of each of its channels, ahead of the block

The second is a number for each channel and block, a few bytes. The messages' own follow by
counting, since a block knows what its runs carry; where retention took some of a channel from
the middle of a block, it is kept beside how many. So a number is found by a look into one block,
and no message is written for another's sake. Messages without a channel cost nothing at all.

Channels are known by a digest of 16 bytes: their rows are alike, and none of them keeps a
name that an erasure was to take.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Final, NamedTuple
from zlib import crc32

import attrs
import msgspec

from mist.history.columns import pack, unpack

__all__ = [
    "BACKLOG_AGE",
    "BACKLOG_SIZE",
    "Added",
    "ChannelPosition",
    "Numbers",
    "Tally",
    "add_up",
    "advanced",
    "bound_of",
    "channel_key",
    "channels_of",
    "has_channels",
    "pack_befores",
    "pack_numbers",
    "raised",
    "unpack_numbers",
]

BACKLOG_SIZE: Final = "bus.backlog_size"
BACKLOG_AGE: Final = "bus.backlog_age"
"""Names in a publication's meta: how much of their channels shall be shown once it is there, in
messages, and for how many seconds after it. Decimal digits."""

_CHECK: Final = 4  # bytes
_MOST_DIGITS: Final = 12


@attrs.frozen
class ChannelPosition:
    """Where a channel stands.

    Attributes:
        last: the number of its last message, which is how many there ever were; 0 before.
        id: that message's id.
        time: when it came, or shortly after, microseconds since 1970.
        floor: messages up to this number were taken from what shall be shown, by `BACKLOG_SIZE`.
        age: for how many seconds after `time` it shall be shown; None where nobody said.
    """

    last: int = 0
    id: int = 0
    time: int = 0
    floor: int = 0
    age: int | None = None


class Added(NamedTuple):
    """What a block adds to a channel. A tuple, since a block may have thousands of them.

    Attributes:
        messages: how many.
        offset: the last one's id, from the block's first.
        floor: see `ChannelPosition`, from the channel's last number before the block; None where
            nothing is said.
        age: of the last message.
    """

    messages: int
    offset: int
    floor: int | None = None
    age: int | None = None


Tally = Mapping[str, Added]
"""What a block adds to its channels, in the order in which its tag lists have them."""

Numbers = Mapping[str, int]
"""A message's channels, and its number in each; of a run, its first message's."""


def advanced(
    last: int, floor: int, added: Added, first: int, time: int
) -> tuple[int, int, int, int, int | None]:
    """The values of a `ChannelPosition` behind a block.

    Args:
        last, floor: see there; before the block.
        first, time: the block's first id, and the time of its last message.
    """
    if added.floor is not None:
        floor = max(floor, last + added.floor)
    return last + added.messages, first + added.offset, time, floor, added.age


def raised(numbers: Numbers, by: int) -> Numbers:
    """The numbers of a message further on in a run."""
    return {channel: number + by for channel, number in numbers.items()} if by else numbers


def has_channels(text: bytes) -> bool:
    """Whether there is a channel among tag lists that stand one after the other, LF between."""
    return text.startswith(b"/") or b",/" in text or b"\n/" in text


def channels_of(canonical: bytes) -> list[str]:
    """The channels of a tag list, in its order."""
    if not (canonical.startswith(b"/") or b",/" in canonical):
        return []
    return [tag.decode() for tag in canonical.split(b",") if tag.startswith(b"/")]


@lru_cache(4096)
def channel_key(name: str) -> str:
    """What a channel is known by: 32 hexadecimal digits."""
    return blake2b(name.encode(), digest_size=16).hexdigest()


def add_up(
    lists: Iterable[bytes],
    run_lists: Sequence[int],
    counts: Sequence[int],
    bounds: Sequence[tuple[int, int | None, int | None]] = (),
) -> Tally:
    """What a block's messages add to its channels, their ids without gaps. O(tag lists), and
    O(runs) in C, where no bounds are given.

    Args:
        bounds: run, size and age of those runs whose publications say how much shall be shown.
    """
    messages: Counter[int] = Counter(run_lists)
    if max(counts) > 1:
        for number, count in zip(run_lists, counts, strict=True):
            messages[number] += count - 1
    # Of several with one tag list the last one is what stays.
    ends = dict(zip(run_lists, accumulate(counts), strict=True))
    total: dict[str, int] = {}
    last: dict[str, int] = {}
    by_list = [channels_of(canonical) for canonical in lists]
    for number, channels in enumerate(by_list):
        for channel in channels:
            total[channel] = total.get(channel, 0) + messages[number]
            last[channel] = max(last.get(channel, 0), ends[number] - 1)
    tally = {channel: Added(messages, last[channel]) for channel, messages in total.items()}
    if bounds:
        _bound(tally, by_list, run_lists, counts, bounds)
    return tally


def _bound(
    tally: dict[str, Added],
    by_list: Sequence[Sequence[str]],
    run_lists: Sequence[int],
    counts: Sequence[int],
    bounds: Sequence[tuple[int, int | None, int | None]],
) -> None:
    said = {run: (size, age) for run, size, age in bounds}
    met: Counter[str] = Counter()
    for run, (number, count) in enumerate(zip(run_lists, counts, strict=True)):
        size, age = said.get(run, (None, None))
        for channel in by_list[number]:
            met[channel] += count
            added = tally[channel]._replace(age=age)
            if size is not None:
                floor = met[channel] - size
                added = added._replace(
                    floor=floor if added.floor is None else max(added.floor, floor)
                )
            tally[channel] = added


def bound_of(meta: Mapping[str, bytes] | None) -> tuple[int | None, int | None]:
    """What a publication says of how much of its channels shall be shown: messages, seconds."""
    if not meta:
        return None, None
    return _number(meta.get(BACKLOG_SIZE)), _number(meta.get(BACKLOG_AGE))


def _number(digits: bytes | None) -> int | None:
    if digits is None or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return int(digits)


# as bytes

_Packed = tuple[int, tuple[str, bytes], int, tuple[str, bytes]]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Packed).decode


def pack_befores(befores: Sequence[int]) -> bytes:
    """The numbers of a block without gaps.

    Args:
        befores: for each of its channels, how many there had been, in a tally's order.
    """
    return _checked(_encode((len(befores), pack(befores), 0, ("0", b""))))


def pack_numbers(
    lists: Iterable[bytes],
    run_lists: Sequence[int],
    counts: Sequence[int],
    numbers: Sequence[Numbers],
) -> bytes:
    """The numbers of a block that is written anew, of which messages may have gone.

    Args:
        numbers: of each run.
    """
    by_list = [channels_of(canonical) for canonical in lists]
    befores = {channel: 0 for channels in by_list for channel in channels}
    following: dict[str, int] = {}
    gaps: list[int] = []
    for number, count, own in zip(run_lists, counts, numbers, strict=True):
        for channel in by_list[number]:
            here = own[channel]
            if channel not in following:
                befores[channel] = following[channel] = here - 1
            gaps.append(here - 1 - following[channel])
            following[channel] = here - 1 + count
    packed = pack(gaps)
    length = len(gaps) if packed[1] else 0
    return _checked(_encode((len(befores), pack(list(befores.values())), length, packed)))


def _checked(packed: bytes) -> bytes:
    return crc32(packed).to_bytes(_CHECK, "little") + packed


def unpack_numbers(
    packed: bytes, lists: Iterable[bytes], run_lists: Sequence[int], counts: Sequence[int]
) -> list[Numbers]:
    """The numbers of each run's first message, of all runs of a block. O(runs).

    Raises:
        ValueError: they aren't what was written.
    """
    if int.from_bytes(packed[:_CHECK], "little") != crc32(packed[_CHECK:]):
        raise ValueError("the numbers of its channels have another checksum")
    try:
        known, (code, raw), length, (gap_code, raw_gaps) = _decode(packed[_CHECK:])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    by_list = [channels_of(canonical) for canonical in lists]
    names = list(dict.fromkeys(channel for channels in by_list for channel in channels))
    if len(names) != known:
        raise ValueError("it has other channels than are numbered")
    following = dict(zip(names, unpack(code, raw, known), strict=True))
    gaps = iter(unpack(gap_code, raw_gaps, length))
    none: Numbers = {}
    found = []
    for number, count in zip(run_lists, counts, strict=True):
        channels = by_list[number]
        if not channels:
            found.append(none)
            continue
        own = {}
        for channel in channels:
            here = following[channel] + (next(gaps, 0) if length else 0)
            own[channel] = here + 1
            following[channel] = here + count
        found.append(own)
    return found
