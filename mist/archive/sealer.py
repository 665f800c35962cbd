"""The sealer: it moves what the log holds into segments, a while after it was published.

What comes is read from the log again, in pieces, and written to a segment that stays open. It
is finished and entered in the manifest when it is full, when its oldest message has waited long
enough, or when the next message is of another day. So work is spread over time, memory holds a
row group at most, and a crash costs what was written of the open segment: its messages are
still in the log, and are read from there once more.

Nothing is entered that the log could still lose: before each entry the log is brought to the
disk (`History.sync`), whatever its durability. And retention leaves in the log what isn't
sealed yet, as far as the log's bound in bytes allows (`Policy.sealed`); what it has to take
nevertheless, and what is damaged, is entered as lost. See `kinship` for an archive and a log
that don't fit.

All work on files and columns is a worker thread's. While a backlog is sealed, the thread rests
for as long as it worked, so that whoever publishes keeps most of the interpreter.
"""

import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec
import trio

from mist.archive.filling import Filling, Piece, SealPolicy, cut
from mist.archive.lineage import settle
from mist.archive.manifest import Archive, ArchiveError, Manifest, Segment
from mist.archive.ranges import joined
from mist.archive.rows import parts_to_batch
from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history import ColumnPage, Erased, Erasure, History

__all__ = ["SealPolicy", "Sealer", "open_sealer"]

log = logging.getLogger("mist.archive")

T = TypeVar("T")

_LOOK: Final = 1.0  # seconds between two looks at the log, at most
_PAGE: Final = 10_000  # messages read at a time
_RETRY: Final = 10.0  # seconds
_SWEEP: Final = 600.0  # seconds between two sweeps
_GRACE: Final = 3600.0  # seconds
_MAX_LOST: Final = 1_000  # ranges that are told apart


