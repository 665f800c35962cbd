"""Erasure: messages that somebody has a right to see gone.

Unlike retention it looks into the messages, so it goes over the log in steps, each a plan made
on a block store that is only read and one short change. The blocks concerned are written anew
without them; a block that can't be read any more goes as a whole, since nobody can tell what is in
it. That no byte stays where they were is the block store's to see to (`BlockStore.wipe`).
"""

from contextlib import closing
from typing import Final

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import Block, TagLists
from mist.history.block_store import BlockStore
from mist.history.channels import rewritable
from mist.history.encoding import encode
from mist.history.layout import Head, Row
from mist.history.record import Stored
from mist.history.selection import Selection
from mist.message import TagSet

__all__ = ["Erased", "Erasure", "Plan", "make_plan"]

_LOOKED_AT: Final = 64  # blocks read in a step
_READ: Final = 4 * 1024 * 1024  # bytes of them, likewise
_CHANGED: Final = 16  # blocks written anew in a step: an append waits meanwhile


@attrs.frozen
class Erasure:
    """Which messages are to go: those for which all that is said here holds.

    Attributes:
        tags: they carry all of these; None says nothing.
        publisher: see `Publication`; None says nothing.

    Raises:
        ValueError: nothing is said, or no tag.
    """

    tags: TagSet | None = None
    publisher: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.tags is None and self.publisher is None:
            raise ValueError("an erasure needs tags or a publisher")
        if self.tags is not None and not self.tags:
            raise ValueError("an erasure needs tags")

    def selection(self) -> Selection | None:
        """What has to be looked at."""
        return None if self.tags is None else Selection([self.tags])


@attrs.frozen
class Erased:
    """What an erasure did.

    Attributes:
        messages: how many went.
        first, last: the lowest and the highest id of theirs; 0 where none did.
    """

    messages: int = 0
    first: int = 0
    last: int = 0

    def plus(self, other: "Erased") -> "Erased":
        """This, and a later step."""
        return Erased(
            self.messages + other.messages, self.first or other.first, other.last or self.last
        )


@attrs.define
class Plan:
    """A step.

    Attributes:
        after: where the next one goes on; None where there is none.
        before, put: blocks that go, and those that come in their place.
        erased: what went.
        damaged: the highest id of blocks that went unread; 0 where none did.
    """

    after: int | None = None
    before: list[Head] = attrs.field(factory=list)
    put: list[Row] = attrs.field(factory=list)
    erased: Erased = attrs.field(factory=Erased)
    damaged: int = 0


def make_plan(
    store: BlockStore,
    tag_lists: TagLists,
    erasure: Erasure,
    selection: Selection | None,
    after: int,
    upto: int,
) -> Plan:
    """The next step over the messages in `(after, upto]`.

    Args:
        selection: of the erasure, made once.

    Raises:
        HistoryDamaged: and nobody can tell which block it is.
    """
    plan = Plan()
    read = 0
    with store.snapshot(), closing(store.ascend(after, upto, selection)) as rows:
        for looked_at, row in enumerate(rows, 1):
            head = row.head
            try:
                _look(store, Block(row, tag_lists), erasure, plan)
            except HistoryDamaged as error:
                if not error.first:
                    raise
                plan.before.append(head)
                plan.damaged = head.last
            read += head.size
            full = looked_at == _LOOKED_AT or read >= _READ or len(plan.before) == _CHANGED
            if full:
                plan.after = head.last
                return plan
    return plan


def _look(store: BlockStore, block: Block, erasure: Erasure, plan: Plan) -> None:
    if not block.has_publisher(erasure.publisher):
        return
    gone: list[tuple[int, int]] = []
    kept: list[Stored] = []
    for stored in rewritable(store, block):
        if erasure.publisher not in (None, stored.publisher):
            kept.append(stored)
            continue
        taken = []
        for place, (first, entry) in enumerate(zip(stored.firsts, stored.entries, strict=True)):
            if erasure.tags is None or erasure.tags <= entry[0].tags:
                gone.append((first, entry[2]))
            else:
                taken.append((place, 0))
        left = stored.keep(taken)
        if left is not None:
            kept.append(left)
    if not gone:
        return
    head = block.head
    plan.before.append(head)
    if kept:
        plan.put.append(encode(kept, first=head.first, last=head.last))
    last, count = gone[-1]
    plan.erased = plan.erased.plus(
        Erased(sum(each for _, each in gone), gone[0][0], last + count - 1)
    )
