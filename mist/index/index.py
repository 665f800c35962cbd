"""`Index`: entries by their exact tags, and the tree that finds them by a message's."""

from collections.abc import Iterable
from typing import Generic, TypeVar

import attrs

from mist.index.entry import Entry
from mist.index.intern import Tags
from mist.index.tree import Thresholds, Tree

__all__ = ["Index", "IndexStatistics"]

G = TypeVar("G")


@attrs.frozen
class IndexStatistics:
    """What an index is made of.

    Attributes:
        entries: distinct tag sets.
        tags: distinct tags.
        nodes: inner nodes of the tree.
        chunks: bitmap chunks.
    """

    entries: int
    tags: int
    nodes: int
    chunks: int


class Index(Generic[G]):
    """Which tag sets are subsets of a message's? One entry, with its group, for each.

        {a, b}   is found by {a, b, c}
        {a, b}   isn't found by {a}
        {a}      looks as if {ab} should find it, but tags are compared whole

    Args:
        thresholds: when one shape of the tree gives way to the next.
    """

    __slots__ = ("_entries", "_tags", "_tree")

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._entries: dict[tuple[str, ...], Entry[G]] = {}
        self._tags = Tags()
        self._tree: Tree[G] = Tree(thresholds or Thresholds())

    def __len__(self) -> int:
        """Distinct tag sets."""
        return len(self._entries)

    def get(self, tags: frozenset[str]) -> G | None:
        """The group of exactly these tags, or None. O(tags)."""
        entry = self._entries.get(tuple(sorted(tags)))
        return None if entry is None else entry.group

    def add(self, tags: frozenset[str], group: G) -> None:
        """Enter a tag set. O(tags), and now and then a short list of entries is moved.

        Raises:
            ValueError: it is there already, or holds no tag.
        """
        key = tuple(sorted(tags))
        if not key:
            raise ValueError("an entry needs at least one tag")
        if key in self._entries:
            raise ValueError(f"there already: {key!r}")
        names, rarest_first = self._tags.acquire(key)
        entry = self._entries[names] = Entry(names, group)
        self._tree.file(entry, rarest_first)

    def remove(self, tags: frozenset[str]) -> G:
        """Take a tag set out, and give back what memory it was the last to need. O(tags).

        Returns:
            its group.

        Raises:
            KeyError: it isn't there.
        """
        entry = self._entries.pop(tuple(sorted(tags)))
        self._tree.unfile(entry)
        self._tags.release(entry.tags)
        if not self._entries:
            self._entries = {}  # a dict never shrinks on deletion
        return entry.group

    def match(self, tags: frozenset[str]) -> list[G]:
        """The group of every entry whose tags are all in `tags`, each once, in no order."""
        return self._tree.match(tags)

    def tags(self) -> Iterable[str]:
        """Every distinct tag of any entry. O(tags)."""
        return iter(self._tags)

    def statistics(self) -> IndexStatistics:
        """What there is now."""
        return IndexStatistics(
            entries=len(self._entries),
            tags=len(self._tags),
            nodes=self._tree.nodes,
            chunks=self._tree.chunks,
        )
