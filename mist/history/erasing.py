"""Erasure on request: messages that have to be deleted for good.

Unlike retention it reads the messages, so it works through the log in steps, each a plan made on
a block store that is only read and one short change. The blocks concerned are rewritten without
the messages; a damaged block is removed whole, since its content is unknown. The block store
overwrites the bytes where they were stored (`BlockStore.wipe`).
"""

from contextlib import closing
from typing import Final

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import Block
from mist.history.block_store import BlockStore
from mist.history.channels import rewritable
from mist.history.encoding import encode_stored
from mist.history.erasure import Erased, Erasure
from mist.history.layout import Head, Row
from mist.history.record import Stored
from mist.history.selection import Selection
from mist.history.tag_lists import TagLists

__all__ = ["Plan", "make_plan"]

_LOOKED_AT: Final = 64  # blocks read in a step
_READ: Final = 4 * 1024 * 1024  # bytes read in a step
_CHANGED: Final = 16  # blocks rewritten in a step: appends wait meanwhile


@attrs.define
class Plan:
    """One step of an erasure.

    Attributes:
        after: where the next step starts; None where this is the last.
        before, put: blocks to remove, and those that replace them.
        erased: the result.
        damaged: the highest id of damaged blocks that are removed unread; 0 where none is.
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
        HistoryDamaged: without telling which block it is.
    """
    plan = Plan()
    read = 0
    with store.snapshot(), closing(store.ascend(after, upto, selection)) as rows:
        for looked_at, row in enumerate(rows, 1):
            head = row.head
            try:
                _look(store, Block(row, tag_lists), erasure, upto, plan)
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


def _look(store: BlockStore, block: Block, erasure: Erasure, upto: int, plan: Plan) -> None:
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
            dropped = 0
            if first <= upto and (erasure.tags is None or erasure.tags <= entry[0].tags):
                dropped = min(entry[2], upto + 1 - first)
                gone.append((first, dropped))
            if dropped < entry[2]:
                taken.append((place, dropped))
        left = stored.keep(taken)
        if left is not None:
            kept.append(left)
    if not gone:
        return
    head = block.head
    plan.before.append(head)
    if kept:
        plan.put.append(encode_stored(kept, head.first, head.last))
    last, count = gone[-1]
    plan.erased = plan.erased.plus(
        Erased(sum(each for _, each in gone), gone[0][0], last + count - 1)
    )
