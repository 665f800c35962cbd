"""The tree: which chunk, list or single entry a message has to look at.

A *node* stands for the tags on the way down to it, and holds entries that have all of them:

    exact      the one entry that has no tag but those: a hit as soon as one gets here
    children   tag -> an entry, a short list of entries, or a node one level down
    chunk      the bitmaps over entries whose remaining tags are all *heavy* here

The root stands for no tag, and its children are with the tags themselves (`Tag.child`). An
entry is filed under its rarest tag, so a message, which walks down from the root by each tag
it has, rarely gets near what it does not match; and since it tries every tag, an old choice
stays right however popularity drifts.

Inside a node, tags are light or heavy. A *light* tag has few entries under it: a dict lookup
leads straight to them. A *heavy* one has a posting in the chunk. An entry with one light tag
goes under that one, and costs nothing to messages without it; an entry with heavy tags only
goes into the chunk. So bitmaps are made for tags that fill them, and a thousand entries that
have little in common cost one failed dict lookup a tag instead of a pass over their bitmaps.

    in the node of `a`, where x and y are heavy and u is not:
    {a}        exact
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

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, Generic, TypeAlias, TypeVar, final

import attrs

from mist.index.chunk import Chunk
from mist.index.intern import Tag, Tags
from mist.index.shards import MASK, Table
from mist.index.subsets import Subsets

__all__ = ["Child", "Key", "Node", "Thresholds", "Tree"]

G = TypeVar("G")

_VISIT: Final = 8192  # slots gone through in the time it takes to get at a chunk's bitmaps

Key: TypeAlias = tuple[str, ...]
"""An entry: its tags, sorted. A tuple, since a frozenset of three takes 216 bytes."""


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
    """

    leaf: int = 2
    light: int = 4
    capacity: int = 65_536
    area: int = 1 << 23  # 1 MiB
    lookup: int = 7168


@final
class Node(Generic[G]):
    """What is filed under one path of tags. Holds at least one entry."""

    __slots__ = ("children", "chunk", "exact")

    def __init__(self) -> None:
        self.exact: Key | None = None
        self.children: dict[str, Child[G]] = {}
        self.chunk: Chunk[G] | None = None


Child: TypeAlias = Key | list[Key] | Node[G]


