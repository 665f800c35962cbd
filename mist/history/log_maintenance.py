"""Maintenance of a log: retention, compaction, erasure, forgetting of keys, a new epoch.

Each step is planned on a block store that is only read, beside the appends, and is then one
short change under the write lock. Steps take turns.
"""

import math
from functools import partial
from typing import Final

import attrs
import trio

from mist.history.block_store import BlockStore, Change, State
from mist.history.compaction import Compaction, plan_compaction
from mist.history.erasing import Plan as ErasurePlan
from mist.history.erasing import make_plan as plan_erasure
from mist.history.erasure import Erased, Erasure
from mist.history.layout import MICROSECONDS
from mist.history.leaps import ClockRecord, Leap, Reading, find_leap
from mist.history.log_access import LogAccess
from mist.history.log_metadata import first_kept, random_epoch
from mist.history.record import MAX_ID, Trimmed
from mist.history.retention import Policy
from mist.history.retention_plan import Plan as RetentionPlan
from mist.history.retention_plan import make_plan as plan_retention
from mist.history.tracker import covers, shrink
from mist.message import TagSet

__all__ = ["LogMaintenance"]

_KEYS: Final = 10_000  # forgotten in a step
_RECORDED: Final = 3_600 * MICROSECONDS  # between two records of the clock
_LEAPS: Final = 100  # kept; one takes an hour at least


