"""Enumeration: each subset of a message's tags looked up as if it were an entry.

Over a small vocabulary most subsets of a narrow message are entries, and bitmaps over all the
others are a detour. A message of seven tags has 91 subsets of two to four; at a million entries
over 100 tags 63 of them are there, in chunks of 100,000 slots together. How many subsets there
are depends on how many tags entries have, so that is counted here. The answer is the same
either way: the tree takes the one with less to do.

    entries of 2, 3, 4 tags; message of     3    5    7    10    20
    subsets to look up                      4   25   91   375  6175
"""

from itertools import combinations
from math import comb
from typing import Final, Generic, TypeVar

from mist.index.shards import MASK, Table

__all__ = ["Subsets"]

G = TypeVar("G")

_ABSENT: Final = object()  # None may be a group


class Subsets(Generic[G]):
    """The entries among all subsets of a message's tags that are as long as entries are.

    Args:
        groups: entry -> its group. Only read; who changes it calls `count` or `discount`.
    """

    __slots__ = ("_entries", "_groups")

    def __init__(self, groups: Table[tuple[str, ...], G]) -> None:
        self._groups = groups
        self._entries: dict[int, int] = {}  # number of tags -> how many entries have as many

    def count(self, tags: int) -> None:
        """There is one more entry with so many tags."""
        try:
            self._entries[tags] += 1
        except KeyError:
            self._entries[tags] = 1

    def discount(self, tags: int) -> None:
        """There is one entry less with so many tags."""
        left = self._entries[tags] = self._entries[tags] - 1
        if not left:
            del self._entries[tags]

    def are_fewer(self, tags: int, limit: int) -> bool:
        """Whether `match` would look up fewer than `limit` subsets of so many tags.

        O(different numbers of tags that entries have).
        """
        for size in self._entries:
            limit -= comb(tags, size)
            if limit <= 0:  # at once, since there may be more to come of many digits each
                return False
        return True

    def match(self, names: list[str]) -> list[G]:
        """The groups of all entries that are subsets of `names`, each once, in no order.

        O(subsets); some 0.2 µs for each, and up to 0.9 where the processor's caches have
        nothing of a table that large.

        Args:
            names: distinct, sorted, as entries are. Shared strings are compared faster.
        """
        table = self._groups
        groups: list[G] = []
        for size in self._entries:
            groups += [
                group  # type: ignore[misc]
                for key in combinations(names, size)
                if (group := table[hash(key) & MASK].get(key, _ABSENT)) is not _ABSENT
            ]
        return groups
