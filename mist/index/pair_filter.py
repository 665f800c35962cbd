"""A Bloom filter of the two rarest tags of each entry: whether a message can match anything.

A message of four tags leads to four places of the tree, each in another part of memory, and mostly
to nothing there: its tags are asked for, but not together. Whatever it matches has its two rarest
tags among the message's, and these are six pairs. Each is asked for in one word of a table that is
small enough for the processor's caches, by two bits. (A *blocked* filter: Putze, Sanders and
Singler, *Cache-, Hash- and Space-Efficient Bloom Filters*, 2007.) An entry of one tag is a pair of
that tag with itself.

    entries   {order, eu, user:7}   {user:9}        rarest first: user:7 and eu; user:9 alone
    message   {order, user:8}       there is no such pair, nor either by itself: it matches nothing

At most one pair in sixty is there by chance. Bits are set and never cleared, so after some time a
new table is made, some entries with each that comes or goes.

Beside 100,000 entries over 10,000 tags, three of which a message has, it is told in 0.5 µs that
nothing is for it, which took 2.5. Refused: to ask it where a message is matched by itself, in
Python, where six pairs take as long as the tree.
"""

from array import array
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

from mist.index.intern import Tags
from mist.index.nodes import Key
from mist.index.shards import MASK, Table

__all__ = ["PairFilter"]

_ROOM: Final = 4  # times as many as there are fit into a new table
_ENTRIES: Final = 4  # in a word of 64 bits
_STEP: Final = 64  # entries that are taken into a new table with one that comes or goes: 0.1 ms

_WORD_MASK: Final = (1 << 64) - 1
_FACTOR: Final = 0x9E3779B97F4A7C15  # odd, and its bits in no order


class PairFilter:
    """See the module.

    Args:
        tags: of the entries.
        entries: all of them, sharded.
        few: entries, up to which there is no filter.

    Attributes:
        words: the table; None where there are few entries. `_narrow.pyx` looks into it.
    """

    __slots__ = ("_entered", "_entries", "_few", "_left", "_length", "_making", "_tags", "words")

    def __init__(self, tags: Tags[Any], entries: Table[Key, Any], few: int) -> None:
        self.words: array[int] | None = None
        self._tags = tags
        self._entries = entries
        self._few = few
        self._length = 0
        self._entered = 0  # entries in the table, also such as have gone
        self._making: array[int] | None = None  # the next table
        self._left: Iterator[Key] = iter(())  # those that may still be missing in it

    def add(self, rarest: str, next_rarest: str) -> None:
        """Enter an entry, by its two rarest tags, or its only one twice. O(1)."""
        self._length += 1
        self._entered += 1
        for words in (self.words, self._making):
            if words is not None:
                _enter(words, rarest, next_rarest)
        self._tend()

    def discard(self) -> None:
        """Note that an entry has gone. O(1)."""
        self._length -= 1
        self._tend()

    def may_have(self, one: str, other: str) -> bool:
        """Whether an entry may have these as its two rarest tags; or the one tag, as its only one.

        This is the reference for `_narrow.pyx`.
        """
        words = self.words
        if words is None:
            return True
        place, bits = _place(len(words), one, other)
        return words[place] & bits == bits

    def _tend(self) -> None:
        if self._making is not None:
            self._make()
        elif self._length < self._few:
            self.words = None
        elif self.words is None or self._entered > _ENTRIES * len(self.words):
            self._making = array("Q", bytes(8 * (_ROOM * self._length // _ENTRIES)))
            self._entered = self._length
            self._left = chain.from_iterable(map(list, self._entries))

    def _make(self) -> None:
        """Take some entries into the next table. Those that come meanwhile are in it already."""
        assert self._making is not None
        entries, tags_of = self._entries, self._tags.of
        taken = 0
        for key in islice(self._left, _STEP):
            taken += 1
            if key in entries[hash(key) & MASK]:
                rarest_first = tags_of(key)
                _enter(self._making, rarest_first[0].name, rarest_first[:2][-1].name)
        if taken < _STEP:
            self.words, self._making, self._left = self._making, None, iter(())


def _enter(words: "array[int]", one: str, other: str) -> None:
    place, bits = _place(len(words), one, other)
    words[place] |= bits


def _place(words: int, one: str, other: str) -> tuple[int, int]:
    """Which of so many words a pair is in, and its bits there; in whatever order it is given."""
    mixed = (hash(one) + hash(other)) * _FACTOR & _WORD_MASK
    return (mixed >> 32) * words >> 32, 1 << (mixed & 63) | 1 << (mixed >> 6 & 63)
