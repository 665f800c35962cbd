"""One distinct tag set, and where the tree keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from mist.index.tree import Node

__all__ = ["Entry"]

G = TypeVar("G")


@final
class Entry(Generic[G]):
    """A tag set and its group. There are millions of these: 64 bytes each, no dict.

    Attributes:
        tags: sorted, shared strings. A tuple, since a frozenset of three takes 216 bytes.
        group: whose it is; the index never looks inside.
        node: the node that holds it.
        place: where in the node: the tag of a child, a slot of the chunk, or None where it
            is the node's `exact` entry.
    """

    __slots__ = ("group", "node", "place", "tags")

    def __init__(self, tags: tuple[str, ...], group: G) -> None:
        self.tags = tags
        self.group = group
        self.node: Node[G] | None = None
        self.place: str | int | None = None
