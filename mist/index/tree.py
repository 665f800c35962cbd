"""The tree: which chunk, list or single entry a message has to look at.

A *node* stands for the tags on the way down to it, and holds entries that have all of them:

    exact      the one entry that has no tag but those: a hit as soon as one gets here
    children   tag -> an entry, a short list of entries, or a node one level down
    chunk      the bitmaps over entries whose remaining tags are all *heavy* here

The root stands for no tag, and has children only. An entry is filed under its rarest tag, so
a message, which walks down from the root by each tag it has, rarely gets near what it does
not match; and since it tries every tag, an old choice stays right however popularity drifts.

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

A chunk is bounded (`Thresholds.capacity`, `.area`). Past that, an entry goes one level down
under its rarest tag, whose child may then become a node. Every level uses up a tag, and only
below a full chunk is there a next one, so the depth stays at one or two for any million of
entries. All walks are loops all the same: a limit on tags is not this module's to rely on.
"""

from typing import Generic, TypeAlias, TypeVar, final

import attrs

from mist.index.chunk import Chunk
from mist.index.entry import Entry

__all__ = ["Node", "Thresholds", "Tree"]

G = TypeVar("G")


@attrs.frozen
class Thresholds:
    """When one shape gives way to the next. Tests shrink them to reach every path.

    Attributes:
        leaf: entries in a list under the root, or below a full chunk, before it is a node.
        light: entries under one tag of a node before the tag turns heavy.
        capacity: slots in a chunk; a power of two, at least 64. Going down costs a visit to
            every child a message has a tag of, so where it has many, wide chunks win: 300,000
            sets of 5 tags out of 64, messages of 32, take 8.1 ms at 16,384, 3.6 at 65,536.
        area: slots x postings in a chunk, in bits.
    """

    leaf: int = 4
    light: int = 8
    capacity: int = 65_536
    area: int = 1 << 23  # 1 MiB


@final
class Node(Generic[G]):
    """What is filed under one path of tags. Holds at least one entry, unless the root."""

    __slots__ = ("children", "chunk", "exact", "parent", "tag")

    def __init__(self, parent: "Node[G] | None" = None, tag: str = "") -> None:
        self.parent = parent
        self.tag = tag
        self.exact: Entry[G] | None = None
        self.children: dict[str, Child[G]] = {}
        self.chunk: Chunk[G] | None = None

    def path(self) -> set[str]:
        """The tags that every entry here has. O(depth)."""
        path = set()
        node = self
        while node.parent is not None:
            path.add(node.tag)
            node = node.parent
        return path


Child: TypeAlias = Entry[G] | list[Entry[G]] | Node[G]


