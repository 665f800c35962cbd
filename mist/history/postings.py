"""The tags of a block: which are in it, and which of its tag lists hold some of them.

Live, a message asks which subscriptions it satisfies; in the log, a subscription asks which
messages satisfy it. A block numbers its distinct tag lists, and has what leads from a tag to them:

    lists       0: a,b    1: a,c    2: /x/y,a
    hashes      of every tag in them, and of what is derived of topics and subjects
    text        the lists themselves: in which b stands, `bytes.find` tells, at the speed of memory
    postings    of what is derived, and so is in no list: /x/*: [2]

In the hashes a tag stands for itself by 32 bits of its CRC, so that all tags of a block are one
column of numbers. They are grouped by their first six bits, and not sorted: that would be half of
the cost of a block, and what is asked of them (is a tag there? which are in this part of a
directory?) is answered as fast so.

Most tags come once, an order's number or a request's id, and nobody ever asks for them. So a tag
costs its hash and no more.

A posting is kept in the smaller of two shapes: a list of numbers, or one bit for each list.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final
from zlib import crc32

from bitarray import bitarray

from mist.addresses import derived
from mist.history.columns import INDEXES, fixed, pack, unpack, unpack_all

__all__ = [
    "HASH_BYTES",
    "PARTS",
    "Packed",
    "Postings",
    "pack_postings",
    "part_of",
    "places",
    "same_hashes",
    "tag_hash",
    "terms",
]

Packed = tuple[tuple[str, bytes], tuple[str, bytes], list[int], list[bytes]]
"""Postings as stored: cumulated lengths, numbers, which are dense, and their bitmaps."""

_ADDRESSES: Final = (b"/", b".")
_AROUND: Final = b",\n"  # tags
_FEW_MISSED: Final = 8  # lists in vain before another tag is looked for first
_FEW_PARTS: Final = 8  # times that a tag is found within others before lists are padded
_LIST_COST: Final = 16  # bits that a number takes in a list, roughly; one bit in a bitmap

# At a time: a call into C holds the interpreter lock until it is done, here for some milliseconds.
_PIECE: Final = 65_536  # bytes of tag lists

PARTS: Final = 64  # a power of two
_SHIFT: Final = 32 - 6
HASH_BYTES: Final = 4


def part_of(wanted: int) -> int:
    """The part in which a hash stands, among those of a block."""
    return wanted >> _SHIFT


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

    O(tags of all lists); 0.2 µs each, where nothing is derived of them.

    Returns:
        The hash of each tag, 32 bits each, by parts (`part_of`); those of them that have postings,
        ascending; and the postings in that order.
    """
    parts: list[list[int]] = [[] for _ in range(PARTS)]
    derived_of: defaultdict[int, list[int]] = defaultdict(list)
    addressed = b"/" in text or b"." in text
    lists = 0
    for piece in _pieces(text):
        tags = piece.replace(b"\n", b",").split(b",")
        for each in dict.fromkeys(map(tag_hash, tags)):
            parts[each >> _SHIFT].append(each)
        if addressed:
            for number, canonical in enumerate(piece.split(b"\n"), lists):
                if _has_addresses(canonical):
                    for each in set(map(tag_hash, _derived(canonical))):
                        derived_of[each].append(number)
            lists += piece.count(b"\n") + 1
    if len(text) > _PIECE:  # a tag may be in several pieces
        parts = [list(dict.fromkeys(part)) for part in parts]
    if derived_of:
        written = set(chain(*parts))
        if not written.isdisjoint(derived_of):
            derived_of |= _with_written(derived_of, text)
        for each in derived_of:
            if each not in written:
                parts[each >> _SHIFT].append(each)
    posted = sorted(derived_of)
    packed = _pack([derived_of[each] for each in posted], text.count(b"\n") + 1)
    return fixed(INDEXES, list(chain(*parts))), fixed(INDEXES, posted), packed


