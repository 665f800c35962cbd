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

from collections.abc import Iterator
from itertools import chain, islice
from mmap import mmap
from typing import Any, Final

from mist.index.nodes import Key, Tag
from mist.index.shards import Table

try:
    from mist.index._narrow import enter, enter_all
except ImportError:  # it isn't built, or MIST_PURE is set
    enter = enter_all = None  # type: ignore[assignment]

__all__ = ["PairFilter"]

_ROOM: Final = 4  # times as many as there are fit into a new table
_ENTRIES: Final = 4  # in a word of 64 bits
_STEP: Final = 64  # entries that are taken into a new table with one that comes or goes: 0.03 ms

_WORD_MASK: Final = (1 << 64) - 1
_FACTOR: Final = 0x9E3779B97F4A7C15  # odd, and its bits in no order


class PairFilter:
    """See the module. Nothing, where no compiled code runs that would look into it.

    Args:
        tags: of the entries, sharded.
        entries: all of them, sharded.
        few: entries, up to which there is no table.

    Attributes:
        words: the table; None where there are few entries. `_narrow.pyx` looks into it.
    """

    __slots__ = ("_entries", "_few", "_left", "_length", "_making", "_room", "_tags", "words")

    def __init__(self, tags: Table[str, Tag[Any]], entries: Table[Key, Any], few: int) -> None:
        self.words: memoryview | None = None
        self._tags = tags
        self._entries = entries
        self._few = few
        self._length = 0
        self._room = few if enter is not None else 1 << 62  # how many may come until the next table
        self._making: memoryview | None = None  # that
        self._left: Iterator[Key] = iter(())  # those that may still be missing in it

    def add(self, rarest: str, next_rarest: str) -> None:
        """Enter an entry, by its two rarest tags, or its only one twice. O(1)."""
        self._length += 1
        self._room -= 1
        if self.words is not None:
            enter(self.words, rarest, next_rarest)
        if self._making is not None:
            enter(self._making, rarest, next_rarest)
            self._make()
        elif self._room <= 0:
            self._begin()

    def discard(self) -> None:
        """Note that an entry has gone. O(1)."""
        self._length -= 1
        if self._making is not None:
            self._make()
        elif self.words is not None and self._length < self._few // 2:
            self.words = None
            self._room = self._few - self._length

    def may_have(self, one: str, other: str) -> bool:
        """Whether an entry may have these as its two rarest tags; or the one tag, as its only one.

        This is the reference for `_narrow.pyx`.
        """
        words = self.words
        if words is None:
            return True
        mixed = (hash(one) + hash(other)) * _FACTOR & _WORD_MASK
        bits = 1 << (mixed & 63) | 1 << (mixed >> 6 & 63)
        return words[(mixed >> 32) * len(words) >> 32] & bits == bits

    def _begin(self) -> None:
        """Begin another table, unless there are few entries, after others have come and gone."""
        if self._length < self._few:
            self._room = self._few - self._length
            return
        words = _ROOM * self._length // _ENTRIES + 1
        # Zeros that the system hands out page by page: no pause, however many there are.
        self._making = memoryview(mmap(-1, 8 * words)).cast("Q")
        self._room = _ENTRIES * words - self._length
        self._left = chain.from_iterable(map(list, self._entries))

    def _make(self) -> None:
        """Take some entries into the next table. Those that come meanwhile are in it already."""
        assert self._making is not None
        some = list(islice(self._left, _STEP))
        enter_all(self._making, self._tags, self._entries, some)
        if len(some) < _STEP:
            self.words, self._making, self._left = self._making, None, iter(())
