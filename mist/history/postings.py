"""The tags of a block: which are in it, and which of its tag lists hold some of them.

Live, a message asks which subscriptions it satisfies; in the log, a subscription asks which
messages satisfy it. A block numbers its distinct tag lists, and has what leads from a tag to them:

    lists       0: a,b    1: a,c    2: /x/y,a
    hashes      of every tag in them, and of what is derived of topics and subjects
    text        the lists themselves: in which b stands, `bytes.find` tells, at the speed of memory
    postings    of what is derived, and so is in no list: /x/*: [2]

That is exact up to one thing: in the hashes a tag stands for itself by 32 bits of its CRC, so that
all tags of a block are one sorted column of numbers, searched in O(log tags) without decoding a
string. The caller compares the tag lists found, which costs little beside what it saves.

Most tags come once, an order's number or a request's id, and nobody ever asks for them. So a tag
costs its hash and no more, and all of that is done in C.

A posting is kept in the smaller of two shapes: a list of numbers, or one bit for each list.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final
from zlib import crc32

from bitarray import bitarray

from mist.addresses import derived
from mist.history.columns import INDEXES, fixed, pack, unpack, unpack_all

__all__ = ["Packed", "Postings", "has_hash", "pack_postings", "tag_hash", "terms"]

Packed = tuple[tuple[str, bytes], tuple[str, bytes], list[int], list[bytes]]
"""Postings as stored: cumulated lengths, numbers, which are dense, and their bitmaps."""

_ADDRESSES: Final = (b"/", b".")
_LIST_COST: Final = 16  # bits that a number takes in a list, roughly; one bit in a bitmap

# At a time: a call into C holds the interpreter lock until it is done, here for some milliseconds.
_PIECE: Final = 65_536  # bytes of tag lists
_SORTED: Final = 16_384  # hashes

_HASHES: Final = 1 << 32


def terms(canonical: bytes) -> list[bytes]:
    """The terms of a tag list: its tags, and those derived from addresses among them."""
    found = canonical.split(b",")
    if _has_addresses(canonical):
        found += _derived(canonical)
        # Topics that are neighbours have levels in common.
        return list(dict.fromkeys(found))
    return found


def _has_addresses(canonical: bytes) -> bool:
    return canonical.startswith(_ADDRESSES) or b",/" in canonical or b",." in canonical


def _derived(canonical: bytes) -> Iterator[bytes]:
    for tag in canonical.decode().split(","):
        yield from map(str.encode, derived(tag))


tag_hash = crc32  # of a tag's UTF-8


def pack_postings(text: bytes) -> tuple[bytes, bytes, Packed]:
    """What leads to a block's distinct tag lists, which LF separates in `text`.

    O(tags of all lists), in C where nothing is derived of them: 0.2 µs each.

    Returns:
        The hash of each tag, sorted, 32 bits each; those of them that have postings; and the
        postings in that order.
    """
    hashes: set[int] = set()
    derived_of: defaultdict[int, list[int]] = defaultdict(list)
    addressed = b"/" in text or b"." in text
    lists = 0
    for piece in _pieces(text):
        hashes.update(map(tag_hash, piece.replace(b"\n", b",").split(b",")))
        if addressed:
            for number, canonical in enumerate(piece.split(b"\n"), lists):
                if _has_addresses(canonical):
                    for each in set(map(tag_hash, _derived(canonical))):
                        derived_of[each].append(number)
            lists += piece.count(b"\n") + 1
    if not hashes.isdisjoint(derived_of):
        _add_written(derived_of, text)
    hashes.update(derived_of)
    known: list[int] = []
    for part in _parts(hashes, 0, _HASHES):
        known += sorted(part)
    posted = sorted(derived_of)
    packed = _pack([derived_of[each] for each in posted], text.count(b"\n") + 1)
    return fixed(INDEXES, known), fixed(INDEXES, posted), packed


def _add_written(postings: Mapping[int, list[int]], text: bytes) -> None:
    """Add the lists in which tags themselves have one of these hashes."""
    for number, canonical in enumerate(text.split(b"\n")):
        for each in postings.keys() & map(tag_hash, canonical.split(b",")):
            if number not in postings[each]:
                insort(postings[each], number)


def _pieces(text: bytes) -> Iterator[bytes]:
    """The same lists, some at a time."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE)
        yield text[start : end if end >= 0 else None]
        if end < 0:
            return
        start = end + 1


