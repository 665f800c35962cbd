"""`Index`: entries by their exact tags, and the tree that finds them by a message's.

Entries are kept in many small dicts rather than a large one. A dict that is full is copied
into one twice the size within a single insertion: 24 ms at 300,000 entries and growing with
them, during which a server does nothing else. A shard's copy takes a 256th of that.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import attrs

from mist.index.entry import Entry
from mist.index.intern import Tags
from mist.index.tree import Thresholds, Tree

__all__ = ["Index", "IndexStatistics"]

G = TypeVar("G")

_SHARDS: Final = 256  # a power of two


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

    __slots__ = ("_length", "_shards", "_tags", "_tree")

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._shards: list[dict[tuple[str, ...], Entry[G]]] = [{} for _ in range(_SHARDS)]
        self._length = 0
        self._tags = Tags()
        self._tree: Tree[G] = Tree(thresholds or Thresholds())

    def __len__(self) -> int:
        """Distinct tag sets."""
        return self._length

    def get(self, tags: frozenset[str]) -> G | None:
        """The group of exactly these tags, or None. O(tags)."""
        key = tuple(sorted(tags))
        entry = self._shard(key).get(key)
        return None if entry is None else entry.group

    def add(self, tags: frozenset[str], group: G) -> None:
        """Enter a tag set. O(tags), and now and then a short list of entries is moved.

        Raises:
            ValueError: it is there already, or holds no tag.
        """
        key = tuple(sorted(tags))
        if not key:
            raise ValueError("an entry needs at least one tag")
        shard = self._shard(key)
        if key in shard:
            raise ValueError(f"there already: {key!r}")
        names, rarest_first = self._tags.acquire(key)
        entry = shard[names] = Entry(names, group)
        self._tree.file(entry, rarest_first)
        self._length += 1

    def remove(self, tags: frozenset[str]) -> G:
        """Take a tag set out, and give back what memory it was the last to need. O(tags).

        Returns:
            Its group.

        Raises:
            KeyError: it isn't there.
        """
        key = tuple(sorted(tags))
        shard = self._shard(key)
        entry = shard.pop(key)
        self._tree.unfile(entry)
        self._tags.release(entry.tags)
        self._length -= 1
        if not shard:
            shard.clear()  # which gives the table back; deleting alone never does
        return entry.group

    def match(self, tags: frozenset[str]) -> list[G]:
        """The group of every entry whose tags are all in `tags`, each once, in no order.

        O(tags) for each node reached, plus what `mist.index.tree` says of chunks.
        """
        return self._tree.match(tags)

    def tags(self) -> Iterable[str]:
        """Every distinct tag of any entry. O(tags)."""
        return iter(self._tags)

    def statistics(self) -> IndexStatistics:
        """What there is now."""
        return IndexStatistics(
            entries=self._length,
            tags=len(self._tags),
            nodes=self._tree.nodes,
            chunks=self._tree.chunks,
        )

    def _shard(self, key: tuple[str, ...]) -> dict[tuple[str, ...], Entry[G]]:
        return self._shards[hash(key) & (_SHARDS - 1)]
