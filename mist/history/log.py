"""The log: the contract of a history, over any block store.

One writer: appends take turns, and so do the steps of maintenance among themselves (see
`log_maintenance`). Reads use one of a few readers each, and wait for no append. What a block
store's work runs in (a thread, or the event loop) is the member's choice, see `Executor`.

The writer keeps position and totals in memory (`LogMetadata`); a log opened for reading only asks
its block store each time, since another process is writing.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from mist.attributes import Attributes
from mist.errors import HistoryUnavailable, LatestOff
from mist.history import MAX_GROUP, Durability, History, HistoryStatistics
from mist.history.block_cache import Blocks
from mist.history.block_store import BlockStore, Executor, Totals
from mist.history.channels import find_number
from mist.history.commits import Bulk, Commit, Mark
from mist.history.encoding import encode_blocks, takes_long
from mist.history.erasure import Erased, Erasure
from mist.history.inspection import inspect
from mist.history.latest.files import remove_tables
from mist.history.latest.query import LatestQuery, covers
from mist.history.layout import MICROSECONDS
from mist.history.leaps import Leap, Reading
from mist.history.log_access import LogAccess
from mist.history.log_maintenance import LogMaintenance
from mist.history.log_metadata import LogMetadata
from mist.history.numbering import ChannelPosition, channel_key
from mist.history.page_readers import Keep, Wanted
from mist.history.page_walk import PageWalk
from mist.history.part import ColumnPage
from mist.history.record import (
    KeyRecord,
    Page,
    Position,
    Problem,
    Publication,
    Trimmed,
)
from mist.history.replay import column_page, find_last, find_time, read_page
from mist.history.retention import Policy
from mist.history.selection import Selection
from mist.history.tracker import recovered

if TYPE_CHECKING:
    from mist.history.latest.index import LatestIndex
    from mist.history.mirroring import Mirror

__all__ = ["Log"]

T = TypeVar("T")

_PROBLEMS: Final = 100  # reported at most


_SLICE: Final = 0.0003  # seconds of a pass of the event loop that a walk takes


class Log(History):
    """See the module.

    Args:
        executor: runs work on the block stores.
        metadata: of the log, as opened.
        durability: what appends survive.
        read_only: whether another process may be writing.
    """

    def __init__(
        self,
        executor: Executor,
        metadata: LogMetadata,
        durability: Durability,
        *,
        read_only: bool = False,
    ) -> None:
        self._access = LogAccess(executor, metadata, read_only=read_only)
        self._maintenance = LogMaintenance(self._access)
        self._durability = durability
        self._latest: LatestIndex | None = None

    # appending

    async def append(self, publications: Sequence[Publication]) -> int:
        access = self._access
        access.check_own()
        # Encoded before its turn comes, while the writer waits for the disk for the append
        # before. Only the head knows ids.
        publications = [each for each in publications if each.batch.tag_lists]
        if not publications:
            await trio.lowlevel.checkpoint()
            raise ValueError("nothing to append")
        times: list[int] = []
        for time, some in groupby(publications, key=attrgetter("time")):
            times += [access.clock.stamp(time)] * len(list(some))
        rows = None if takes_long(publications) else encode_blocks(publications, times)
        async with access.writing():
            if rows is None:
                rows = await trio.to_thread.run_sync(encode_blocks, publications, times)
            metadata = access.metadata
            keys = _key_records(publications, times, metadata.newest)
            newest = access.newest_with(rows[-1].head.last)
            placed = [row.moved(metadata.newest) for row in rows]
            await access.write(lambda store: store.append(placed, keys), same_messages=True)
            # No await from here on: the metadata follows the block store at once.
            access.extend(placed, newest)
        return placed[0].head.first

    async def commit(self, bulk: Bulk, mark: Mark, time: float) -> tuple[Commit, bool]:
        access = self._access
        access.check_own()
        moment = access.clock.stamp(time)
        async with access.write_lock:
            known = await access.known_commit(mark)
            if known is not None:
                return known, False
            return await access.store_bulk(bulk, mark, moment), True

    async def mirror(self) -> "Mirror":
        from mist.history.mirroring import Mirror, NotAMirror  # only for nodes of an engine

        access = self._access
        access.check_writable()
        async with access.writing():
            mirrored = await access.read(lambda store: store.mirrored())
            if mirrored is None and access.metadata.newest:
                raise NotAMirror
            access.is_mirror = True
            erasures = await access.read(lambda store: store.pending_erasures())
            notes = await access.read(lambda store: store.notes())
        return Mirror(access, *(mirrored or ("", 0)), erasures, notes)

    async def committed(self, owner: str, writer: str) -> Commit | None:
        return await self._access.read(lambda store: store.committed(owner, writer))

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
        packed: bool = False,
    ) -> Page:
        if numbered and packed:
            raise ValueError("what is packed has no numbers")
        _check_room(limit, max_bytes)
        read = partial(
            self._page,
            partial(read_page, numbered=numbered, packed=packed),
            Page([], after, True),
            selection,
            after,
        )
        pages = self._access.pages
        if not packed or selection is None or pages is None:
            return await read(upto, limit, max_bytes)
        bound = await self._bound(upto)
        return await pages.read(read, self._walk, selection, after, bound, limit, max_bytes)

    @contextmanager
    def expecting(
        self, selection: Selection | None, after: int, upto: int, order: tuple[int, ...] = ()
    ) -> Iterator[None]:
        pages = self._access.pages
        if pages is None:  # of a log that isn't written here, for which nobody waits
            yield
            return
        with (
            self._access.executor.replaying(),
            nullcontext() if selection is None else pages.expecting(selection, after, upto, order),
        ):
            yield

    async def _walk(self, wanted: Sequence[Wanted], max_cost: int, keep: Keep) -> None:
        walk = PageWalk(wanted, max_cost, keep)
        while not walk.ended:
            rows = await self._access.read(walk.read, scan=True, long=True)
            began = perf_counter()
            for _ in walk.take(rows, self._access.blocks):
                if perf_counter() - began > _SLICE:
                    await trio.lowlevel.checkpoint()
                    began = perf_counter()

    async def columns(
        self,
        selection: Selection | None = None,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
    ) -> ColumnPage:
        _check_room(limit, max_bytes)
        empty = ColumnPage([], after, True)
        return await self._page(column_page, empty, selection, after, upto, limit, max_bytes)

    async def _page(
        self,
        make: Callable[[BlockStore, Blocks, Selection | None, int, int, int, int], T],
        empty: T,
        selection: Selection | None,
        after: int,
        upto: int | None,
        limit: int,
        max_bytes: int,
    ) -> T:
        bound = await self._bound(upto)
        if after >= bound:
            await trio.lowlevel.checkpoint()
            return empty
        return await self._access.read(
            lambda store: make(
                store, self._access.blocks, selection, max(after, 0), bound, limit, max_bytes
            ),
            selection,
            scan=True,
        )

    async def _bound(self, upto: int | None) -> int:
        """The highest id that is to be read."""
        newest = (await self._access.current()).newest
        return newest if upto is None else min(upto, newest)

    async def last(
        self,
        selection: Selection | None,
        n: int,
        *,
        upto: int | None = None,
        attributes: Attributes | None = None,
    ) -> int:
        place = max(await self._bound(upto), 0)
        await trio.lowlevel.checkpoint()
        while n > 0 and place > 0:
            work = partial(
                find_last,
                blocks=self._access.blocks,
                selection=selection,
                n=n,
                upto=place,
                attributes=attributes,
            )
            n, place = await self._access.read(work, selection, scan=True)
        return place

    async def before(self, time: float) -> int:
        moment = round(time * MICROSECONDS)
        place: int | None = 0
        found = 0
        while place is not None:
            work = partial(find_time, blocks=self._access.blocks, moment=moment, after=place)
            reached, place = await self._access.read(work, scan=True)
            found = max(found, reached)
        return found

    async def position(self) -> Position:
        await trio.lowlevel.checkpoint()
        metadata = await self._access.current()
        state = metadata.state
        return Position(
            state.epoch,
            metadata.first,
            metadata.newest,
            state.gone,
            state.trimmed,
            self._access.ancestors,
        )

    async def recovered(
        self, selection: Selection | None, after: int, epoch: str | None = None
    ) -> bool:
        if not (await self.position()).has(after, epoch):
            return False
        metadata = self._access.metadata
        alternatives = None if selection is None else selection.alternatives
        find_out = partial(recovered, metadata.state, metadata.tracked, alternatives, after)
        if after >= metadata.state.gone:
            return find_out()
        return await self._access.read(lambda store: find_out(), selection)

    # latest values

    async def keep_latest(self, patterns: Sequence[str]) -> None:
        access = self._access
        access.check_writable()
        path = access.executor.beside("latest")
        async with access.writing():
            were_noted = await access.write(
                lambda store: store.note_removals(on=bool(patterns)), same_messages=True
            )
        if not (patterns and were_noted):
            await _remove_latest(path)
        if not patterns:
            return
        from mist.history.latest.index import LatestIndex  # off in most servers
        from mist.history.latest.tables import LatestTables

        tables = await trio.to_thread.run_sync(LatestTables, path)
        self._latest = LatestIndex(access, tables, patterns)

    @property
    def latest_patterns(self) -> Sequence[str]:
        return () if self._latest is None else self._latest.patterns

    async def latest(
        self,
        query: LatestQuery,
        selection: Selection | None = None,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
        packed: bool = False,
    ) -> Page:
        _check_room(limit, max_bytes)
        if self._latest is None or not covers(self._latest.patterns, query.pattern):
            raise LatestOff
        bound = await self._bound(upto)
        return await self._latest.page(
            query, selection, max(after, 0), bound, limit, max_bytes, packed=packed
        )

    # channels

    async def channels(self, names: Collection[str]) -> dict[str, ChannelPosition]:
        keys = {channel_key(name): name for name in names}
        found = await self._access.read(lambda store: store.channels(list(keys)))
        return {name: found.get(key, ChannelPosition()) for key, name in keys.items()}

    async def channel_after(self, name: str, number: int) -> int:
        newest = (await self._access.current()).newest
        return await self._access.read(
            lambda store: find_number(store, self._access.tag_lists, name, number, newest)
        )

    # keys

    async def recall(self, name: bytes) -> KeyRecord | None:
        return await self._access.read(lambda store: store.recall(name))

    async def forget_keys(self, before: float, most: int, most_of_owner: int | None = None) -> bool:
        self._access.check_writable()
        return await self._maintenance.forget_keys(before, most, most_of_owner)

    async def has_outdated_keys(
        self, before: float, most: int, most_of_owner: int | None = None
    ) -> bool:
        return await self._maintenance.has_outdated_keys(before, most, most_of_owner)

    # maintenance

    async def trim(self, policy: Policy, now: float, *, sweep: bool = True) -> Trimmed:
        self._access.check_writable()
        return await self._maintenance.trim(policy, now, sweep=sweep)

    async def note_clock(self, reading: Reading) -> Leap | None:
        self._access.check_writable()
        return await self._maintenance.note_clock(reading)

    async def erase(
        self,
        erasure: Erasure,
        *,
        after: int = 0,
        upto: int | None = None,
        seconds: float | None = None,
    ) -> Erased:
        self._access.check_writable()
        erased = await self._maintenance.erase(erasure, after, upto, seconds)
        if self._latest is not None:
            await self._latest.wipe()
        else:  # one that nobody keeps up any more would go on to have what was erased
            await _remove_latest(self._access.executor.beside("latest"))
        return erased

    async def compact(self) -> bool:
        self._access.check_writable()
        if await self._maintenance.compact():
            return True
        return self._latest is not None and await self._latest.step()

    async def new_epoch(self, above: int = 0) -> str:
        self._access.check_writable()
        return await self._maintenance.new_epoch(above)

    async def sync(self) -> None:
        if self._durability is Durability.PROCESS:
            await self._access.read(lambda store: store.sync())
        else:
            await trio.lowlevel.checkpoint()

    # statistics and verification

    async def statistics(self) -> HistoryStatistics:
        def work(store: BlockStore) -> tuple[Totals, int, int | None]:
            heads = store.heads(0, 1)
            return store.totals(), store.file_size(), heads[0].oldest if heads else None

        position = await self.position()
        totals, file_size, oldest = await self._access.read(work)
        return HistoryStatistics(
            position,
            self._durability,
            totals.messages,
            totals.blocks,
            totals.size,
            file_size,
            None if oldest is None else oldest / MICROSECONDS,
            None if oldest is None else self._access.metadata.latest / MICROSECONDS,
        )

    async def verify(self) -> list[Problem]:
        problems: list[Problem] = []
        place: int | None = 0
        while place is not None and len(problems) < _PROBLEMS:
            work = partial(inspect, tag_lists=self._access.tag_lists, after=place)
            found, place = await self._access.read(work, scan=True)
            problems += found
        problems += await self._access.read(lambda store: list(islice(store.check(), _PROBLEMS)))
        return problems[:_PROBLEMS]

    async def close(self) -> None:
        if self._latest is not None:
            await self._latest.close()
        await self._access.close()


async def _remove_latest(path: str) -> None:
    """Remove latest values that nobody keeps up any more."""
    try:
        await trio.to_thread.run_sync(remove_tables, path)
    except OSError as error:
        raise HistoryUnavailable(f"{error.filename} can't be removed: {error.strerror}") from error


def _check_room(limit: int, max_bytes: int) -> None:
    if limit < 1 or max_bytes < 1:
        raise ValueError("a page needs room for a message")


def _key_records(
    publications: Sequence[Publication], times: Sequence[int], newest: int
) -> list[KeyRecord]:
    """Records of the keys of what is appended behind the id `newest`."""
    records: list[KeyRecord] = []
    first = newest + 1
    for publication, time in zip(publications, times, strict=True):
        if publication.key is not None:
            key = publication.key
            records.append(KeyRecord(first, time, key.name, key.digest))
        first += publication.count
    return records