class LogMaintenance:
    """The maintenance of one log. See `mist.history.History` for the methods' contracts."""

    def __init__(self, access: LogAccess) -> None:
        self._access = access
        self._swept = 0  # key of the last block that this pass of retention swept again
        self._reading: Reading | None = None  # the last of the clock
        self._recorded = 0  # the wall clock when that was recorded last, microseconds

    async def trim(self, policy: Policy, now: float, *, sweep: bool) -> Trimmed:
        """See `History.trim`."""
        access = self._access
        async with access.maintenance_lock:
            metadata = access.metadata
            state = covers(metadata.state, policy.patterns)
            swept = self._swept
            moment = access.clock.moment(now)
            plan = await access.read(
                lambda store: plan_retention(
                    store,
                    access.blocks,
                    state,
                    metadata.above,
                    swept,
                    policy,
                    moment,
                    sweep=sweep,
                )
            )
            if plan.remove or (plan.floor, state) != (metadata.state.floor, metadata.state):
                await self._apply_retention(plan, state)
            self._swept = plan.swept
        return Trimmed(plan.removed, plan.more)

    async def note_clock(self, reading: Reading) -> Leap | None:
        """See `History.note_clock`."""
        access = self._access
        async with access.maintenance_lock:
            before = self._reading or await self._recorded_reading()
            leap = None if before is None else find_leap(before, reading)
            if leap is not None:
                leaps = await self._relevant((*access.clock.leaps, leap)[-_LEAPS:])
                leap = leap if leap in leaps else None
                access.clock.leaps = leaps
            if leap is not None or not 0 <= reading.wall - self._recorded < _RECORDED:
                record = ClockRecord(reading, access.clock.leaps)
                async with access.write_lock:
                    await access.write(lambda store: store.record_clock(record), same_messages=True)
                self._recorded = reading.wall
            self._reading = reading
        return leap

    async def _relevant(self, leaps: tuple[Leap, ...]) -> tuple[Leap, ...]:
        """Those that make something younger: a clock without a battery is behind at first."""
        heads = await self._access.read(lambda store: store.heads(0, 1))
        return tuple([leap for leap in leaps if heads and heads[0].oldest <= leap.after])

    async def _recorded_reading(self) -> Reading | None:
        """What the clock showed when it was last recorded, or when the newest message came."""
        access = self._access
        record = await access.read(lambda store: store.clock())
        if record is None:
            return Reading(access.metadata.latest) if access.metadata.latest else None
        access.clock.leaps = record.leaps
        return record.reading

    async def _apply_retention(self, plan: RetentionPlan, state: State) -> None:
        access = self._access
        async with access.write_lock:
            metadata = access.metadata
            state = attrs.evolve(
                state,
                newest=metadata.newest,
                latest=metadata.latest,
                floor=max(state.floor, plan.floor),
                trimmed=max(state.trimmed, plan.highest),
                untracked=max(state.untracked, plan.untracked),
            )
            tracked = metadata.tracked
            news = {tag: max(last, tracked.get(tag, 0)) for tag, last in plan.tracked.items()}
            tracked = tracked | news if news else tracked
            smaller = shrink(state, tracked)
            change = Change(plan.remove, plan.put, state, news)
            if smaller is not None:
                state, tracked = smaller
                change = attrs.evolve(change, state=state, tracked=tracked, forget=True)
            first = await self._change(change)
            above = access.metadata.above
            for head in plan.sunk:
                above = above.minus(head)
            access.metadata = attrs.evolve(
                access.metadata, state=state, tracked=tracked, first=first, above=above
            )

    async def _change(self, change: Change) -> int:
        """Carry out a change. Returns the lowest id kept afterwards."""
        newest = self._access.metadata.newest

        def work(store: BlockStore) -> int:
            store.change(change)
            return first_kept(store, newest)

        return await self._access.write(work)

    async def has_outdated_keys(self, before: float, most: int, most_of_owner: int | None) -> bool:
        """See `History.has_outdated_keys`."""
        find = partial(_outdated_keys, before=before, most=most, most_of_owner=most_of_owner)
        _, upto = await self._access.read(find)
        return upto > 0

    async def forget_keys(self, before: float, most: int, most_of_owner: int | None) -> bool:
        """See `History.forget_keys`."""
        access = self._access
        find = partial(_outdated_keys, before=before, most=most, most_of_owner=most_of_owner)
        async with access.maintenance_lock:
            owner, upto = await access.read(find)
            if upto:
                async with access.write_lock:
                    await access.write(lambda store: store.forget(upto, owner), same_messages=True)
        return upto > 0

    async def erase(
        self, erasure: Erasure, after: int, upto: int | None, seconds: float | None
    ) -> Erased:
        """See `History.erase`."""
        access = self._access
        deadline = trio.current_time() + (math.inf if seconds is None else seconds)
        selection = erasure.selection()
        upto = access.metadata.newest if upto is None else min(upto, access.metadata.newest)
        place: int | None = after
        erased = Erased()
        while place is not None:
            async with access.maintenance_lock:
                work = partial(
                    plan_erasure,
                    tag_lists=access.tag_lists,
                    erasure=erasure,
                    selection=selection,
                    after=place,
                    upto=upto,
                )
                plan = await access.read(work)
                if plan.before:
                    await self._apply_erasure(plan, erasure.tags or frozenset())
            erased = erased.plus(plan.erased)
            place = plan.after
            if place is not None and trio.current_time() >= deadline:
                return attrs.evolve(erased, after=place)
        # Also where nothing was erased: an interrupted call may have left this to be done.
        while True:
            async with access.maintenance_lock, access.write_lock:
                if not await access.write(lambda store: store.wipe()):
                    return erased
            if trio.current_time() >= deadline:
                return attrs.evolve(erased, after=upto)

    async def _apply_erasure(self, plan: ErasurePlan, tags: TagSet) -> None:
        access = self._access
        async with access.write_lock:
            metadata = access.metadata
            # The name of a tag may itself have to be erased; then less is known.
            named = {tag: metadata.tracked[tag] for tag in tags if tag in metadata.tracked}
            tracked = {tag: id_ for tag, id_ in metadata.tracked.items() if tag not in named}
            state = attrs.evolve(
                metadata.state,
                newest=metadata.newest,
                latest=metadata.latest,
                untracked=max(metadata.state.untracked, *named.values(), 0),
                erased=max(metadata.state.erased, plan.erased.last, plan.damaged),
            )
            change = Change([head.first for head in plan.before], plan.put, state, wipe=True)
            if named:
                change = attrs.evolve(change, tracked=tracked, forget=True)
            first = await self._change(change)
            above = access.metadata.above
            for head in plan.before:
                if head.first > state.floor:
                    above = above.minus(head)
            for row in plan.put:
                if row.head.first > state.floor:
                    above = above.plus(row.head)
            access.metadata = attrs.evolve(
                access.metadata, state=state, tracked=tracked, first=first, above=above
            )

    async def compact(self) -> bool:
        """See `History.compact`."""
        access = self._access
        async with access.maintenance_lock:
            state = access.metadata.state  # blocks below the floor are left to retention
            compaction = await access.read(
                lambda store: plan_compaction(
                    store, access.tag_lists, max(state.floor, store.settled()), state.removed
                )
            )
            if compaction is not None:
                await self._apply_compaction(compaction)
                return True
            step = await access.read(lambda store: store.next_maintenance())
            if step is None:
                return False
            async with access.write_lock:
                await access.write(step, same_messages=True)
        return True

    async def _apply_compaction(self, compaction: Compaction) -> None:
        access = self._access
        async with access.write_lock:
            await access.write(lambda store: store.change(compaction.change), same_messages=True)
            above = access.metadata.above
            for head in compaction.before:
                above = above.minus(head)
            for row in compaction.change.put:
                above = above.plus(row.head)
            access.metadata = attrs.evolve(access.metadata, above=above)

    async def new_epoch(self, above: int) -> str:
        """See `History.new_epoch`."""
        access = self._access
        async with access.maintenance_lock, access.write_lock:
            metadata = access.metadata
            newest = max(metadata.newest, above)
            state = attrs.evolve(
                metadata.state, epoch=random_epoch(), newest=newest, latest=metadata.latest
            )
            change = Change(state=state, skipped=above if above > metadata.newest else 0)
            await access.write(lambda store: store.change(change))
            first = metadata.first if metadata.first <= metadata.newest else newest + 1
            access.metadata = attrs.evolve(metadata, state=state, newest=newest, first=first)
        return state.epoch


def _outdated_keys(
    store: BlockStore, before: float, most: int, most_of_owner: int | None
) -> tuple[bytes, int]:
    """The owner and the `KeyRecord.first` up to which to forget; see `BlockStore.forget`."""
    # First keys that are too old, then those of owners with too many: the bound on all of them
    # applies to what is left.
    moment = round(before * MICROSECONDS)
    upto = store.outdated(moment, MAX_ID, _KEYS)
    if upto:
        return b"", upto
    bound = most if most_of_owner is None else most_of_owner
    return store.crowding(bound, _KEYS) or (b"", store.outdated(moment, most, _KEYS))
