"""`Index`: entries by their exact tags, and the tree that finds them by a message's.

An entry is no object of its own: it is a tuple of tags, in a dict that leads to its group, and
somewhere in the tree. There are millions, and each object more would be 64 bytes and a stop
of the garbage collector, which passes over tuples of strings after it saw them once.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import attrs

from mist.index.intern import Tags
from mist.index.nodes import Key, Tag
from mist.index.shards import MASK, Table, make_table
from mist.index.thresholds import Thresholds
from mist.index.tree import Tree

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

    __slots__ = ("_groups", "_length", "_tags", "_tree")

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._groups: Table[Key, G] = make_table()
        self._length = 0
        self._tags: Tags[G] = Tags()
        self._tree = Tree(self._tags, self._groups, thresholds or Thresholds())

    def __len__(self) -> int:
        """Distinct tag sets."""
        return self._length

    def get(self, tags: frozenset[str]) -> G | None:
        """The group of exactly these tags, or None. O(tags)."""
        key = tuple(sorted(tags))
        return self._groups[hash(key) & MASK].get(key)

    def add(self, tags: frozenset[str], group: G) -> None:
        """Enter a tag set. O(tags), and now and then a short list of entries is moved.

        Raises:
            ValueError: it is there already, or holds no tag.
        """
        if not tags:
            raise ValueError("an entry needs at least one tag")
        key, rarest, others = self._tags.acquire(sorted(tags))
        shard = self._groups[hash(key) & MASK]
        length = len(shard)
        shard.setdefault(key, group)
        if len(shard) == length:
            self._tags.release(self._tags.of(key))
            raise ValueError(f"there already: {key!r}")
        self._tree.file(key, rarest, others)
        self._length += 1

    def remove(self, tags: frozenset[str]) -> G:
        """Take a tag set out, and give back what memory it was the last to need. O(tags).

        Returns:
            Its group.

        Raises:
            KeyError: it isn't there.
        """
        key = tuple(sorted(tags))
        shard = self._groups[hash(key) & MASK]
        group = shard.pop(key)
        rarest_first = self._tags.of(key)
        self._tags.release(rarest_first)  # before the tree makes others of some
        self._tree.unfile(key, rarest_first)
        self._length -= 1
        if not shard:
            shard.clear()  # which gives the table back; deleting alone never does
        return group

    def match(self, tags: frozenset[str]) -> list[G]:
        """The group of every entry whose tags are all in `tags`, each once, in no order.

        O(tags) for each node reached, plus what `mist.index.tree` says of chunks.
        """
        return self._tree.match(tags)

    def match_each(
        self, projections: Sequence[str], most: int, widest: int = 1 << 30
    ) -> list[tuple[G, ...]]:
        """What `match` returns, for each of some messages of few tags; see `Tree.match_each`."""
        return self._tree.match_each(projections, most, widest)

    def match_in_steps(self, tags: frozenset[str]) -> Iterator[list[G]]:
        """What `match` returns, some at a time, and perhaps one twice.

        The index may change between two steps. What is in it all the while is found; what comes
        or goes meanwhile may be or not. A step is O(capacity of a chunk), some milliseconds.
        """
        return self._tree.match_in_steps(tags)

    @property
    def tables(self) -> Table[str, Tag[G]]:
        """Every distinct tag by its name, as many dicts as there are now. For looking up only."""
        return self._tags.tables

    def known(self, names: Iterable[str]) -> Iterator[str]:
        """Those of some names that any entry has, in order; a `BOUNDARY` among them stays.

        What a message has beside these changes nothing in what it matches.
        """
        return self._tags.known(names)

    def slices(self) -> Iterator[list[G]]:
        """Every group, some at a time: a 256th of them. For looking through all of a large index.

        It may change between two slices: what is there from beginning to end is seen once.
        """
        for shard in self._groups:
            yield list(shard.values())

    def tag_slices(self) -> Iterator[list[Tag[G]]]:
        """Every distinct tag, as `slices`; one with no uses has gone meanwhile. To be read only."""
        return self._tags.slices()

    def statistics(self) -> IndexStatistics:
        """What there is now."""
        return IndexStatistics(
            entries=self._length,
            tags=len(self._tags),
            nodes=self._tree.nodes,
            chunks=self._tree.chunks,
        )