class Tree(Generic[G]):
    """Files entries by their tags; finds those that are subsets of a message's.

    Attributes:
        nodes, chunks: how many there are now.

    Args:
        tags: the tags of all entries; the root.
        groups: entry -> its group. Only read; an entry is in it while it is filed.
    """

    __slots__ = ("_groups", "_subsets", "_tags", "_thresholds", "chunks", "nodes")

    def __init__(self, tags: Tags[G], groups: Table[Key, G], thresholds: Thresholds) -> None:
        self._tags = tags
        self._groups = groups
        self._subsets = Subsets(groups)
        self._thresholds = thresholds
        self.nodes = 0
        self.chunks = 0

    def match(self, tags: frozenset[str]) -> list[G]:
        """The group of every entry whose tags are all in `tags`, each once, in no order."""
        table = self._tags.table
        holds: Callable[[Key], bool] = tags.issuperset
        keys: list[Key] = []  # found one by one
        groups: list[G] = []  # found in chunks
        queue: list[Node[G]] = []
        slots = 0
        for name in tags:
            tag = table[hash(name) & MASK].get(name)
            if tag is None:
                continue
            child = tag.child
            if type(child) is Node:
                queue.append(child)
                if child.chunk is not None:
                    slots += _VISIT + child.chunk.capacity
            elif isinstance(child, tuple):
                if holds(child):
                    keys.append(child)
            elif child is not None:
                keys += filter(holds, child)
        if slots and self._subsets.are_fewer(
            len(tags), slots * len(tags) // self._thresholds.lookup
        ):
            return self._enumerate(tags)
        for node in queue:  # which grows as it is walked
            children = node.children
            if not children.keys().isdisjoint(tags):  # as most are
                for name in _shared(children, tags):
                    child = children[name]
                    if isinstance(child, tuple):
                        if holds(child):
                            keys.append(child)
                    elif type(child) is Node:
                        queue.append(child)
                    else:
                        keys += filter(holds, child)
            if node.exact is not None:
                keys.append(node.exact)
            if node.chunk is not None:
                node.chunk.match(tags, groups)
        if keys:
            entries = self._groups
            groups += [entries[hash(key) & MASK][key] for key in keys]
        return groups

    def _enumerate(self, tags: frozenset[str]) -> list[G]:
        """What `match` returns, found by looking up all subsets."""
        table = self._tags.table
        known = [table[hash(name) & MASK].get(name) for name in tags]
        return self._subsets.match(sorted([tag.name for tag in known if tag is not None]))

    def file(self, key: Key, tag: Tag[G], others: list[str]) -> None:
        """Take an entry in.

        O(tags), and now and then a short list of other entries is moved.

        Args:
            tag: its rarest tag.
            others: the names of its other tags, rarest first; used up.
        """
        self._subsets.count(len(key))
        child = tag.child
        if type(child) is not Node:
            if type(child) is not list or len(child) < self._thresholds.leaf:
                tag.child = _joined(child, key)
                return
            child = tag.child = self._branch(child, {tag.name})
        self._descend(child, key, others)

    def _descend(self, node: Node[G], key: Key, rest: list[str]) -> None:
        while rest:
            if self._hang(node, key, rest) or self._keep(node, key, rest):
                return
            name = rest.pop(0)
            child = node.children.get(name)
            if type(child) is not Node:
                if type(child) is not list or len(child) < self._thresholds.leaf:
                    node.children[name] = _joined(child, key)
                    return
                child = node.children[name] = self._branch(child, set(key).difference(rest))
            node = child
        node.exact = key

    def _hang(self, node: Node[G], key: Key, rest: list[str]) -> bool:
        """Keep an entry in `node` under its rarest light tag. Or say no: it has none."""
        children = node.children
        heavy = node.chunk.postings if node.chunk is not None else ()
        for name in rest:
            if name in heavy:
                continue
            child = children.get(name)
            if child is None:
                children[name] = key
                return True
            if type(child) is not Node and (
                type(child) is tuple or len(child) < self._thresholds.light
            ):
                children[name] = _joined(child, key)
                return True
        return False

    def _keep(self, node: Node[G], key: Key, rest: list[str]) -> bool:
        """Keep an entry of heavy tags in the chunk of `node`. Or say no: it is full."""
        if not self._pack(node, key, rest):
            return False
        for name in rest:
            child = node.children.get(name)
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
            node.children[name] = staying if len(staying) > 1 else staying[0]
        else:
            del node.children[name]

    def _branch(self, keys: list[Key], path: set[str]) -> Node[G]:
        """A node for what was listed under the last tag of `path`."""
        node: Node[G] = Node()
        self.nodes += 1
        for key in keys:
            self._descend(node, key, self._rest(key, path))
        return node

    def _rest(self, key: Key, path: set[str]) -> list[str]:
        return [tag.name for tag in self._tags.of(key) if tag.name not in path]

    def unfile(self, key: Key, rarest_first: list[Tag[G]]) -> None:
        """Let an entry go, and every structure it was the last one in.

        Where it is, is not kept anywhere: it is looked for as it was filed, rarest tag first,
        which nearly always leads there at once. At worst it is O(match).
        """
        self._subsets.discount(len(key))
        for tag in rarest_first:
            child = tag.child
            if type(child) is Node:
                rest = [other.name for other in rarest_first if other is not tag]
                if self._take(child, key, rest) or self._take_below(child, key, rest):
                    if _is_empty(child):
                        tag.child = None
                        self.nodes -= 1
                    return
            elif child is not None and _lists(child, key):
                tag.child = _without(child, key)
                return
        raise AssertionError("only what was filed")

    def _take(self, node: Node[G], key: Key, rest: list[str]) -> bool:
        """Take an entry out of `node`, if it is there; not from nodes below it."""
        if not rest:
            if node.exact is None:  # it may be where the same tags are in another order
                return False
            node.exact = None
            return True
        children = node.children
        for name in rest:
            child = children.get(name)
            if child is None or type(child) is Node or not _lists(child, key):
                continue
            left = _without(child, key)
            if left is not None:
                children[name] = left
            else:
                del children[name]
                if not children:
                    children.clear()  # which gives the table back; deleting alone never does
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
                    if not _is_empty(node):
                        break
                    del parent.children[name]
                    self.nodes -= 1
                    node = parent
                return True
            for name in reversed(rest):
                child = node.children.get(name)
                if type(child) is Node:
                    others = [other for other in rest if other != name]
                    steps.append((child, others, [*above, (node, name)]))
        return False


def _shared(children: dict[str, Child[G]], tags: frozenset[str]) -> AbstractSet[str]:
    # `&` goes through all of `tags` however few children there are: 3.8 µs for 80 tags and 5
    # children, against 0.5 this way.
    names = children.keys()
    return tags.intersection(names) if len(names) < len(tags) else names & tags


def _is_empty(node: Node[G]) -> bool:
    return not node.children and node.exact is None and node.chunk is None


def _joined(listed: Child[G] | None, key: Key) -> Key | list[Key]:
    """What there is under a tag, when `key` comes to it."""
    if listed is None:
        return key
    if type(listed) is tuple:
        return [listed, key]
    assert type(listed) is list, "whoever files knows where there is a node"
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
