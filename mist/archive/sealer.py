"""The sealer: it moves what the log holds into segments, a while after it was published.

What comes is read from the log again, in pieces, and written to a segment that stays open. It
is finished and entered in the manifest when it has enough rows or bytes, when its oldest
message has waited long enough, or when the next message is of another day. So work is spread
over time, memory holds a row group at most, and a crash costs what was written of the open
segment: its messages are still in the log, and are read from there once more.

The log stays the truth about ids. Where the archive knows higher ones than the log, as after a
power cut that took unsynced messages back or with a log that was deleted, the log goes on above
them in a new epoch. So an id never means two things.

All work on files and columns is done in a worker thread, in pieces of a few milliseconds.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import trio

from mist.archive.manifest import Archive, ArchiveError, Manifest
from mist.archive.rows import to_batch
from mist.archive.schema import MESSAGES, ROW_GROUP
from mist.archive.segments import SegmentWriter, day_of, read_segment
from mist.errors import HistoryDamaged, HistoryUnavailable, MistError
from mist.history import History, Page, StoredMessage

__all__ = ["SealPolicy", "Sealer", "open_sealer"]

log = logging.getLogger("mist.archive")

T = TypeVar("T")

_LOOK: Final = 1.0  # seconds between two looks at the log
_PAGE: Final = 10_000  # messages read at a time
_HELD: Final = 16 << 20  # bytes of rows that wait to be a row group
_RETRY: Final = 10.0  # seconds
_SWEEP: Final = 600.0  # seconds between two sweeps


@attrs.frozen
class SealPolicy:
    """When a segment is finished: whichever comes first.

    Attributes:
        rows, bytes: it has as many.
        seconds: its oldest message has waited as long.
    """

    rows: int = 500_000
    bytes: int = 64 << 20
    seconds: float = 600.0


@attrs.define
class _Open:
    """The segment that is being written, and what waits for it.

    Attributes:
        writer: of the segment.
        held, rows, size: batches that wait to be a row group, their rows and bytes.
        first, last: ids of its rows.
        since: when its first row was read, on trio's clock.
    """

    writer: SegmentWriter
    first: int
    since: float
    last: int = 0
    held: list[pa.RecordBatch] = attrs.field(factory=list)
    rows: int = 0
    size: int = 0


class Sealer:
    """Seals one log into one archive. Made by `open_sealer`.

    Attributes:
        archive, history: as given.
        manifest: the newest that is known.
        failing: whether the last attempt failed.
        failures: attempts that did.
    """

    def __init__(
        self, archive: Archive, history: History, policy: SealPolicy, manifest: Manifest, lock: int
    ) -> None:
        self.archive = archive
        self.history = history
        self.manifest = manifest
        self.failing = False
        self.failures = 0
        self._policy = policy
        self._lock = lock
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._after = manifest.sealed  # read up to here
        self._lost: list[tuple[int, int]] = []
        self._open: _Open | None = None

    @property
    def sealed(self) -> int:
        """The highest id that is taken care of; see `Manifest`."""
        return self.manifest.sealed

    async def run(self) -> None:
        """Seal until cancelled. A failure is logged, once until it is over, and tried again."""
        next_sweep = trio.current_time()
        while True:
            pause = _LOOK
            try:
                async with self._turn:
                    await self._take()
                    if trio.current_time() >= next_sweep:
                        next_sweep = trio.current_time() + _SWEEP
                        await self._in_thread(self.archive.messages.sweep)
            except (ArchiveError, HistoryUnavailable) as error:
                await self._fail(error)
                pause = _RETRY
            else:
                self.failing = False
            await trio.sleep(pause)

    async def seal_now(self) -> int:
        """Seal all that the log holds at this moment.

        Returns:
            `sealed`, then.

        Raises:
            ArchiveError, HistoryUnavailable: it can't be done now.
        """
        async with self._turn:
            try:
                await self._take()
                await self._finish()
            except (ArchiveError, HistoryUnavailable) as error:
                await self._fail(error)
                raise
            self.failing = False
        return self.sealed

    async def aclose(self) -> None:
        """Let go of the archive. What is not sealed will be when it is opened again."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                await self._abandon()
                if self._lock >= 0:
                    os.close(self._lock)
                    self._lock = -1

    async def _take(self) -> None:
        """Read on to the end of the log, and finish what is due."""
        position = await self.history.position()
        # What went before it was read, and not for a rule: a part of the log that is no more.
        self._miss(self._after + 1, min(position.first, position.newest + 1) - 1)
        while self._after < position.newest:
            try:
                page = await self.history.read(after=self._after, upto=position.newest, limit=_PAGE)
            except HistoryDamaged as damage:
                if damage.last <= self._after:
                    raise
                self._miss(max(damage.first, self._after + 1), damage.last)
                continue
            await self._add(page)
            self._after = position.newest if page.complete else page.after
        due = self._open is not None and (
            trio.current_time() - self._open.since >= self._policy.seconds
        )
        if due or (self._open is None and self._after > self.sealed):
            await self._finish()

    def _miss(self, first: int, last: int) -> None:
        if first <= last:
            log.warning("lost to the archive", extra={"first": first, "last": last})
            self._lost.append((first, last))
            self._after = last

    async def _add(self, page: Page) -> None:
        if not page.stored:
            return
        for batch in await self._in_thread(partial(_by_day, page)):
            day = day_of(batch.column("time")[0].cast(pa.int64()).as_py())
            if self._open is not None and self._open.writer.day != day:
                await self._finish(upto=self._open.last)
            current = self._open
            if current is None:
                writer = SegmentWriter(self.archive.messages, MESSAGES, day)
                current = self._open = _Open(
                    writer, batch.column("id")[0].as_py(), trio.current_time()
                )
            current.held.append(batch)
            current.rows += batch.num_rows
            current.size += batch.nbytes
            current.last = batch.column("id")[-1].as_py()
            if current.rows >= ROW_GROUP or current.size >= _HELD:
                await self._write(current)
            policy = self._policy
            if current.writer.rows + current.rows >= policy.rows or (
                current.writer.rows and current.writer.bytes >= policy.bytes
            ):
                await self._finish(upto=current.last)

    async def _write(self, current: _Open) -> None:
        held, current.held, current.rows, current.size = current.held, [], 0, 0
        await self._in_thread(lambda: current.writer.write(pa.Table.from_batches(held)))

    async def _finish(self, upto: int | None = None) -> None:
        """Enter the open segment, and that all up to an id is taken care of.

        Args:
            upto: the id; None is all that was read.
        """
        sealed = self._after if upto is None else upto
        current = self._open
        if current is None and sealed <= self.sealed:
            return
        epoch = (await self.history.position()).epoch
        segments = []
        if current is not None:
            if current.held:
                await self._write(current)
            segments = [
                await self._in_thread(lambda: current.writer.finish(current.first, current.last))
            ]
        lost = tuple(each for each in self._lost if each[0] <= sealed)

        def enter(manifest: Manifest) -> Manifest:
            return msgspec.structs.replace(
                manifest.plus(*segments),
                epoch=epoch,
                sealed=max(manifest.sealed, sealed),
                lost=(*manifest.lost, *lost),
            )

        self.manifest = await self._in_thread(partial(self.archive.messages.change, enter))
        self._lost = [each for each in self._lost if each not in lost]
        self._open = None
        for segment in segments:
            log.info("sealed", extra={"file": segment.file, "rows": segment.rows})

    async def _fail(self, error: MistError) -> None:
        """Begin anew behind what is sealed."""
        self.failures += 1
        if not self.failing:
            log.warning("the archive can't be kept up", extra={"reason": str(error)})
        self.failing = True
        await self._abandon()

    async def _abandon(self) -> None:
        current, self._open = self._open, None
        self._lost.clear()
        self._after = self.manifest.sealed
        if current is not None:
            await self._in_thread(current.writer.abandon)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._thread)


