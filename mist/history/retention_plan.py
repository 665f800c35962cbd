"""Retention plans: what the next step of retention removes.

A plan is made on a block store that is only read, so that planning, which may mean reading and
thinning megabytes, delays no append. Carrying it out is one short change.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import Block
from mist.history.block_cache import Blocks
from mist.history.block_store import BlockStore, State, Totals
from mist.history.channels import rewritable
from mist.history.clock import Moment
from mist.history.encoding import encode_stored
from mist.history.layout import NOT_THERE, Head, Row
from mist.history.record import MAX_ID
from mist.history.replay import find_last
from mist.history.retention import Policy
from mist.history.selection import Selection
from mist.history.thinning import expired_blocks, is_expired, thin

__all__ = ["Plan", "make_plan"]

_REMOVED: Final = 64  # blocks removed unread in a step
_STEP: Final = 8 * 1024 * 1024  # bytes of a step, at least one block; appends wait for its change
_THINNED: Final = 8  # blocks read and thinned in a step


@attrs.define
class Plan:
    """One step of retention; see `Change` and `State`.

    Attributes:
        remove, put: keys of the blocks to remove, and the thinned ones that replace them.
        sunk: the blocks that fall below the floor.
        floor, highest, untracked, tracked: changes of the state.
        removed: how many messages are removed.
        swept: key of the last block that was checked again; 0 starts over.
        more: whether another step has something to do.
    """

    floor: int = 0
    swept: int = 0
    more: bool = False
    sunk: Sequence[Head] = ()
    remove: list[int] = attrs.field(factory=list)
    put: list[Row] = attrs.field(factory=list)
    removed: int = 0
    highest: int = 0
    untracked: int = 0
    tracked: dict[str, int] = attrs.field(factory=dict)


def make_plan(
    store: BlockStore,
    blocks: Blocks,
    state: State,
    above: Totals,
    swept: int,
    policy: Policy,
    now: Moment,
    *,
    sweep: bool,
) -> Plan:
    """The next step. First the floor rises; then the blocks below it are checked again.

    Args:
        above: sums over the blocks above the floor.
        swept: of the plan before.
        sweep: see `History.trim`.
    """
    width = _THINNED if policy.rules else _REMOVED
    heads = _within_step(expired_blocks(store.heads(state.floor, width), above, policy, now))
    if heads:
        plan = Plan(floor=heads[-1].last, swept=swept, more=True, sunk=heads)
    else:
        heads = [head for head in store.heads(swept, width) if head.last <= state.floor]
        if not heads or not sweep:
            return Plan(floor=state.floor)
        heads = _within_step(heads)
        plan = Plan(floor=state.floor, swept=heads[-1].first, more=True)
        # They were beyond the limits once, but the limits may have been raised since.
        heads = [head for head in heads if is_expired(head, above, policy, now)]
    thinner = _Thinner(store, blocks, policy, now)
    for head in heads:
        thinner.add(head, plan)
    return plan


def _within_step(heads: Sequence[Head]) -> Sequence[Head]:
    """The first blocks, up to the bytes of a step."""
    sizes = accumulate(head.size for head in heads)
    return [head for head, size in zip(heads, sizes, strict=True) if size <= _STEP] or heads[:1]


class _Thinner:
    """Thins blocks; caches cut-offs, since neighbouring blocks have the same tags."""

    def __init__(self, store: BlockStore, blocks: Blocks, policy: Policy, now: Moment) -> None:
        self._store = store
        self._blocks = blocks
        self._policy = policy
        self._now = now
        self._cutoffs: dict[tuple[str, int], int] = {}

    def add(self, head: Head, plan: Plan) -> None:
        if not self._policy.rules:
            _remove(head, plan)
            return
        try:
            block = self._read(head)
        except HistoryDamaged:
            # Nothing of it can be kept, and it would block retention forever.
            _remove(head, plan)
            plan.untracked = head.last
            return
        stored = rewritable(self._store, block)
        thinned = thin(stored, self._policy, self._now, self._cutoff)
        if not thinned.removed:
            return
        plan.remove.append(head.first)
        plan.removed += thinned.removed
        plan.highest = max(plan.highest, thinned.highest)
        plan.tracked.update(thinned.tracked)  # blocks ascend, so the last one is the highest
        if thinned.kept:
            plan.put.append(encode_stored(thinned.kept, head.first, head.last))

    def _read(self, head: Head) -> Block:
        row = self._store.row(head.first)
        if row is None:  # only retention and erasure remove blocks, one at a time
            raise head.damaged(NOT_THERE)
        return Block(row, self._blocks.tag_lists)  # which hardly anybody reads any more

    def _cutoff(self, tag: str, n: int) -> int:
        known = self._cutoffs.get((tag, n))
        if known is None:
            selection = Selection([frozenset([tag])])
            left, known = n, MAX_ID
            while left and known:
                try:
                    left, known = find_last(self._store, self._blocks, selection, left, known)
                except HistoryDamaged as error:
                    # Damaged blocks don't count, so that too much is kept rather than too
                    # little. Damage without ids ends the search: everything is kept.
                    known = min(known, error.first) - 1 if error.first else 0
            self._cutoffs[tag, n] = known
        return known


def _remove(head: Head, plan: Plan) -> None:
    plan.remove.append(head.first)
    plan.removed += head.messages
    plan.highest = max(plan.highest, head.last)
