"""Channel numbering: the messages of each channel are numbered from 1, without reuse.

A channel is a tag that begins with `/`. A message that carries one gets its next number, even if
earlier messages were removed; one that carries two has a number in each. Two things are stored:

    of a channel    how many messages it ever had; a row that each append to it rewrites
    of a block      for each of its channels, how many messages there were before the block

The second is a few bytes for each channel and block. The messages' own numbers follow by counting,
since a block knows the tags of its runs; where retention removed some from the middle of a
block, their number is stored as a gap. So finding a number reads one block, and numbering never
rewrites messages. Messages without a channel cost nothing.

Channels are stored under a digest of 16 bytes: rows have a fixed size, and none of them keeps a
name that had to be erased.
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
    "ChannelCounts",
    "ChannelPosition",
    "Numbers",
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
"""Names in a publication's meta that bound the backlog of its channels: how many messages are
shown after it, and for how many seconds. Decimal digits."""

_CHECK: Final = 4  # bytes
_MOST_DIGITS: Final = 12


@attrs.frozen
class ChannelPosition:
    """The position of a channel.

    Attributes:
        last: the number of its last message, which is how many it ever had; 0 before the first.
        id: that message's id.
        time: when it arrived, or shortly after, microseconds since 1970.
        floor: messages up to this number are not shown, by `BACKLOG_SIZE`.
        age: for how many seconds after `time` the backlog is shown; None is unbounded.
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
        floor: see `ChannelPosition`, relative to the channel's last number before the block; None
            where it is unchanged.
        age: of the last message.
    """

    messages: int
    offset: int
    floor: int | None = None
    age: int | None = None


ChannelCounts = Mapping[str, Added]
"""What a block adds to its channels, in the order in which its tag lists have them."""

Numbers = Mapping[str, int]
"""A message's channels, and its number in each; of a run, its first message's."""


def advanced(
    last: int, floor: int, added: Added, first: int, time: int
) -> tuple[int, int, int, int, int | None]:
    """The values of a `ChannelPosition` after a block.

    Args:
        last, floor: of the position before the block.
        first, time: the block's first id, and the time of its last message.
    """
    if added.floor is not None:
        floor = max(floor, last + added.floor)
    return last + added.messages, first + added.offset, time, floor, added.age


def raised(numbers: Numbers, by: int) -> Numbers:
    """The numbers of a message `by` further in a run."""
    return {channel: number + by for channel, number in numbers.items()} if by else numbers


def has_channels(text: bytes) -> bool:
    """Whether there is a channel among tag lists that are joined by LF."""
    return text.startswith(b"/") or b",/" in text or b"\n/" in text


def channels_of(canonical: bytes) -> list[str]:
    """The channels of a tag list, in its order."""
    if not (canonical.startswith(b"/") or b",/" in canonical):
        return []
    return [tag.decode() for tag in canonical.split(b",") if tag.startswith(b"/")]


@lru_cache(4096)
def channel_key(name: str) -> str:
    """The key that a channel is stored under: 32 hexadecimal digits."""
    return blake2b(name.encode(), digest_size=16).hexdigest()


def add_up(
    lists: Iterable[bytes],
    run_lists: Sequence[int],
    counts: Sequence[int],
    bounds: Sequence[tuple[int, int | None, int | None]] = (),
) -> ChannelCounts:
    """What a block's messages add to its channels, their ids without gaps. O(tag lists), and
    O(runs) in C, where no bounds are given.

    Args:
        bounds: run, size and age of the runs whose publications bound the backlog.
    """
    messages: Counter[int] = Counter(run_lists)
    if max(counts) > 1:
        for number, count in zip(run_lists, counts, strict=True):
            messages[number] += count - 1
    # Of several runs with one tag list the last one counts.
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
    """The bounds that a publication sets on the backlog of its channels: messages, seconds."""
    if not meta:
        return None, None
    return _number(meta.get(BACKLOG_SIZE)), _number(meta.get(BACKLOG_AGE))


def _number(digits: bytes | None) -> int | None:
    if digits is None or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return int(digits)


# encoding

_Packed = tuple[int, tuple[str, bytes], int, tuple[str, bytes]]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Packed).decode


def pack_befores(befores: Sequence[int]) -> bytes:
    """The numbers of a block without gaps.

    Args:
        befores: for each of its channels, how many messages there were before, in the order of
            `ChannelCounts`.
    """
    return _checked(_encode((len(befores), pack(befores), 0, ("0", b""))))


def pack_numbers(
    lists: Iterable[bytes],
    run_lists: Sequence[int],
    counts: Sequence[int],
    numbers: Sequence[Numbers],
) -> bytes:
    """The numbers of a block that is rewritten, of which messages may have been removed.

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
        raise ValueError("the checksum of its channel numbers differs")
    try:
        known, (code, raw), length, (gap_code, raw_gaps) = _decode(packed[_CHECK:])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    by_list = [channels_of(canonical) for canonical in lists]
    names = list(dict.fromkeys(channel for channels in by_list for channel in channels))
    if len(names) != known:
        raise ValueError("its channels are not those numbered")
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
