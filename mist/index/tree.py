"""The tree: which chunk, list or single entry a message has to look at.

A *node* stands for the tags on the way down to it, and holds entries that have all of them:

    by tag     an entry, a short list of entries, or a node one level down
    by None    the one entry that has no tag but those: a hit as soon as one gets here
    chunk      the bitmaps over entries whose remaining tags are all *heavy* here

The root stands for no tag, and is the table of all tags: each is a leaf or a branch (`nodes`).
An entry is filed under its rarest tag, so a message, which walks down from the root by each
tag it has, rarely gets near what it does not match; and since it tries every tag, an old
choice stays right however popularity drifts.

How an entry is filed in a node, and found there again to be removed, is said in `filing`.

Where messages are narrow and chunks are large, there may be less to do than to go through
bitmaps: `subsets` looks each subset of a message's tags up. When a match has found which
chunks it would have to visit, it takes whichever way is estimated to be faster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Generic, TypeVar

from mist.index.chunk import Chunk
from mist.index.costs import VISIT
from mist.index.filing import Filing
from mist.index.intern import Tags
from mist.index.narrow import groups_of, match_each
from mist.index.nodes import Branch, Key, Node, Tag
from mist.index.pair_filter import PairFilter
from mist.index.shards import MASK, Table
from mist.index.subsets import Subsets
from mist.index.thresholds import Thresholds

__all__ = ["Tree"]

G = TypeVar("G")

_NODES: Final = 16  # visited in a step of a match: up to 0.4 ms, where no cache has them

Names = frozenset[str] | tuple[str, ...]

_WIDE: Final = 48  # tags that are looked up in the time it takes to fetch a node's few strings


class Tree(Generic[G]):
    """Files entries by their tags; finds those that are subsets of a message's.

    Args:
        tags, groups: as for a `Filing`.
    """

    __slots__ = ("_filing", "_filter", "_groups", "_subsets", "_tags", "_thresholds")

    def __init__(self, tags: Tags[G], groups: Table[Key, G], thresholds: Thresholds) -> None:
        self._tags = tags
        self._groups = groups
        self._subsets = Subsets(groups)
        self._filter = PairFilter(tags.table, groups, thresholds.filtered)
        self._filing = Filing(tags, groups, thresholds)
        self._thresholds = thresholds

    def match(self, tags: frozenset[str]) -> list[G]:
        """The group of every entry whose tags are all in `tags`, each once, in no order."""
        keys, queue = self._start(tags)
        if self._looks_up(_chunks_of(queue), tags):
            return self._subsets.match(self._known(tags))
        chunks: list[Chunk[G]] = []
        self._visit(queue, queue, self._form(tags), tags, keys, chunks)
        groups = [*groups_of(keys, self._groups)]
        for chunk in chunks:
            chunk.match(tags, groups)
        return groups

    def match_in_steps(self, tags: frozenset[str]) -> Iterator[list[G]]:
        """As `match`, some groups at a time; entries may come and go between two steps.

        An entry that is there all the while is found, perhaps twice: where it moves meanwhile, it
        moves from a list to a chunk of the same node or to a node below, and chunks are noted as
        their node is visited, and gone through last.
        """
        keys, queue = self._start(tags)
        if self._looks_up(_chunks_of(queue), tags):
            yield self._subsets.match(self._known(tags))
            return
        names = self._form(tags)
        chunks: list[Chunk[G]] = []
        visited = 0
        while keys or visited < len(queue):
            nodes = queue[visited : visited + _NODES]
            visited += len(nodes)
            self._visit(nodes, queue, names, tags, keys, chunks)
            yield [*groups_of(keys, self._groups)]
            keys.clear()
        for chunk in chunks:
            # Some group may have left its slot since the walk began, and the chunk the tree.
            yield from chunk.match_in_steps(tags)

    def match_each(self, projections: Sequence[str], most: int, widest: int) -> list[tuple[G, ...]]:
        """As `match`, for some messages of few tags, in half of the time for each.

        Args, returns: see `mist.index.narrow`.
        """
        return match_each(
            *(self._tags, self._groups, self._filter, self._go_through),
            *(projections, most, widest),
        )

    def _go_through(
        self, chunks: Sequence[Chunk[G]], keys: list[Key], tags: frozenset[str]
    ) -> tuple[G, ...]:
        """What `match` returns, once what is found one by one is."""
        if self._looks_up(chunks, tags):
            return tuple(self._subsets.match(self._known(tags)))
        groups = [*groups_of(keys, self._groups)]
        for chunk in chunks:
            chunk.match(tags, groups)
        return tuple(groups)

    def _looks_up(self, chunks: Sequence[Chunk[G]], tags: frozenset[str]) -> bool:
        """Whether it takes less to look up all subsets of a message's tags than to visit chunks."""
        if not chunks:
            return False
        slots = sum([VISIT + chunk.capacity for chunk in chunks])
        limit = slots * len(tags) // self._thresholds.lookup
        return self._subsets.are_fewer(len(tags), limit)

    def _start(self, tags: frozenset[str]) -> tuple[list[Key], list[Node[G]]]:
        """What is found under the root, and the nodes there that are to be visited."""
        table = self._tags.table
        holds: Callable[[Key], bool] = tags.issuperset
        keys: list[Key] = []  # found one by one
        queue: list[Node[G]] = []
        for name in tags:
            tag = table[hash(name) & MASK].get(name)
            if tag is None:
                continue
            if type(tag) is Branch:
                queue.append(tag)
            elif isinstance(listed := tag.listed, tuple):
                if holds(listed):
                    keys.append(listed)
            elif listed is not None:
                keys += filter(holds, listed)
        return keys, queue

    def _form(self, tags: frozenset[str]) -> Names:
        """A message's tags in the form in which nodes are asked for them."""
        # Of a node and a set the smaller one is gone through. Of a node and a tuple it is the
        # tuple, so that no string of the node's has to be fetched.
        near = self._filing.nodes < self._thresholds.near or len(tags) > _WIDE
        return tags if near else tuple(tags)

    @staticmethod
    def _visit(
        nodes: Iterable[Node[G]],
        queue: list[Node[G]],
        names: Names,
        tags: frozenset[str],
        keys: list[Key],
        chunks: list[Chunk[G]],
    ) -> None:
        """Look at some nodes.

        Args:
            nodes: these; `queue` itself for all of them, and those that are found meanwhile.
            queue: takes the nodes below them.
            keys, chunks: take what is found in them.
        """
        holds: Callable[[Key], bool] = tags.issuperset
        for node in nodes:
            if node.chunk is not None:
                chunks.append(node.chunk)
            if None in node:
                keys.append(node[None])  # type: ignore[arg-type]
            if not node.keys().isdisjoint(names):  # as most are
                for shared in _shared(node, names):
                    child = node[shared]
                    if isinstance(child, tuple):
                        if holds(child):
                            keys.append(child)
                    elif isinstance(child, Node):
                        queue.append(child)
                    else:
                        keys += filter(holds, child)

    def _known(self, tags: frozenset[str]) -> list[str]:
        """Those of a message's tags that an entry has, in the order of `Subsets`."""
        table = self._tags.table
        known = [table[hash(name) & MASK].get(name) for name in tags]
        return sorted([tag.name for tag in known if tag is not None])

    def file(self, key: Key, tag: Tag[G], others: list[str]) -> None:
        """Take an entry in; see `Filing.file`."""
        self._subsets.count(len(key))
        self._filter.add(tag.name, others[0] if others else tag.name)
        self._filing.file(key, tag, others)

    def unfile(self, key: Key, rarest_first: list[Tag[G]]) -> None:
        """Let an entry go; see `Filing.unfile`."""
        self._subsets.discount(len(key))
        self._filter.discard()
        self._filing.unfile(key, rarest_first)

    @property
    def nodes(self) -> int:
        """How many there are now."""
        return self._filing.nodes

    @property
    def chunks(self) -> int:
        """How many there are now."""
        return self._filing.chunks


def _chunks_of(nodes: list[Node[G]]) -> list[Chunk[G]]:
    return [node.chunk for node in nodes if node.chunk is not None]


def _shared(node: Node[G], names: Names) -> AbstractSet[str | None]:
    # `&` goes through all of `names` however few children there are: 3.8 µs for 80 tags and 5
    # children, against 0.5 this way.
    if isinstance(names, frozenset) and len(node) < len(names):
        return names.intersection(node)
    return node.keys() & names
