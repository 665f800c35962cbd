"""Filing: where in the tree an entry goes, and how it is found there again to be removed.

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

A chunk is bounded (`Thresholds.capacity`, `.area`). Past that, an entry goes one level down
under its rarest tag, whose child may then become a node. Every level uses up a tag, and only
below a full chunk is there a next one, so the depth stays at one or two for any million of
entries. Walks are loops all the same: a limit on tags is not this module's to rely on.

An entry doesn't know where it is. To remove it, the tree is walked by its tags, rarest first,
which is how it was filed, so it is nearly always in the first place looked at. Two references
and a number in each entry would save that walk, and cost 100 bytes an entry.
"""

from typing import Generic, TypeVar

from mist.index.chunk import Chunk
from mist.index.intern import Tags
from mist.index.nodes import Branch, Child, Key, Leaf, Node, Tag
from mist.index.shards import MASK, Table
from mist.index.thresholds import Thresholds

__all__ = ["Filing"]

G = TypeVar("G")


class Filing(Generic[G]):
    """Files entries by their tags, and lets them go.

    Attributes:
        nodes, chunks: how many there are now.

    Args:
        tags: the tags of all entries; the root.
        groups: entry -> its group. Only read; an entry is in it while it is filed.
    """

    __slots__ = ("_groups", "_tags", "_thresholds", "chunks", "nodes")

    def __init__(self, tags: Tags[G], groups: Table[Key, G], thresholds: Thresholds) -> None:
        self._tags = tags
        self._groups = groups
        self._thresholds = thresholds
        self.nodes = 0
        self.chunks = 0

    def file(self, key: Key, tag: Tag[G], others: list[str]) -> None:
        """Take an entry in.

        O(tags), and now and then a short list of other entries is moved.

        Args:
            tag: its rarest tag.
            others: the names of its other tags, rarest first; used up.
        """
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