def _with_written(postings: Mapping[int, list[int]], text: bytes) -> dict[int, list[int]]:
    """Those postings, with the lists in which a tag that is written has the same hash."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    lists = chain.from_iterable(piece.split(b"\n") for piece in _pieces(text))
    for number, canonical in enumerate(lists):
        for each in postings.keys() & map(tag_hash, canonical.split(b",")):
            found[each].add(number)
    return {each: sorted(numbers.union(postings[each])) for each, numbers in found.items()}


def _pieces(text: bytes) -> Iterator[bytes]:
    """The same lists, some at a time."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE)
        yield text[start : end if end >= 0 else None]
        if end < 0:
            return
        start = end + 1


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
        hashes: as packed; None where they were not read, and tags are looked for in `text`.
        posted: as packed; None where all hashes have postings, as in blocks of former versions.
            These can't be asked without their hashes.
        text: the lists.

    Attributes:
        found: lists that `find` has come across, by their numbers.

    Raises:
        ValueError: it isn't that.
    """

    __slots__ = ("_dense", "_ends", "_hashes", "_numbers", "_posted", "_text", "found")

    def __init__(
        self, hashes: bytes | None, posted: bytes | None, packed: Packed, text: bytes
    ) -> None:
        (ends_code, ends), (numbers_code, numbers), dense, bitmaps = packed
        self._text = text
        self._hashes = hashes
        self._posted = unpack_all(INDEXES, (hashes or b"") if posted is None else posted)
        self._ends = unpack(ends_code, ends, len(self._posted))
        total = self._ends[-1] if self._ends else 0
        self._numbers = unpack(numbers_code, numbers, total)
        self._dense = dict(zip(dense, bitmaps, strict=True))
        self.found: dict[int, bytes] = {}

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
            elif self._hashes is None or _has_hash(self._hashes, each):
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
        try:
            return self._search(self._text, tags, _find_tag)
        except _TooShortError:
            # Between commas, where it isn't found within other tags.
            text = b",%b," % self._text.replace(b"\n", b",\n,")
            return self._search(text, [b",%b," % tag for tag in tags], bytes.find)

    def _search(
        self, text: bytes, tags: Sequence[bytes], find: Callable[[bytes, bytes, int], int]
    ) -> Sequence[int]:
        """Numbers of the lines in which `find` finds all tags. About O(bytes), in C."""
        # A long tag is a rare one, mostly, and `find` is faster with it.
        rarest, *others = sorted(tags, key=len, reverse=True)
        found = []
        missed = 0  # lines that have the rarest tag alone
        number = begins = 0  # of a line that is still to be looked at
        while (place := find(text, rarest, begins)) >= 0:
            number += text.count(b"\n", begins, place)
            begins = text.rfind(b"\n", 0, place) + 1
            ends = text.find(b"\n", place)
            line = text[begins : ends if ends >= 0 else None]
            if all(find(line, each, 0) >= 0 for each in others):
                found.append(number)
                self.found[number] = line.strip(b",")
            else:
                missed += 1
            if ends < 0:
                break
            number, begins = number + 1, ends + 1
            if missed == _FEW_MISSED:  # so another one is rarer: the one that comes next last
                missed = 0
                following = {tag: find(text, tag, begins) for tag in tags}
                if min(following.values()) < 0:
                    break
                rarest, *others = sorted(tags, key=following.__getitem__, reverse=True)
        return found


class _TooShortError(Exception):
    """A tag is a part of many others."""


def _find_tag(text: bytes, tag: bytes, start: int) -> int:
    """Where a tag first stands in lists, from the start of one on; -1 where it doesn't.

    Raises:
        _TooShortError: only within other tags so far.
    """
    end = len(text)
    for _ in range(_FEW_PARTS):
        place = text.find(tag, start)
        if place < 0:
            return -1
        behind = place + len(tag)
        if (not place or text[place - 1] in _AROUND) and (behind == end or text[behind] in _AROUND):
            return place
        start = place + 1
    raise _TooShortError


def _place(column: Sequence[int], wanted: int) -> int | None:
    place = bisect_left(column, wanted)
    return place if place < len(column) and column[place] == wanted else None


def _both(some: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    return sorted(set(some).intersection(others))


def _has_hash(hashes: bytes, wanted: int) -> bool:
    """Whether a column of hashes, as in a block's row, holds one. O(n), in C."""
    return next(places(hashes, wanted), None) is not None


def same_hashes(some: bytes, others: bytes) -> bool:
    """Whether two columns hold the same hashes; former versions have sorted them."""
    return some == others or sorted(unpack_all(INDEXES, some)) == sorted(
        unpack_all(INDEXES, others)
    )


def places(hashes: bytes, wanted: int) -> Iterator[int]:
    """Where a hash stands in a column of them. O(n), in C."""
    needle = wanted.to_bytes(HASH_BYTES, "little")
    place = hashes.find(needle)
    while place >= 0:
        if place % HASH_BYTES == 0:
            yield place // HASH_BYTES
        place = hashes.find(needle, place + 1)
