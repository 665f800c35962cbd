"""Access to a log's block stores: running work on them, the locks, and the log's metadata.

What `Log` and `LogMaintenance` share. One of them writes at a time, and the one that writes
updates the metadata before anything else runs, so that the two never differ.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history.block_cache import Blocks
from mist.history.block_store import BlockStore, Executor
from mist.history.clock import Clock
from mist.history.commits import Bulk, Commit, Mark, place_bulk
from mist.history.layout import Head, Row
from mist.history.log_metadata import LogMetadata
from mist.history.record import MAX_ID
from mist.history.selection import Selection
from mist.history.shared_pages import SharedPages

__all__ = ["LogAccess"]

log = logging.getLogger("mist.history")

T = TypeVar("T")


class LogAccess:
    """See the module.

    Args:
        executor: runs work on the block stores.
        metadata: of the log, as opened.
        read_only: whether another process may be writing.

    Attributes:
        metadata: as of the last write; of a log opened for reading only, see `current`.
        blocks: those that were read last.
        pages: those that several asked for; None where another process may be writing.
        tag_lists: shared by all blocks that are read.
        clock: the log's.
        is_mirror: whether it mirrors another log from now on.
        ancestors: see `Position`.
        write_lock: held for each change of the block store and of the metadata.
        maintenance_lock: held from planning a step of maintenance until it is carried out.
            Taken before `write_lock`.
    """

    def __init__(self, executor: Executor, metadata: LogMetadata, *, read_only: bool) -> None:
        self.metadata = metadata
        self.blocks = Blocks()
        self.pages = None if read_only else SharedPages()
        self.tag_lists = self.blocks.tag_lists
        self.clock = Clock(metadata.latest)
        self.write_lock = trio.Lock()
        self.maintenance_lock = trio.Lock()
        self.is_mirror = False
        self.ancestors: Mapping[str, int] = {}
        self._executor = executor
        self._read_only = read_only
        self._logged_damage: set[int] = set()  # first ids of blocks
        self._closed = False

    def check_writable(self) -> None:
        """Raises HistoryUnavailable where the log is opened for reading only."""
        if self._read_only:
            raise HistoryUnavailable("History is opened for reading only")

    def check_own(self) -> None:
        """Raises HistoryUnavailable where nothing of its own can be appended to the log."""
        self.check_writable()
        if self.is_mirror:
            raise HistoryUnavailable("History is a mirror")

    def check_open(self) -> None:
        """Raises HistoryUnavailable where the log is closed."""
        if self._closed:
            raise HistoryUnavailable("History is closed")

    async def current(self) -> LogMetadata:
        """The metadata as of now. O(blocks) where another process may be writing."""
        if self._read_only:
            self.metadata = await self.read(LogMetadata.of)
        self.check_open()
        return self.metadata

    async def read(
        self,
        work: Callable[[BlockStore], T],
        selection: Selection | None = None,
        *,
        scan: bool = False,
        long: bool = False,
    ) -> T:
        """Run `work` on a block store that is only read.

        Args:
            selection: what is read of it; a large one takes the work off the event loop.
            scan, long: see `Executor.read`.
        """
        self.check_open()
        is_long = long or (selection is not None and selection.is_large)
        try:
            return await self._executor.read(work, long=is_long, scan=scan)
        except HistoryDamaged as error:
            self._log_damage(error)
            raise

    async def write(self, work: Callable[[BlockStore], T], *, same_messages: bool = False) -> T:
        """Run `work` on the block store that is written. The caller holds `write_lock`.

        Args:
            same_messages: whether it leaves all messages that there are as they are. Those behind
                them `extend` is told of.
        """
        self.check_open()
        try:
            return await self._executor.write(work)
        finally:
            if not same_messages and self.pages is not None:
                self.pages.clear()

    def extend(self, rows: Sequence[Row], newest: int) -> None:
        """Have the metadata follow the block store, in which these were appended just now.

        Args:
            newest: see `LogMetadata.extended`.
        """
        self.metadata = self.metadata.extended([row.head for row in rows], newest)
        if self.pages is not None:
            self.pages.appended(rows)

    def newest_with(self, count: int) -> int:
        """The newest id once there are so many more. Raises HistoryUnavailable past the last."""
        newest = self.metadata.newest + count
        if newest > MAX_ID:
            raise HistoryUnavailable("History is at its last id")
        return newest

    async def known_commit(self, mark: Mark) -> Commit | None:
        """The writer's last commit, where this batch is that one or an earlier one."""
        known = await self.read(lambda store: store.committed(mark.owner, mark.writer))
        return known if known is not None and mark.batch <= known.batch else None

    async def store_bulk(
        self, bulk: Bulk, mark: Mark, moment: int, offset: int | None = None
    ) -> Commit:
        """Store a writer's batch. The caller holds `write_lock`, and knows that it is new.

        Args:
            moment: its messages' time, microseconds.
            offset: see `BlockStore.commit`.
        """
        before, newest = self.metadata.newest, self.newest_with(bulk.count)
        first, last = (before + 1, newest) if bulk.count else (0, 0)
        commit = Commit(mark.batch, first, last, bulk.count, moment)
        heads: list[Head] = []
        rows = await self._executor.supply(partial(place_bulk, bulk, before, moment, heads))
        await self.write(lambda store: store.commit(rows, mark, commit, offset))
        # No await from here on: the metadata follows the block store at once.
        self.metadata = self.metadata.extended(heads, newest)
        return commit

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Hold `write_lock`. No checkpoint where it is free: that is a pass of the loop."""
        try:
            self.write_lock.acquire_nowait()
        except trio.WouldBlock:
            await self.write_lock.acquire()
        try:
            yield
        finally:
            self.write_lock.release()

    @property
    def executor(self) -> Executor:
        """What runs the work."""
        return self._executor

    async def close(self) -> None:
        """Close the block stores, once no write is under way. Idempotent."""
        with trio.CancelScope(shield=True):
            async with self.maintenance_lock, self.write_lock:
                self._closed = True
                await self._executor.close()

    def _log_damage(self, damage: HistoryDamaged) -> None:
        """Log damage once for each block, by the server; other readers have the exception."""
        if not self._read_only and damage.first not in self._logged_damage:
            self._logged_damage.add(damage.first)
            log.error(
                "history is damaged; `mist history verify` tells where",
                extra={"first": damage.first, "last": damage.last, "reason": damage.reason},
            )