class Sealer:
    """Seals one log into one archive. Made by `open_sealer`.

    Args:
        forgiven: ids that are missing up to this one are no loss: they left the log before
            there was an archive.
        lock: descriptor to close at the end.

    Attributes:
        archive, history: as given.
        manifest: the newest that is known.
        failing: whether the last attempt failed.
        failures: attempts that did.
    """

    def __init__(
        self,
        archive: Archive,
        history: History,
        policy: SealPolicy,
        manifest: Manifest,
        forgiven: int,
        lock: int,
    ) -> None:
        self.archive = archive
        self.history = history
        self.manifest = manifest
        self.failing = False
        self.failures = 0
        self._policy = policy
        self._forgiven = forgiven
        self._lock = lock
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._after = manifest.sealed  # read up to here
        self._lost: list[tuple[int, int]] = []
        self._open: Filling | None = None
        self._broken = False  # whether the last attempt was cut short
        self._hurried = 0  # who waits for everything to be sealed

    @property
    def sealed(self) -> int:
        """The highest id that is taken care of; see `Manifest`."""
        return self.manifest.sealed

    async def run(self) -> None:
        """Seal until cancelled. A failure is logged, once until it is over, and tried again."""
        look = min(_LOOK, max(self._policy.seconds / 4, 0.01))
        next_sweep = trio.current_time()
        while True:
            pause = look
            try:
                async with self._attempt():
                    await self._take()
                    if self._is_due():
                        await self._finish(self._after)
                    if trio.current_time() >= next_sweep:
                        next_sweep = trio.current_time() + _SWEEP
                        # Not what is open: it may be written to once in a while only.
                        grace = max(_GRACE, 2 * self._policy.seconds)
                        await self._in_thread(partial(self.archive.messages.sweep, grace=grace))
                        await self._look_again()
            except (ArchiveError, HistoryUnavailable):
                pause = _RETRY
            except Exception:  # a mistake of ours; that is no reason to end a server
                log.exception("sealing failed")
                self.failures += 1
                pause = _RETRY
            await trio.sleep(pause)

    async def seal_now(self) -> int:
        """Seal all that the log holds at this moment.

        Returns:
            `sealed`, then.

        Raises:
            ArchiveError, HistoryUnavailable: it can't be done now.
        """
        self._hurried += 1
        try:
            async with self._attempt():
                await self._take()
                await self._finish(self._after)
        finally:
            self._hurried -= 1
        return self.sealed

    async def erase(self, erasure: Erasure) -> Erased:
        """Take messages out of the log, for good, and see that none of them is sealed from now
        on; see `History.erase`. Segments that are there already are for others to rewrite.
        """
        async with self._turn:
            self._broken = True  # so that what was read of the log is read anew
            try:
                return await self.history.erase(erasure)
            finally:
                with trio.CancelScope(shield=True):
                    await self._abandon()

    async def aclose(self) -> None:
        """Let go of the archive. What is not sealed will be when it is opened again."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                self._broken = True
                await self._abandon()
                if self._lock >= 0:
                    os.close(self._lock)
                    self._lock = -1

    # attempts

    @asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        """One at a time. Where the last was cut short, by an error or by being cancelled, what
        it left is dropped, and this one begins at what is sealed."""
        async with self._turn:
            try:
                if self._broken:
                    await self._begin_anew()
                self._broken = True
                yield
            except (ArchiveError, HistoryUnavailable) as error:
                self.failures += 1
                if not self.failing:
                    log.warning("the archive can't be kept up", extra={"reason": str(error)})
                self.failing = True
                await self._abandon()  # at once: the disk may be full
                raise
            self._broken = self.failing = False

    async def _begin_anew(self) -> None:
        await self._abandon()
        manifest = await self._in_thread(self.archive.messages.current)
        if manifest.epoch != (await self.history.position()).epoch:
            raise ArchiveError(f"archive {self.archive.folder}: another one is in its place")
        self.manifest = manifest
        self._after = manifest.sealed

    async def _abandon(self) -> None:
        current, self._open = self._open, None
        self._lost.clear()
        if current is not None:
            await self._in_thread(current.abandon)

    async def _look_again(self) -> None:
        """Others change the archive as well: what is told of it isn't much older than that."""
        manifest = await self._in_thread(self.archive.messages.current)
        if (manifest.epoch, manifest.sealed) == (self.manifest.epoch, self.manifest.sealed):
            self.manifest = manifest

    # reading on

    async def _take(self) -> None:
        """Read on to the end of the log, and finish what is full."""
        newest = (await self.history.position()).newest
        while self._after < newest:
            began = trio.current_time()
            try:
                page = await self.history.columns(after=self._after, upto=newest, limit=_PAGE)
            except HistoryDamaged as damage:
                if damage.last <= self._after:
                    raise
                # Nothing is left ahead of the block, or it would have been read.
                expired = (await self.history.position()).expired
                self._miss(self._after + 1, min(damage.first - 1, expired))
                last = min(damage.last, newest)
                self._miss(max(damage.first, self._after + 1), last)
                self._after = last
            else:
                await self._add(page)
                self._after = page.after
            if not self._hurried:
                await trio.sleep(trio.current_time() - began)

    async def _add(self, page: ColumnPage) -> None:
        # Asked after it was read: what went before is known to have gone.
        expired = (await self.history.position()).expired
        if expired <= self._forgiven:
            expired = 0
        pieces, gaps = await self._in_thread(partial(cut, page, self._after, expired))
        for first, last in gaps:
            self._miss(max(first, self._forgiven + 1), last)
        for piece in pieces:
            await self._fill(piece)

    async def _fill(self, piece: Piece) -> None:
        rest = piece.batch
        while rest.num_rows:
            if self._open is not None and self._open.day != piece.day:
                await self._finish(self._open.last)
            if self._open is None:
                first = rest.column("id")[0].as_py()
                table = self.archive.messages
                self._open = Filling(table, self._policy, piece.day, first, trio.current_time())
            rest = rest.slice(await self._in_thread(partial(self._open.add, rest)))
            if self._open.full:
                await self._finish(self._open.last)

    def _miss(self, first: int, last: int) -> None:
        if first <= last:
            log.warning("lost to the archive", extra={"first": first, "last": last})
            self._lost.append((first, last))

    # finishing

    def _is_due(self) -> bool:
        if self._open is None:
            return self._after > self.sealed
        return trio.current_time() - self._open.since >= self._policy.seconds

    async def _finish(self, upto: int) -> None:
        """Enter the open segment, and that all up to an id is taken care of."""
        current = self._open
        if current is None and upto <= self.sealed:
            return
        segments = [] if current is None else [await self._in_thread(current.finish)]
        lost = [each for each in self._lost if each[0] <= upto]
        await self.history.sync()
        self.manifest = await self._in_thread(partial(self._enter, segments, lost, upto))
        self._lost = self._lost[len(lost) :]
        self._open = None
        for segment in segments:
            log.info("sealed", extra={"file": segment.file, "rows": segment.rows})

    def _enter(
        self, segments: Sequence[Segment], lost: Sequence[tuple[int, int]], upto: int
    ) -> Manifest:
        expected = self.manifest

        def edit(manifest: Manifest) -> Manifest:
            if (manifest.epoch, manifest.sealed) != (expected.epoch, expected.sealed):
                raise ArchiveError(f"archive {self.archive.folder}: another one is in its place")
            return msgspec.structs.replace(
                manifest.plus(*segments),
                sealed=upto,
                lost=joined([*manifest.lost, *lost], _MAX_LOST),
            )

        return self.archive.messages.change(edit)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def run() -> T:
            try:
                return work()
            except OSError as error:
                reason = error.strerror or str(error)
                raise ArchiveError(f"archive {self.archive.folder}: {reason}") from error

        return await trio.to_thread.run_sync(run, limiter=self._thread)


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
        # With its first array, pyarrow imports pandas where there is one. That takes half a
        # second, and better now than beside peers.
        await trio.to_thread.run_sync(parts_to_batch, [])
        manifest = await settle(archive, history)
        # Of an archive in which nothing is yet, the log may have rules, and so gaps, of before.
        forgiven = 0 if manifest.segments else (await history.position()).expired
        return Sealer(archive, history, policy or SealPolicy(), manifest, forgiven, lock)
    except BaseException:
        os.close(lock)
        raise


def _lock(archive: Archive) -> int:
    """Be the one server that seals into it."""
    path = archive.folder / "_manifest" / "server-lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ArchiveError(f"archive {path}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ArchiveError(f"archive {archive.folder}: another server uses it") from None
    except OSError as error:
        os.close(handle)
        raise ArchiveError(f"archive {path}: {error.strerror}") from error
    return handle
