"""The directory: an index from tags to blocks, so that blocks without a match are not read.

Every 64 neighbouring blocks that are no longer joined make a *segment*. Its directory is the
hashes of these blocks (see `postings`), cut into 64 parts by their first bits. A part is a row, in
which the blocks follow each other, and it is known where each of them ends:

    blocks of a segment    0: {a, b}    1: {a}     2: {a, c}
    a's part               a            a          a             ends 1, 2, 3
    c's part               b                       c             ends 1, 1, 2

So blocks that may match {a, c} are those of a and those of c: an inverted index like that of a
block, one level up. A tag is its CRC here too; a collision of two tags costs reading a block in
vain, and no more.

A lookup reads one part of each segment, whatever the number of tags, and SQLite itself skips those
where the hash doesn't occur: finding a rare tag among ten million messages is one statement, with
no wait for the interpreter lock in between. To make a part is to slice bytes, since the hashes of a
block are grouped by their parts: nothing is done for each of them.

A segment is never changed. Thinned blocks keep their keys, so it may name a block that no longer
holds the tag, but never leaves out one that does.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

from mist.history.columns import INDEXES, fixed, unpack_all
from mist.history.postings import HASH_BYTES, PARTS, part_of, places

__all__ = ["WIDTH", "build", "hashes_of", "mask_of", "set_bits"]

WIDTH: Final = 64  # blocks in a segment: the bits of a mask

_PARTS: Final = bytes([part_of(byte << 8 * (HASH_BYTES - 1)) for byte in range(256)])


def build(blocks: Sequence[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """The parts of a segment that hold anything: number, hashes, and where each block's end.

    O(bytes) at the speed of memory, and O(log tags) for each block and part, in C.

    Args:
        blocks: the hashes of each block, as in its row.
    """
    cuts = []
    for hashes in blocks:
        # Of each hash the highest byte, which tells its part.
        column = hashes[HASH_BYTES - 1 :: HASH_BYTES].translate(_PARTS)
        cuts.append([bisect_left(column, part) * HASH_BYTES for part in range(PARTS + 1)])
    for part in range(PARTS):
        pieces = [
            hashes[cut[part] : cut[part + 1]] for hashes, cut in zip(blocks, cuts, strict=True)
        ]
        if any(pieces):
            ends = accumulate([len(piece) // HASH_BYTES for piece in pieces])
            yield part, b"".join(pieces), fixed(INDEXES, list(ends))


def mask_of(wanted: int, hashes: bytes, ends: bytes) -> int:
    """The blocks that hold a tag's hash, by its part: a bit for each. O(bytes), in C.

    Raises:
        ValueError: it is no part.
    """
    column = unpack_all(INDEXES, ends)
    return sum([1 << _block_at(column, place) for place in places(hashes, wanted)])


def _block_at(ends: Sequence[int], place: int) -> int:
    number = bisect_right(ends, place)
    if number == len(ends):
        raise ValueError("a part that ends before its hashes")
    return number


def hashes_of(parts: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The hashes of each block of a segment, as in its row.

    Args:
        parts: the hashes and ends of all of its parts, ascending.

    Raises:
        ValueError: they are no parts.
    """
    pieces: list[list[bytes]] = [[] for _ in range(WIDTH)]
    for hashes, ends in parts:
        bounds = [0, *unpack_all(INDEXES, ends)]
        for number, (start, end) in enumerate(pairwise(bounds)):
            pieces[number].append(hashes[start * HASH_BYTES : end * HASH_BYTES])
    return [b"".join(each) for each in pieces]


def set_bits(mask: int) -> Iterator[int]:
    """Numbers of the bits set, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
