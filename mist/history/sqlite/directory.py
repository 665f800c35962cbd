"""The directory: an index from tags to blocks, so that blocks without a match are not read.

Every 64 neighbouring blocks that are no longer joined make a *segment*. For each tag in it there is
one number of 64 bits, bit i set where block i holds the tag:

    blocks of a segment    0: {a, b}    1: {a}    2: {a, c}
    masks                  a: 0b111     b: 0b001     c: 0b100

So blocks that may match {a, b} are mask(a) & mask(b): an inverted index like that of a
block, one level up. A tag is its CRC here too (see `postings`); a collision of two tags
costs reading a block in vain, and no more.

A segment's tags are split by their hash into parts of a row each. A lookup reads one part of
each segment, whatever the number of tags, and SQLite itself skips those where the hash
doesn't occur: finding a rare tag among ten million messages is one statement, with no wait for
the interpreter lock in between.

A segment is never changed. Thinned blocks keep their keys, so it may name a block that no longer
holds the tag, but never leaves out one that does.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from mist.history.columns import INDEXES, MASKS, fixed, unpack_all

__all__ = ["PARTS", "WIDTH", "build", "mask_of", "part_of", "set_bits"]

WIDTH: Final = 64  # blocks in a segment: the bits of a mask
PARTS: Final = 64  # a power of two
_SHIFT: Final = 32 - 6


def part_of(wanted: int) -> int:
    """The part in which a tag's hash is found."""
    return wanted >> _SHIFT


def build(blocks: Sequence[bytes]) -> list[tuple[int, bytes, bytes]]:
    """The parts of a segment that hold anything: number, sorted hashes, and their masks.

    O(tags of all blocks).

    Args:
        blocks: the hashes of each block, as in its row.
    """
    masks: defaultdict[int, int] = defaultdict(int)
    for number, hashes in enumerate(blocks):
        bit = 1 << number
        for each in unpack_all(INDEXES, hashes):
            masks[each] |= bit
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for each in sorted(masks):
        parts[each >> _SHIFT].append(each)
    return [
        (part, fixed(INDEXES, hashes), fixed(MASKS, [masks[each] for each in hashes]))
        for part, hashes in parts.items()
    ]


def mask_of(wanted: int, hashes: bytes, masks: bytes) -> int:
    """The mask of a tag's hash in its part; 0 where it isn't there. O(log tags)."""
    column = unpack_all(INDEXES, hashes)
    place = bisect_left(column, wanted)
    if place == len(column) or column[place] != wanted:
        return 0
    return int.from_bytes(masks[place * 8 : place * 8 + 8], "little")


def set_bits(mask: int) -> Iterable[int]:
    """Numbers of the bits set, ascending."""
    return (number for number in range(mask.bit_length()) if mask >> number & 1)