class Tree(Generic[G]):
    """Files entries by their tags; finds those that are subsets of a message's.

    Attributes:
        nodes, chunks: how many there are now, without the root.
    """

    __slots__ = ("_root", "_thresholds", "chunks", "nodes")

    def __init__(self, thresholds: Thresholds) -> None:
        self._root: Node[G] = Node()
        self._thresholds = thresholds
        self.nodes = 0
        self.chunks = 0

    def match(self, tags: frozenset[str]) -> list[G]:
        """The group of every entry whose tags are all in `tags`, each once, in no order."""
        groups: list[G] = []
        holds = tags.issuperset
        queue = [self._root]
        for node in queue:  # which grows as it is walked
            children = node.children
            for tag in children.keys() & tags:
                child = children[tag]
                if type(child) is Entry:
                    if holds(child.tags):
                        groups.append(child.group)
                elif type(child) is Node:
                    queue.append(child)
                else:
                    for entry in child:
                        if holds(entry.tags):
                            groups.append(entry.group)
            if node.exact is not None:
                groups.append(node.exact.group)
            if node.chunk is not None:
                node.chunk.match(tags, groups)
        return groups

    def file(self, entry: Entry[G], rarest_first: list[str]) -> None:
        """Take `entry` in. `rarest_first` are its tags; used up.

        O(tags), and now and then a short list of other entries is moved.
        """
        self._descend(self._root, entry, rarest_first)

    def _descend(self, node: Node[G], entry: Entry[G], rest: list[str]) -> None:
        while rest:
            if node.parent is not None and self._keep(node, entry, rest):
                return
            tag = rest[0]
            child = node.children.get(tag)
            if type(child) is not Node:
                if type(child) is not list or len(child) < self._thresholds.leaf:
                    _hang(node, tag, entry)
                    return
                child = self._branch(node, tag, child)
            node = child
            rest.remove(tag)
        node.exact = entry
        entry.node = node
        entry.place = None

    def _keep(self, node: Node[G], entry: Entry[G], rest: list[str]) -> bool:
        """Keep `entry` in `node` itself: under a light tag, else in the chunk. Or say no."""
        tag = self._lightest(node, rest)
        if tag is not None:
            _hang(node, tag, entry)
            return True
        if not self._pack(node, entry, rest):
            return False
        for tag in rest:
            child = node.children.get(tag)
            if type(child) is list:
                self._drain(node, tag, child)
                break
        return True

    def _lightest(self, node: Node[G], rest: list[str]) -> str | None:
        heavy = node.chunk.postings if node.chunk is not None else ()
        for tag in rest:
            if tag in heavy:
                continue
            child = node.children.get(tag)
            if child is None or type(child) is Entry:
                return tag
            if type(child) is list and len(child) < self._thresholds.light:
                return tag
        return None

    def _pack(self, node: Node[G], entry: Entry[G], rest: list[str]) -> bool:
        chunk = node.chunk
        if chunk is None:
            chunk = node.chunk = Chunk()
            self.chunks += 1
        elif not chunk.has_room(len(rest), self._thresholds.capacity, self._thresholds.area):
            return False
        entry.node = node
        entry.place = chunk.insert(entry.group, rest)
        return True

    def _drain(self, node: Node[G], tag: str, entries: list[Entry[G]]) -> None:
        """Move what is listed under `tag`, which just turned heavy."""
        path = node.path()
        staying = []
        for entry in entries:
            rest = [tag for tag in entry.tags if tag not in path]
            lighter = self._lightest(node, rest)
            if lighter is not None:
                _hang(node, lighter, entry)
            elif not self._pack(node, entry, rest):
                staying.append(entry)
        if staying:
            node.children[tag] = staying if len(staying) > 1 else staying[0]
        else:
            del node.children[tag]

    def _branch(self, parent: Node[G], tag: str, entries: list[Entry[G]]) -> Node[G]:
        """Put a node where the list `entries` was under `tag`."""
        node = parent.children[tag] = Node(parent, tag)
        self.nodes += 1
        path = node.path()
        for entry in entries:
            self._descend(node, entry, [tag for tag in entry.tags if tag not in path])
        return node

    def unfile(self, entry: Entry[G]) -> None:
        """Let `entry` go, and every structure it was the last one in. O(tags)."""
        node, place = entry.node, entry.place
        assert node is not None, "only what was filed"
        if place is None:
            node.exact = None
        elif isinstance(place, str):
            _unhang(node, place, entry)
        else:
            chunk = node.chunk
            assert chunk is not None
            chunk.discard(place, entry.tags)
            if not len(chunk):
                node.chunk = None
                self.chunks -= 1
        self._prune(node)

    def _prune(self, node: Node[G]) -> None:
        while not node.children:
            parent = node.parent
            if parent is None or node.exact is not None or node.chunk is not None:
                break
            del parent.children[node.tag]
            self.nodes -= 1
            node = parent
        if not node.children:
            node.children.clear()  # which gives the table back; deleting alone never does


def _hang(node: Node[G], tag: str, entry: Entry[G]) -> None:
    child = node.children.get(tag)
    if child is None:
        node.children[tag] = entry
    elif type(child) is Entry:
        node.children[tag] = [child, entry]
    else:
        assert isinstance(child, list), "whoever files knows where there is a node"
        child.append(entry)
    entry.node = node
    entry.place = tag


def _unhang(node: Node[G], tag: str, entry: Entry[G]) -> None:
    child = node.children[tag]
    if child is entry:
        del node.children[tag]
        return
    assert isinstance(child, list)
    child.remove(entry)
    if len(child) == 1:
        node.children[tag] = child[0]