def _parts(hashes: Collection[int], low: int, high: int) -> Iterator[Collection[int]]:
    """The same in parts that can be sorted one after the other, ascending."""
    if len(hashes) <= _SORTED:
        yield hashes
        return
    middle = (low + high) // 2
    yield from _parts([each for each in hashes if each < middle], low, middle)
    yield from _parts([each for each in hashes if each >= middle], middle, high)


def _pack(postings: list[list[int]], length: int) -> Packed:
    """Postings over `length` lists; takes what is dense out of `postings`."""
    dense = [n for n, numbers in enumerate(postings) if len(numbers) * _LIST_COST > length]
    bitmaps = []
    for n in dense:
        bits = bitarray(length, endian="little")
        bits[postings[n]] = 1
        bitmaps.append(bits.tobytes())
        postings[n] = []
    ends = pack(list(accumulate(map(len, postings))))
    return ends, pack(list(chain.from_iterable(postings))), dense, bitmaps


class Postings:
    """What `pack_postings` packed, ready to be asked.

    Args:
        posted: as packed; None where all hashes have postings, as in blocks of former versions.
        text: the lists.

    Raises:
        ValueError: it isn't that.
    """

    __slots__ = ("_dense", "_ends", "_hashes", "_length", "_numbers", "_posted", "_text")

    def __init__(self, hashes: bytes, posted: bytes | None, packed: Packed, text: bytes) -> None:
        (ends_code, ends), (numbers_code, numbers), dense, bitmaps = packed
        self._text = text
        self._length = text.count(b"\n") + 1
        self._hashes = unpack_all(INDEXES, hashes)
        self._posted = self._hashes if posted is None else unpack_all(INDEXES, posted)
        self._ends = unpack(ends_code, ends, len(self._posted))
        total = self._ends[-1] if self._ends else 0
        self._numbers = unpack(numbers_code, numbers, total)
        self._dense = dict(zip(dense, bitmaps, strict=True))

    def find(self, wanted: Mapping[int, bytes]) -> tuple[Iterable[int], bool]:
        """Numbers of lists among which are all that hold the tags wanted, ascending.

        O(tags · log tags of the block), and the shortest posting or the lists' bytes, in C.

        Args:
            wanted: at least one, by their hashes.

        Returns:
            The numbers, and whether others may be among them, that have tags of the same hashes.
        """
        derived_: list[int] = []  # places of their postings
        plain: list[bytes] = []
        for each, tag in wanted.items():
            if (place := _place(self._posted, each)) is not None:
                derived_.append(place)
            elif _place(self._hashes, each) is not None:
                plain.append(tag)
            else:
                return (), False
        if not derived_:
            return self._holding(plain), False
        found = self._common(derived_)
        if not plain:
            return found, True
        return sorted(set(found).intersection(self._holding(plain))), True

    def _common(self, places: Iterable[int]) -> Iterable[int]:
        """Numbers that are in all of some postings."""
        shortest: Sequence[int] | None = None
        common: bitarray | None = None
        for place in places:
            start, end = self._ends[place - 1] if place else 0, self._ends[place]
            if start != end:
                numbers = self._numbers[start:end]
                shortest = numbers if shortest is None else _both(shortest, numbers)
                continue
            bits = bitarray(self._dense[place], endian="little")
            if common is None:
                common = bits
            else:
                common &= bits
        if shortest is None:
            return common.search(1) if common is not None else ()
        if common is None:
            return shortest
        return [number for number in shortest if common[number]]

    def _holding(self, tags: Sequence[bytes]) -> Sequence[int]:
        """Numbers of the lists that hold some tags."""
        # Between commas, so that a short tag isn't found within many others.
        text = b",%b,\n" % self._text.replace(b"\n", b",\n,")
        rarest, *others = [b",%b," % tag for tag in tags]
        if others:
            rarest, *others = sorted([rarest, *others], key=text.count)
        found = []
        number = begins = 0  # of a list that is still to be looked at
        while (place := text.find(rarest, begins)) >= 0:
            number += text.count(b"\n", begins, place)
            begins = text.rfind(b"\n", 0, place) + 1
            ends = text.index(b"\n", place)
            if all(text.find(each, begins, ends) >= 0 for each in others):
                found.append(number)
            number, begins = number + 1, ends + 1
        return found


def _place(column: Sequence[int], wanted: int) -> int | None:
    place = bisect_left(column, wanted)
    return place if place < len(column) and column[place] == wanted else None


def _both(some: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    return sorted(set(some).intersection(others))


def has_hash(hashes: bytes, wanted: int) -> bool:
    """Whether a sorted column of hashes, as in a block's row, holds one. O(log n)."""
    return _place(unpack_all(INDEXES, hashes), wanted) is not None
