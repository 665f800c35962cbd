"""The contract over any block store of blocks.

One writer: appends take turns, and so do retention and housekeeping among themselves. Reads
take a reader each, of which there are a few, and wait for no one else. What a block store's work
runs in (a thread, or right here) is the member's choice, see `Executor`.

The writer knows position and totals by itself; a log opened for reading only asks its block store
each time, since somebody else is writing.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial, reduce
from itertools import islice
from typing import Final, TypeVar

import attrs
import trio

from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history import MAX_GROUP, Durability, History, HistoryStatistics
from mist.history.block import TagLists
from mist.history.block_store import BlockStore, Change, Executor, State, Totals
from mist.history.channels import find_number
from mist.history.clock import Clock
from mist.history.commits import Bulk, Commit, Mark
from mist.history.compaction import Joining, plan_joining
from mist.history.encoding import assign, counted, encode
from mist.history.erasing import Erased, Erasure
from mist.history.erasing import Plan as ErasurePlan
from mist.history.erasing import make_plan as make_erasure
from mist.history.inspection import inspect
from mist.history.layout import MICROSECONDS, Head, Row
from mist.history.log_metadata import LogMetadata, first_kept, random_epoch
from mist.history.numbering import ChannelPosition, channel_key
from mist.history.part import ColumnPage
from mist.history.record import MAX_ID, KeyRecord, Page, Position, Problem, Publication, Trimmed
from mist.history.replay import column_page, find_last, find_time, read_page
from mist.history.retention import Policy
from mist.history.retention_plan import Plan, make_plan
from mist.history.selection import Selection
from mist.history.tracker import covers, recovered, shrink
from mist.message import TagSet

__all__ = ["Log"]

log = logging.getLogger("mist.history")

T = TypeVar("T")

_PROBLEMS: Final = 100  # told of
_KEYS: Final = 10_000  # forgotten in a step


class Log(History):
    """See the module.

    Args:
        workshop: the block stores.
        metadata: of them, as opened.
        durability: what appends survive.
        read_only: whether somebody else may be writing.
    """

    def __init__(
        self,
        workshop: Executor,
        metadata: LogMetadata,
        durability: Durability,
        *,
        read_only: bool = False,
    ) -> None:
        self._workshop = workshop
        self._survey = metadata
        self._durability = durability
        self._read_only = read_only
        self._tag_lists = TagLists()
        self._clock = Clock(metadata.latest)
        self._writing = trio.Lock()
        self._keeping = trio.Lock()
        self._told: set[int] = set()  # what damage has been logged
        self._swept = 0  # key of the last block that this pass of retention went over again
        self._closed = False

    # appending

    async def append(self, publications: Sequence[Publication]) -> int:
        self._check_writable()
        # Encoded before it is this one's turn, while the writer waits for the disk for the
        # one before. Only the head knows ids.
        stored = assign(publications, 1, self._clock)
        if not stored:
            await trio.lowlevel.checkpoint()
            raise ValueError("nothing to append")
        row = encode(stored)
        marked = [each for each in publications if each.entries]
        async with self._writing:
            metadata = self._survey
            keys = [
                KeyRecord(
                    metadata.newest + each.firsts[0],
                    round(each.time * MICROSECONDS),
                    publication.key.name,
                    publication.key.digest,
                )
                for publication, each in zip(marked, stored, strict=True)
                if publication.key is not None
            ]
            newest = metadata.newest + row.head.messages
            if newest > MAX_ID:
                raise HistoryUnavailable("History is at its last id")
            row = row.moved(metadata.newest)
            await self._write(lambda store: store.append(row, keys))
            # No await from here on: what the block store has, the log metadata has.
            self._survey = attrs.evolve(
                self._survey,
                newest=newest,
                latest=row.head.newest,
                above=metadata.above.plus(row.head),
            )
        return row.head.first

    async def commit(self, bulk: Bulk, mark: Mark, time: float) -> tuple[Commit, bool]:
        self._check_writable()
        moment = self._clock.stamp(time)
        async with self._writing:
            known = await self.committed(mark.owner, mark.writer)
            if known is not None and mark.batch <= known.batch:
                return known, False
            metadata = self._survey
            if metadata.newest + bulk.count > MAX_ID:
                raise HistoryUnavailable("History is at its last id")
            heads: list[Head] = []

            def place() -> Iterator[Row]:
                heads.clear()
                newest = metadata.newest
                for row in bulk.blocks():
                    placed = counted(row).placed(newest, moment)
                    newest = placed.head.last
                    heads.append(placed.head)
                    yield placed
                if newest != metadata.newest + bulk.count:
                    raise ValueError("another number of messages than was said")

            newest = metadata.newest + bulk.count
            first, last = (metadata.newest + 1, newest) if bulk.count else (0, 0)
            commit = Commit(mark.batch, first, last, bulk.count, moment)
            rows = await self._workshop.supply(place)
            await self._write(lambda store: store.commit(rows, mark, commit))
            # No await from here on, as in `append`.
            self._survey = attrs.evolve(
                self._survey,
                newest=newest,
                latest=moment if bulk.count else metadata.latest,
                above=reduce(Totals.plus, heads, self._survey.above),
            )
        return commit, True

    async def committed(self, owner: str, writer: str) -> Commit | None:
        return await self._read(lambda store: store.committed(owner, writer))

    def _check_writable(self) -> None:
        if self._read_only:
            raise HistoryUnavailable("History is opened for reading only")

    async def _write(self, work: Callable[[BlockStore], T]) -> T:
        self._check_open()
        return await self._workshop.write(work)

    async def _read(self, work: Callable[[BlockStore], T], selection: Selection | None = None) -> T:
        self._check_open()
        is_long = selection is not None and selection.is_large
        try:
            return await self._workshop.read(work, long=is_long)
        except HistoryDamaged as error:
            self._tell(error)
            raise

    def _tell(self, damage: HistoryDamaged) -> None:
        """Log damage where a server finds it, once for each place; others are told by `raise`."""
        if not self._read_only and damage.first not in self._told:
            self._told.add(damage.first)
            log.error(
                "history is damaged; `mist history verify` tells where",
                extra={"first": damage.first, "reason": damage.reason},
            )

    def _check_open(self) -> None:
        if self._closed:
            raise HistoryUnavailable("History is closed")

    # reading

    async def read(
        self,
        selection: Selection | None = None,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
        numbered: bool = False,
    ) -> Page:
        empty = Page([], after, True)
        make = partial(read_page, numbered=numbered)
        return await self._page(make, empty, selection, after, upto, limit, max_bytes)

    async def columns(
        self,
        selection: Selection | None = None,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
    ) -> ColumnPage:
        empty = ColumnPage([], after, True)
        return await self._page(column_page, empty, selection, after, upto, limit, max_bytes)

    async def _page(
        self,
        make: Callable[[BlockStore, TagLists, Selection | None, int, int, int, int], T],
        empty: T,
        selection: Selection | None,
        after: int,
        upto: int | None,
        limit: int,
        max_bytes: int,
    ) -> T:
        if limit < 1 or max_bytes < 1:
            raise ValueError("a page needs room for a message")
        newest = (await self._current()).newest
        bound = newest if upto is None else min(upto, newest)
        if after >= bound:
            await trio.lowlevel.checkpoint()
            return empty
        return await self._read(
            lambda store: make(
                store, self._tag_lists, selection, max(after, 0), bound, limit, max_bytes
            ),
            selection,
        )

    async def last(self, selection: Selection | None, n: int, *, upto: int | None = None) -> int:
        newest = (await self._current()).newest
        place = newest if upto is None else max(min(upto, newest), 0)
        await trio.lowlevel.checkpoint()
        while n > 0 and place > 0:
            work = partial(
                find_last, tag_lists=self._tag_lists, selection=selection, n=n, upto=place
            )
            n, place = await self._read(work, selection)
        return place

    async def before(self, time: float) -> int:
        moment = round(time * MICROSECONDS)
        place: int | None = 0
        found = 0
        while place is not None:
            work = partial(find_time, tag_lists=self._tag_lists, moment=moment, after=place)
            reached, place = await self._read(work)
            found = max(found, reached)
        return found

    async def position(self) -> Position:
        await trio.lowlevel.checkpoint()
        metadata = await self._current()
        state = metadata.state
        return Position(state.epoch, metadata.first, metadata.newest, state.gone, state.trimmed)

    async def recovered(
        self, selection: Selection | None, after: int, epoch: str | None = None
    ) -> bool:
        await trio.lowlevel.checkpoint()
        metadata = await self._current()
        if epoch not in (None, metadata.state.epoch) or after > metadata.newest:
            return False
        alternatives = None if selection is None else selection.alternatives
        find_out = partial(recovered, metadata.state, metadata.tracked, alternatives, after)
        if after >= metadata.state.gone:
            return find_out()
        return await self._read(lambda store: find_out(), selection)

    # channels

    async def channels(self, names: Collection[str]) -> dict[str, ChannelPosition]:
        keys = {channel_key(name): name for name in names}
        found = await self._read(lambda store: store.channels(list(keys)))
        return {name: found.get(key, ChannelPosition()) for key, name in keys.items()}

    async def channel_after(self, name: str, number: int) -> int:
        newest = (await self._current()).newest
        return await self._read(
            lambda store: find_number(store, self._tag_lists, name, number, newest)
        )

    async def _current(self) -> LogMetadata:
        if self._read_only:
            self._survey = await self._read(LogMetadata.of)
        self._check_open()
        return self._survey

    # keys

    async def recall(self, name: bytes) -> KeyRecord | None:
        return await self._read(lambda store: store.recall(name))

    async def forget_keys(self, before: float, most: int, most_of_owner: int | None = None) -> bool:
        self._check_writable()
        moment = round(before * MICROSECONDS)

        def find(store: BlockStore) -> tuple[bytes, int]:
            # First what is too old, then who has too many: only what is left is too much for all.
            upto = store.outdated(moment, MAX_ID, _KEYS)
            if upto:
                return b"", upto
            bound = most if most_of_owner is None else most_of_owner
            return store.crowding(bound, _KEYS) or (b"", store.outdated(moment, most, _KEYS))

        async with self._keeping:
            owner, upto = await self._read(find)
            if upto:
                async with self._writing:
                    await self._write(lambda store: store.forget(upto, owner))
        return upto > 0

    # keeping

    async def trim(self, policy: Policy, now: float, *, sweep: bool = True) -> Trimmed:
        self._check_writable()
        async with self._keeping:
            metadata = self._survey
            state = covers(metadata.state, policy.patterns)
            swept = self._swept
            moment = self._clock.moment(now)
            plan = await self._read(
                lambda store: make_plan(
                    store,
                    self._tag_lists,
                    state,
                    metadata.above,
                    swept,
                    policy,
                    moment,
                    sweep=sweep,
                )
            )
            if plan.remove or (plan.floor, state) != (metadata.state.floor, metadata.state):
                await self._carry_out(plan, state)
            self._swept = plan.swept
        return Trimmed(plan.removed, plan.more)

    async def _carry_out(self, plan: Plan, state: State) -> None:
        async with self._writing:
            metadata = self._survey
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

            def work(store: BlockStore) -> int:
                store.change(change)
                return first_kept(store, metadata.newest)

            first = await self._write(work)
            above = self._survey.above
            for head in plan.sunk:
                above = above.minus(head)
            self._survey = attrs.evolve(
                self._survey, state=state, tracked=tracked, first=first, above=above
            )

    # erasing

    async def erase(self, erasure: Erasure) -> Erased:
        self._check_writable()
        selection = erasure.selection()
        upto = self._survey.newest
        place: int | None = 0
        erased = Erased()
        while place is not None:
            async with self._keeping:
                work = partial(
                    make_erasure,
                    tag_lists=self._tag_lists,
                    erasure=erasure,
                    selection=selection,
                    after=place,
                    upto=upto,
                )
                plan = await self._read(work)
                if plan.before:
                    await self._erase(plan, erasure.tags or frozenset())
            erased = erased.plus(plan.erased)
            place = plan.after
        more = True
        while more:
            async with self._keeping, self._writing:
                more = await self._write(lambda store: store.wipe())
        return erased

    async def _erase(self, plan: ErasurePlan, tags: TagSet) -> None:
        async with self._writing:
            metadata = self._survey
            # A tag's name may be what has to go; then less is known.
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

            def work(store: BlockStore) -> int:
                store.change(change)
                return first_kept(store, metadata.newest)

            first = await self._write(work)
            above = self._survey.above
            for head in plan.before:
                if head.first > state.floor:
                    above = above.minus(head)
            for row in plan.put:
                if row.head.first > state.floor:
                    above = above.plus(row.head)
            self._survey = attrs.evolve(
                self._survey, state=state, tracked=tracked, first=first, above=above
            )

    async def tidy(self) -> bool:
        self._check_writable()
        async with self._keeping:
            floor = self._survey.state.floor  # what lies below is retention's
            joining = await self._read(
                lambda store: plan_joining(store, self._tag_lists, max(floor, store.settled()))
            )
            if joining is not None:
                await self._join(joining)
                return True
            chore = await self._read(lambda store: store.chore())
            if chore is None:
                return False
            async with self._writing:
                await self._write(chore)
        return True

    async def sync(self) -> None:
        if self._durability is Durability.PROCESS:
            await self._read(lambda store: store.sync())
        else:
            await trio.lowlevel.checkpoint()

    async def _join(self, joining: Joining) -> None:
        async with self._writing:
            await self._write(lambda store: store.change(joining.change))
            above = self._survey.above
            for head in joining.before:
                above = above.minus(head)
            for row in joining.change.put:
                above = above.plus(row.head)
            self._survey = attrs.evolve(self._survey, above=above)

    async def new_epoch(self, above: int = 0) -> str:
        self._check_writable()
        async with self._keeping, self._writing:
            metadata = self._survey
            newest = max(metadata.newest, above)
            state = attrs.evolve(
                metadata.state, epoch=random_epoch(), newest=newest, latest=metadata.latest
            )
            await self._write(lambda store: store.change(Change(state=state)))
            first = metadata.first if metadata.first <= metadata.newest else newest + 1
            self._survey = attrs.evolve(metadata, state=state, newest=newest, first=first)
        return state.epoch

    # looking after it

    async def statistics(self) -> HistoryStatistics:
        def work(store: BlockStore) -> tuple[Totals, int, int | None]:
            heads = store.heads(0, 1)
            return store.totals(), store.file_size(), heads[0].oldest if heads else None

        position = await self.position()
        totals, file_size, oldest = await self._read(work)
        return HistoryStatistics(
            position,
            self._durability,
            totals.messages,
            totals.blocks,
            totals.size,
            file_size,
            None if oldest is None else oldest / MICROSECONDS,
            None if oldest is None else self._survey.latest / MICROSECONDS,
        )

    async def verify(self) -> list[Problem]:
        problems: list[Problem] = []
        place: int | None = 0
        while place is not None and len(problems) < _PROBLEMS:
            work = partial(inspect, tag_lists=self._tag_lists, after=place)
            found, place = await self._read(work)
            problems += found
        problems += await self._read(lambda store: list(islice(store.check(), _PROBLEMS)))
        return problems[:_PROBLEMS]

    async def close(self) -> None:
        with trio.CancelScope(shield=True):
            async with self._keeping, self._writing:
                self._closed = True
                await self._workshop.close()
