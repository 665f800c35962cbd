"""The index of latest values of a log: follows it, and answers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from mist.errors import HistoryDamaged
from mist.history.block import Block
from mist.history.block_store import State
from mist.history.latest.entries import Entries, next_rows, which_exist
from mist.history.latest.pages import latest_page
from mist.history.latest.query import LatestQuery, Patterns
from mist.history.latest.tables import LatestTables
from mist.history.layout import Row
from mist.history.log_access import LogAccess
from mist.history.record import Page
from mist.history.selection import Selection

__all__ = ["LatestIndex"]

T = TypeVar("T")

_REMOVALS: Final = 1_000  # ranges of ids read at a time
_FORGOTTEN: Final = 5_000  # entries looked at in a step


class LatestIndex:
    """See the package. One for each log.

    Args:
        access: to the log.
        tables: opened. They are this object's from now on.
        patterns: of the tags that are keys; at least one.
    """

    def __init__(self, access: LogAccess, tables: LatestTables, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._access = access
        self._tables = tables
        self._keys = Patterns(patterns)
        self._lock = trio.Lock()  # what has it may use the tables, in any thread
        self._thread = trio.CapacityLimiter(1)
        self._seen: State | None = None  # all that was removed up to this is forgotten
        self._closed = False

    async def page(
        self,
        query: LatestQuery,
        selection: Selection | None,
        after: int,
        upto: int,
        limit: int,
        max_bytes: int,
        *,
        packed: bool,
    ) -> Page:
        """See `History.latest`."""
        access = self._access
        async with self._lock:
            access.check_open()
            await self._follow(upto)
            return await access.read(
                lambda store: latest_page(
                    store,
                    access.blocks,
                    self._tables,
                    query,
                    selection,
                    after,
                    upto,
                    limit,
                    max_bytes,
                    packed=packed,
                ),
                selection,
                scan=True,
                long=True,
            )

    async def step(self) -> bool:
        """Follow the log in one bounded step. Returns whether there is more to do now."""
        async with self._lock:
            if self._closed:
                return False
            await self._forget_removed()
            newest: int = self._access.metadata.newest
            if self._tables.upto < newest:
                await self._add_next(newest)
            else:
                await self._run(self._tables.commit_in_time)
            return bool(self._tables.upto < newest)

    async def wipe(self) -> None:
        """Leave nothing in the file of what was erased from the log."""
        async with self._lock:
            await self._forget_removed()
            await self._run(self._tables.wipe)

    async def statistics(self) -> tuple[int, int]:
        """How many entries there are, and the bytes that they take. O(entries)."""
        async with self._lock:
            return await self._run(lambda: (self._tables.count(), self._tables.size()))

    async def close(self) -> None:
        """Make all of it durable, and close it. Idempotent."""
        with trio.CancelScope(shield=True):
            async with self._lock:
                if not self._closed:
                    self._closed = True
                    await self._run(self._tables.close)

    async def _follow(self, upto: int) -> None:
        await self._forget_removed()
        while self._tables.upto < upto:
            await self._add_next(upto)

    async def _add_next(self, upto: int) -> None:
        """Add the next blocks."""
        after = self._tables.upto
        rows, reached = await self._access.read(
            lambda store: next_rows(store, after, upto), scan=True, long=True
        )
        await self._run(partial(self._add, rows, reached))

    def _add(self, rows: Sequence[Row], reached: int) -> None:
        entries = Entries(self._tables, self._keys)
        for row in rows:
            try:
                entries.add(Block(row, self._access.tag_lists))
            except HistoryDamaged:  # which nobody can read
                continue
        self._tables.add(entries.ids, entries.kinds, reached)
        self._tables.commit_in_time()

    async def _forget_removed(self) -> None:
        """Forget what was removed from the log, and all if it is another log by now."""
        metadata, tables = self._access.metadata, self._tables
        if metadata.state is self._seen and tables.epoch == metadata.state.epoch:
            return
        while True:
            removals = await self._access.read(lambda store: store.removals(_REMOVALS))
            if (
                tables.epoch != metadata.state.epoch
                or tables.patterns != self.patterns
                or tables.upto > metadata.newest
                or any(first == 0 for _, first, _ in removals)
            ):
                await self._run(partial(tables.begin, metadata.state.epoch, self.patterns))
            elif removals:
                for _, first, last in removals:
                    await self._forget_between(first, last)
                await self._run(tables.commit)
            if not removals:
                break
            number = removals[-1][0]
            async with self._access.writing():
                await self._access.write(
                    lambda store: store.forget_removals(number),  # noqa: B023
                    same_messages=True,
                )
        self._seen = metadata.state

    async def _forget_between(self, first: int, last: int) -> None:
        """Forget the entries in a range of ids whose messages are gone."""
        access, tables = self._access, self._tables
        place = first - 1
        while True:
            ids = await self._run(partial(tables.ids, place, last, _FORGOTTEN))
            if not ids:
                return
            exist = await access.read(
                lambda store: which_exist(store, access.tag_lists, list(ids)),  # noqa: B023
                scan=True,
                long=True,
            )
            gone = [each for each in ids if each not in exist]
            if gone:
                await self._run(partial(tables.forget, gone))
            place = ids[-1]

    async def _run(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._thread)
