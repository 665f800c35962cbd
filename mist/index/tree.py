"""The tree: which chunk, list or single entry a message has to look at.

A *node* stands for the tags on the way down to it, and holds entries that have all of them:

    by tag     an entry, a short list of entries, or a node one level down
    by None    the one entry that has no tag but those: a hit as soon as one gets here
    chunk      the bitmaps over entries whose remaining tags are all *heavy* here

The root stands for no tag, and is the table of all tags: each is a leaf or a branch (`nodes`).
An entry is filed under its rarest tag, so a message, which walks down from the root by each
tag it has, rarely gets near what it does not match; and since it tries every tag, an old
choice stays right however popularity drifts.

Inside a node, tags are light or heavy. A *light* tag has few entries under it: a dict lookup
leads straight to them. A *heavy* one has a posting in the chunk. An entry with one light tag
goes under that one, and costs nothing to messages without it; an entry with heavy tags only
goes into the chunk. So bitmaps are made for tags that fill them, and a thousand entries that
have little in common cost one failed dict lookup a tag instead of a pass over their bitmaps.

    in the node of `a`, where x and y are heavy and u is not:
    {a}        under None
    {a, x, u}  under u
    {a, x, y}  chunk, as {x, y}

When a list is full and the next entry has no lighter tag, its tag turns heavy, and the list
moves on: each to another light tag, or else into the chunk. That is one short list an `add`,
and never a second one in turn: lists it fills up wait for their own overflow. So no `add`
pauses. A tag whose posting empties is light again.

Where messages are narrow and chunks are large, there may be less to do than to go through
bitmaps: `subsets` looks each subset of a message's tags up. When a match has found which
chunks it would have to visit, it takes whichever way is estimated to be faster.

A chunk is bounded (`Thresholds.capacity`, `.area`). Past that, an entry goes one level down
under its rarest tag, whose child may then become a node. Every level uses up a tag, and only
below a full chunk is there a next one, so the depth stays at one or two for any million of
entries. Walks are loops all the same: a limit on tags is not this module's to rely on.

An entry doesn't know where it is. To remove it, the tree is walked by its tags, rarest first,
which is how it was filed, so it is nearly always in the first place looked at. Two references
and a number in each entry would save that walk, and cost 100 bytes an entry.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Generic, TypeVar

import attrs

from mist.index.chunk import Chunk
from mist.index.costs import VISIT
from mist.index.intern import Tags
from mist.index.narrow import groups_of, match_each
from mist.index.nodes import Branch, Child, Key, Leaf, Node, Tag
from mist.index.pair_filter import PairFilter
from mist.index.shards import MASK, Table
from mist.index.subsets import Subsets

__all__ = ["Thresholds", "Tree"]

G = TypeVar("G")

_NODES: Final = 16  # visited in a step of a match: up to 0.4 ms, where no cache has them

Names = frozenset[str] | tuple[str, ...]

_WIDE: Final = 48  # tags that are looked up in the time it takes to fetch a node's few strings


@attrs.frozen
class Thresholds:
    """When one shape gives way to the next. Tests shrink them to reach every path.

    Attributes:
        leaf: entries in a list under the root, or below a full chunk, before it is a node. To
            compare an entry is two misses of the processor's caches, and a node that has
            nothing for a message three: 700,000 sets over 100,000 tags take 28 µs p50 at
            lists of 8, 22 at 4, 20 at 2, and no more memory.
        light: entries under one tag of a node before the tag turns heavy.
        capacity: slots in a chunk; a power of two, at least 64. Going down costs a visit to
            every child a message has a tag of, so where it has many, wide chunks win: 300,000
            sets of 5 tags out of 64, messages of 32, take 8.1 ms at 16,384, 3.6 at 65,536.
        area: slots x postings in a chunk, in bits.
        lookup: slots x tags of a message gone through in the time it takes to look up one
            subset of them. At 100,000 entries it is about 4,100, as more of the table is in
            the processor's caches, at a million 8,000 to 10,000.
        near: nodes whose tags' strings are all in the processor's caches, as good as always.
            With more, a match looks its tags up in a node rather than the node's in them.
        filtered: entries from which there is a `PairFilter`; fewer are in these caches, too.
    """

    leaf: int = 2
    light: int = 4
    capacity: int = 65_536
    area: int = 1 << 23  # 1 MiB
    lookup: int = 7168
    near: int = 20_000
    filtered: int = 4_096


class Tree(Generic[G]):
    """Files entries by their tags; finds those that are subsets of a message's.

    Attributes:
        nodes, chunks: how many there are now.

    Args:
        tags: the tags of all entries; the root.
        groups: entry -> its group. Only read; an entry is in it while it is filed.
    """

    __slots__ = ("_filter", "_groups", "_subsets", "_tags", "_thresholds", "chunks", "nodes")

    def __init__(self, tags: Tags[G], groups: Table[Key, G], thresholds: Thresholds) -> None:
        self._tags = tags
        self._groups = groups
        self._subsets = Subsets(groups)
        self._filter = PairFilter(tags.table, groups, thresholds.filtered)
        self._thresholds = thresholds
        self.nodes = 0
        self.chunks = 0

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
        near = self.nodes < self._thresholds.near or len(tags) > _WIDE
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
        """Take an entry in.

        O(tags), and now and then a short list of other entries is moved.

        Args:
            tag: its rarest tag.
            others: the names of its other tags, rarest first; used up.
        """
        self._subsets.count(len(key))
        self._filter.add(tag.name, others[0] if others else tag.name)
        if isinstance(tag, Leaf):
            listed = tag.listed
            if type(listed) is not list or len(listed) < self._thresholds.leaf:
                tag.listed = _joined(listed, key)
                return
            tag = self._tags.branch(tag)
            self._fill(tag, listed, {tag.name})
        self._descend(tag, key, others)

    def _descend(self, node: Node[G], key: Key, rest: list[str]) -> None:
        while rest:
            if self._hang(node, key, rest) or self._keep(node, key, rest):
                return
            name = rest.pop(0)
            child = node.get(name)
            if not isinstance(child, Node):
                if type(child) is not list or len(child) < self._thresholds.leaf:
                    node[name] = _joined(child, key)
                    return
                below = node[name] = Node()
                self._fill(below, child, set(key).difference(rest))
                child = below
            node = child
        node[None] = key

    def _hang(self, node: Node[G], key: Key, rest: list[str]) -> bool:
        """Keep an entry in `node` under its rarest light tag. Or say no: it has none."""
        heavy = node.chunk.postings if node.chunk is not None else ()
        for name in rest:
            if name in heavy:
                continue
            child = node.get(name)
            if child is None:
                node[name] = key
                return True
            if not isinstance(child, Node) and (
                isinstance(child, tuple) or len(child) < self._thresholds.light
            ):
                node[name] = _joined(child, key)
                return True
        return False

    def _keep(self, node: Node[G], key: Key, rest: list[str]) -> bool:
        """Keep an entry of heavy tags in the chunk of `node`. Or say no: it is full."""
        if not self._pack(node, key, rest):
            return False
        for name in rest:
            child = node.get(name)
            if type(child) is list:
                self._drain(node, name, child, set(key).difference(rest))
                break
        return True

    def _pack(self, node: Node[G], key: Key, rest: list[str]) -> bool:
        chunk = node.chunk
        if chunk is None:
            chunk = node.chunk = Chunk()
            self.chunks += 1
        elif not chunk.has_room(len(rest), self._thresholds.capacity, self._thresholds.area):
            return False
        chunk.insert(self._groups[hash(key) & MASK][key], rest)
        return True

    def _drain(self, node: Node[G], name: str, keys: list[Key], path: set[str]) -> None:
        """Move what is listed under `name`, which just turned heavy."""
        staying = []
        for key in keys:
            rest = self._rest(key, path)
            if not self._hang(node, key, rest) and not self._pack(node, key, rest):
                staying.append(key)
        if staying:
            node[name] = staying if len(staying) > 1 else staying[0]
        else:
            node.let_go(name)

    def _fill(self, node: Node[G], keys: list[Key], path: set[str]) -> None:
        """Take a new node in, with what was listed under the last tag of `path`."""
        self.nodes += 1
        for key in keys:
            self._descend(node, key, self._rest(key, path))

    def _rest(self, key: Key, path: set[str]) -> list[str]:
        return [tag.name for tag in self._tags.of(key) if tag.name not in path]

    def unfile(self, key: Key, rarest_first: list[Tag[G]]) -> None:
        """Let an entry go, and every structure it was the last one in.

        Where it is, is not kept anywhere: it is looked for as it was filed, rarest tag first,
        which nearly always leads there at once. At worst it is O(match).
        """
        self._subsets.discount(len(key))
        self._filter.discard()
        for tag in rarest_first:
            if isinstance(tag, Branch):
                rest = [other.name for other in rarest_first if other is not tag]
                if self._take(tag, key, rest) or self._take_below(tag, key, rest):
                    if tag.holds_nothing():
                        self._tags.unbranch(tag)
                        self.nodes -= 1
                    return
            elif tag.listed is not None and _lists(tag.listed, key):
                tag.listed = _without(tag.listed, key)
                return
        raise AssertionError("only what was filed")

    def _take(self, node: Node[G], key: Key, rest: list[str]) -> bool:
        """Take an entry out of `node`, if it is there; not from nodes below it."""
        if not rest:
            if None not in node:  # it may be where the same tags are in another order
                return False
            node.let_go(None)
            return True
        for name in rest:
            child = node.get(name)
            if child is None or isinstance(child, Node) or not _lists(child, key):
                continue
            left = _without(child, key)
            if left is not None:
                node[name] = left
            else:
                node.let_go(name)
            return True
        if node.chunk is None or not node.chunk.discard(rest):
            return False
        if not len(node.chunk):
            node.chunk = None
            self.chunks -= 1
        return True

    def _take_below(self, top: Node[G], key: Key, rest: list[str]) -> bool:
        """Take an entry out of a node below `top`, and the nodes out that it leaves empty."""
        steps: list[tuple[Node[G], list[str], list[tuple[Node[G], str]]]] = [(top, rest, [])]
        while steps:
            node, rest, above = steps.pop()
            if node is not top and self._take(node, key, rest):
                for parent, name in reversed(above):
                    if not node.holds_nothing():
                        break
                    parent.let_go(name)
                    self.nodes -= 1
                    node = parent
                return True
            for name in reversed(rest):
                child = node.get(name)
                if isinstance(child, Node):
                    others = [other for other in rest if other != name]
                    steps.append((child, others, [*above, (node, name)]))
        return False


def _chunks_of(nodes: list[Node[G]]) -> list[Chunk[G]]:
    return [node.chunk for node in nodes if node.chunk is not None]


def _shared(node: Node[G], names: Names) -> AbstractSet[str | None]:
    # `&` goes through all of `names` however few children there are: 3.8 µs for 80 tags and 5
    # children, against 0.5 this way.
    if isinstance(names, frozenset) and len(node) < len(names):
        return names.intersection(node)
    return node.keys() & names


def _joined(listed: Child[G] | None, key: Key) -> Key | list[Key]:
    """What there is under a tag, when `key` comes to it."""
    if listed is None:
        return key
    if type(listed) is tuple:
        return [listed, key]
    assert type(listed) is list, "the caller knows where there is a node"
    listed.append(key)
    return listed


def _lists(listed: Key | list[Key], key: Key) -> bool:
    return key in listed if type(listed) is list else listed == key


def _without(listed: Key | list[Key], key: Key) -> Key | list[Key] | None:
    """What there is under a tag, when `key` goes from it."""
    if type(listed) is not list:
        return None
    listed.remove(key)
    return listed if len(listed) > 1 else listed[0]
