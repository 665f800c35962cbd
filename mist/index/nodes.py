"""The nodes of the tree, by what is filed under a tag: nothing, a few entries, or a node.

    Leaf      a tag under which few entries are filed, or none: they are compared one by one
    Branch    a tag that has a node, and is that node
    Node      one level down, under a tag of another node

A match among a million entries over 100,000 tags waits for memory two thirds of its time: it
comes to places that no cache of the processor holds, ten and more for each tag of a message. So
these shapes are made for few places:

- A node is a dict rather than an object that has one, and a tag with a node is that node rather
  than an object that has it: 14.5 / 40 µs, p50 / p99, became 12.5 / 38.
- It is a dict that keeps each key's hash beside it. CPython doesn't in a dict that has had no
  key but strings; so every string that a lookup meets on its way, nearly always another one,
  would have to be fetched to be told apart. That and looking a message's tags up in a node,
  never the node's in them (`Tree.match`), made it 12.4 / 29.

Where everything is in the processor's caches a match takes 4.7 µs this way, 4.2 before: entries
are larger.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar, final

from mist.index.chunk import Chunk

__all__ = ["Branch", "Child", "Key", "Leaf", "Node", "Tag"]

G = TypeVar("G")

Key: TypeAlias = tuple[str, ...]
"""An entry: its tags, sorted. A tuple, since a frozenset of three takes 216 bytes."""


class Node(dict["str | None", "Child[G]"], Generic[G]):
    """What is filed under one path of tags, by the next tag. Holds at least one entry.

    Under None, which is no tag of any message and which every message is taken to have, is
    the one entry that has no tag but those of the path.

    A node without a child is false, as any empty dict: ask whether it `is not None`.

    Attributes:
        chunk: the bitmaps over entries whose remaining tags are all heavy here.
    """

    __slots__ = ("chunk",)

    def __init__(self) -> None:
        self.chunk: Chunk[G] | None = None
        self._reset()

    def let_go(self, name: str | None) -> None:
        """Forget what is under a tag; there is something."""
        del self[name]
        if not self:
            self._reset()

    def _reset(self) -> None:
        """Give an empty node's table back, as deleting what is in it never does."""
        self.clear()
        self[None] = ()  # not a string, so from now on hashes are kept
        del self[None]

    def holds_nothing(self) -> bool:
        """Whether nothing is filed here any more."""
        return not self and self.chunk is None


Child: TypeAlias = Key | list[Key] | Node[G]


@final
class Leaf(Generic[G]):
    """A tag that some entry has, and the few entries that are filed under it, or none.

    Attributes:
        name: its one string.
        uses: how many entries have it.
        rarity: bits of that number; lower is rarer.
        listed: the entries. None where all that have the tag are under others.
    """

    __slots__ = ("listed", "name", "rarity", "uses")

    def __init__(self, name: str, uses: int = 0, rarity: int = 0) -> None:
        self.name = name
        self.uses = uses
        self.rarity = rarity
        self.listed: Key | list[Key] | None = None


@final
class Branch(Node[G]):
    """A tag that some entry has, and the node of what is filed under it.

    Attributes:
        name, uses, rarity: as a `Leaf` has them.
    """

    __slots__ = ("name", "rarity", "uses")

    def __init__(self, name: str, uses: int, rarity: int) -> None:
        super().__init__()
        self.name = name
        self.uses = uses
        self.rarity = rarity


Tag: TypeAlias = Leaf[G] | Branch[G]
