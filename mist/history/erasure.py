"""Erasures: what is to be erased, and what was; see `erasing` for how."""

import attrs

from mist.history.selection import Selection
from mist.message import TagSet

__all__ = ["Erased", "Erasure", "PendingErasure"]


@attrs.frozen
class Erasure:
    """Which messages to erase: those that meet all conditions given.

    Attributes:
        tags: they carry all of these; None is no condition.
        publisher: see `Publication`; None is no condition.

    Raises:
        ValueError: no condition, or an empty tag set.
    """

    tags: TagSet | None = None
    publisher: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.tags is None and self.publisher is None:
            raise ValueError("an erasure needs tags or a publisher")
        if self.tags is not None and not self.tags:
            raise ValueError("an erasure needs tags")

    def selection(self) -> Selection | None:
        """The messages that have to be read."""
        return None if self.tags is None else Selection([self.tags])


@attrs.frozen
class PendingErasure:
    """An erasure that a mirror has yet to do; see `mist.history.mirroring`.

    Attributes:
        offset: of its arrival.
        upto: messages with higher ids stay.
        erasure: what goes.
    """

    offset: int
    upto: int
    erasure: Erasure


@attrs.frozen
class Erased:
    """The result of an erasure.

    Attributes:
        messages: how many were erased.
        first, last: the lowest and the highest id erased; 0 where none was.
        after: where to continue; None where all is done.
    """

    messages: int = 0
    first: int = 0
    last: int = 0
    after: int | None = None

    def plus(self, other: "Erased") -> "Erased":
        """The sum of this and a later step."""
        return Erased(
            self.messages + other.messages, self.first or other.first, other.last or self.last
        )