async def open_sealer(
    archive: Archive, history: History, policy: SealPolicy | None = None
) -> Sealer:
    """A sealer of a log that goes on where the archive stands. Close it after use.

    To be called before anything is published: it may have the log begin a new epoch.

    Raises:
        ArchiveError: one line that says why not: the archive is another log's, in use by
            another server, or can't be read or written.
        HistoryUnavailable: the log can't be read.
    """
    lock = await trio.to_thread.run_sync(_lock, archive)
    try:
        manifest = await trio.to_thread.run_sync(archive.messages.current)
        position = await history.position()
        if not manifest.generation:  # what has left the log before is no loss to this archive
            manifest = msgspec.structs.replace(manifest, sealed=position.first - 1)
        elif manifest.sealed > position.newest:
            await history.new_epoch(manifest.sealed)
            log.warning(
                "the archive holds more than the history; ids go on above it",
                extra={"archive": manifest.sealed, "history": position.newest},
            )
        elif manifest.segments and manifest.epoch != position.epoch:
            await _compare(archive, manifest, history)
        return Sealer(archive, history, policy or SealPolicy(), manifest, lock)
    except BaseException:
        os.close(lock)
        raise


def _lock(archive: Archive) -> int:
    """Be the one server that seals into it."""
    handle = os.open(
        archive.folder / "_manifest" / "server-lock",
        os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
        0o600,
    )
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ArchiveError(f"archive {archive.folder}: another server uses it") from None
    return handle


async def _compare(archive: Archive, manifest: Manifest, history: History) -> None:
    """See that archive and log, of two epochs, are of one kin: that they agree where both are."""
    segment = manifest.segments[-1]
    columns = ["id", "time", "tags", "data"]
    rows = await trio.to_thread.run_sync(
        lambda: read_segment(archive.messages, segment, columns).slice(segment.rows - 1).to_pylist()
    )
    last = rows[0]["id"]
    try:
        page = await history.read(after=last - 1, upto=last)
    except HistoryDamaged:
        return  # which is no reason to think so
    for message in page.messages():
        if not _is_same(message, rows[0]):
            raise ArchiveError(
                f"archive {archive.folder}: of another history; use another folder for this one"
            )


def _is_same(message: StoredMessage, row: dict[str, object]) -> bool:
    return (sorted(message.tags), message.data) == (row["tags"], row["data"])


def _by_day(page: Page) -> Sequence[pa.RecordBatch]:
    """A page as rows, cut where a day ends."""
    batch = to_batch(page.stored)
    days = pc.divide(batch.column("time").cast(pa.int64()), 86_400_000_000)
    starts = [0]
    if days[0] != days[-1]:
        numbers = days.to_numpy()
        starts += [int(n) + 1 for n in (numbers[1:] != numbers[:-1]).nonzero()[0]]
    ends = [*starts[1:], batch.num_rows]
    return [batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
