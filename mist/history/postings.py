"""Postings: the inverted index of a block, from a tag to the tag lists that hold it.

Live, a message asks which subscriptions it satisfies; in the log, a subscription asks which
messages satisfy it. A block numbers its distinct tag lists, and for each tag there is a
*posting*, the numbers of the lists that hold it:

    lists       0: a,b    1: a,c    2: a,d     ...
    postings    a: all of them, as a bitmap     b: [0]     c: [1]     d: [2]

A posting is kept in the smaller of two shapes: a list of numbers, or one bit for each list.
{a, b} is then [0] ∧ bitmap of a. That is exact up to one thing: a tag stands for itself by
32 bits of its CRC, so that all tags of a block are one sorted column of numbers, searched in
O(log tags) without decoding a string. Two tags with one CRC share a posting; the
caller compares the tag lists found, which costs little beside what it saves.

Postings are over tag lists and not over messages, since what one publisher sends in a moment
has few of them: a thousand readings of one sensor are one bit.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from zlib import crc32

from bitarray import bitarray

from mist.addresses import derived
from mist.history.columns import INDEXES, fixed, pack, unpack, unpack_all

__all__ = ["Packed", "Postings", "has_hash", "pack_postings", "tag_hash", "terms"]

Packed = tuple[tuple[str, bytes], tuple[str, bytes], list[int], list[bytes]]
"""Postings as stored: cumulated lengths, numbers, which are dense, and their bitmaps."""

_ADDRESSES = (b"/", b".")
_LIST_COST = 16  # bits that a number takes in a list, roughly; one bit in a bitmap


def terms(canonical: bytes) -> list[bytes]:
    """The terms of a tag list: its tags, and those derived from addresses among them."""
    found = canonical.split(b",")
    if canonical.startswith(_ADDRESSES) or b",/" in canonical or b",." in canonical:
        for tag in canonical.decode().split(","):
            found += map(str.encode, derived(tag))
        # Topics that are neighbours have levels in common.
        return list(dict.fromkeys(found))
    return found


tag_hash = crc32  # of a tag's UTF-8


def pack_postings(lists: Iterable[bytes], length: int) -> tuple[bytes, Packed]:
    """The postings of a block's distinct tag lists, `length` of them.

    O(tags of all lists), most of it in C.

    Returns:
        The hash of each tag, sorted, 32 bits each; and the postings in that order.
    """
    found: defaultdict[int, list[int]] = defaultdict(list)
    for number, canonical in enumerate(lists):
        for each in map(tag_hash, terms(canonical)):
            found[each].append(number)
    hashes = sorted(found)
    sparse = list(map(found.__getitem__, hashes))
    dense = [n for n, numbers in enumerate(sparse) if len(numbers) * _LIST_COST > length]
    bitmaps = []
    for n in dense:
        bits = bitarray(length, endian="little")
        bits[sparse[n]] = 1
        bitmaps.append(bits.tobytes())
        sparse[n] = []
    ends = pack(list(accumulate(map(len, sparse))))
    numbers = pack(list(chain.from_iterable(sparse)))
    return fixed(INDEXES, hashes), (ends, numbers, dense, bitmaps)


class Postings:
    """What `pack_postings` packed, ready to be asked.

    Raises:
        ValueError: it isn't that.
    """

    __slots__ = ("_dense", "_ends", "_hashes", "_length", "_numbers")

    def __init__(self, hashes: bytes, packed: Packed, length: int) -> None:
        (ends_code, ends), (numbers_code, numbers), dense, bitmaps = packed
        self._length = length
        self._hashes = unpack_all(INDEXES, hashes)
        self._ends = unpack(ends_code, ends, len(self._hashes))
        total = self._ends[-1] if self._ends else 0
        self._numbers = unpack(numbers_code, numbers, total)
        self._dense = dict(zip(dense, bitmaps, strict=True))

    def find(self, wanted: Iterable[int]) -> Iterable[int]:
        """Numbers of the lists that hold a tag for every hash wanted. Ascending.

        O(tags · log tags of the block), and the shortest posting or length/64.
        """
        shortest: Sequence[int] | None = None
        common: bitarray | None = None
        for each in wanted:
            place = bisect_left(self._hashes, each)
            if place == len(self._hashes) or self._hashes[place] != each:
                return ()
            start, end = self._ends[place - 1] if place else 0, self._ends[place]
            if start != end:
                numbers = self._numbers[start:end]
                shortest = numbers if shortest is None else _common(shortest, numbers)
                continue
            bits = bitarray(self._dense[place], endian="little")
            if common is None:
                common = bits
            else:
                common &= bits
        if shortest is None:
            return common.search(1) if common is not None else range(self._length)
        if common is None:
            return shortest
        return [number for number in shortest if common[number]]


def _common(some: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    return sorted(set(some).intersection(others))


def has_hash(hashes: bytes, wanted: int) -> bool:
    """Whether a sorted column of hashes, as in a block's row, holds one. O(log n)."""
    column = unpack_all(INDEXES, hashes)
    place = bisect_left(column, wanted)
    return place < len(column) and column[place] == wanted
