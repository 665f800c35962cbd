"""The sealer: moves the messages of the log into segments, some minutes after publication.

Messages are read from the log again, in pages, and written to an open segment. It is finished
and listed in the manifest when it is full, when its oldest message has waited long enough, or
when the next message is of another day. So work is spread over time, memory holds at most a row
group, and a crash costs only the open segment: its messages are still in the log, and are read
again.

Nothing is listed that the log could still lose: the log is synced to the disk before
(`History.sync`), whatever its durability. And retention leaves in the log what is not sealed yet,
as far as the log's limit in bytes allows (`Policy.sealed`); what it has to remove nevertheless,
and what is damaged, is listed as lost. `lineage` handles an archive and a log that don't match.

All work on files and columns runs in a worker thread. While a backlog is sealed, the thread
sleeps for as long as it worked, so that publishers get most of the interpreter.

Where nodes share an archive, each of their sealers has a tenure (`sharing`). It ends by itself once
another node seals, and what it had not listed by then is deleted.
"""

import logging
import math
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar

import msgspec
import trio

from mist.archive.manifest import ArchiveError, Manifest, Segment, join_ranges
from mist.archive.open_segment import OpenSegment, Piece, SealPolicy, cut
from mist.archive.table import Archive
from mist.archive.tenure import Superseded, Tenure
from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history import ColumnPage, Erased, Erasure, History
from mist.outage import Outage

__all__ = ["SealPolicy", "Sealer", "outage_of_archive"]

log = logging.getLogger("mist.archive")

T = TypeVar("T")

_LOOK: Final = 1.0  # seconds between two polls of the log, at most
_PAGE: Final = 10_000  # messages read at a time
_RETRY: Final = 10.0  # seconds
_SWEEP: Final = 600.0  # seconds between two sweeps
_GRACE: Final = 3600.0  # seconds
_MAX_LOST: Final = 1_000  # ranges in a manifest


def outage_of_archive() -> Outage:
    """Through which the log is told of failures to seal."""
    return Outage(log, "the archive can't be kept up", "the archive is kept up again")


class Sealer:
    """Seals one log into one archive. Made by `mist.archive.opening`.

    Args:
        forgiven: missing ids up to this one are no loss: retention removed them before there
            was an archive.
        lock: descriptor of the lock file, closed by `aclose`; -1 where the caller has it.
        tenure: None is without end.
        outage: of the archive, where it may have begun before; else there is none yet.

    Attributes:
        archive, history: as given.
        manifest: the newest known.
        failures: failed attempts.
    """

    def __init__(
        self,
        archive: Archive,
        history: History,
        policy: SealPolicy,
        manifest: Manifest,
        forgiven: int,
        lock: int,
        tenure: Tenure | None = None,
        outage: Outage | None = None,
    ) -> None:
        self.archive = archive
        self.history = history
        self.manifest = manifest
        self.failures = 0
        self._policy = policy
        self._forgiven = forgiven
        self._lock = lock
        self._tenure = tenure
        self._outage = outage or outage_of_archive()
        self._closed = False
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._after = manifest.sealed  # read up to here
        self._lost: list[tuple[int, int]] = []
        self._open: OpenSegment | None = None
        self._broken = False  # whether the last attempt was interrupted
        self._seal_now_calls = 0  # under way

    @property
    def failing(self) -> bool:
        """Whether the last attempt failed."""
        return bool(self._outage)

    @property
    def sealed(self) -> int:
        """The highest id that was handled; see `Manifest`."""
        return self.manifest.sealed

    @property
    def sealing(self) -> bool:
        """Whether it is this server that seals the archive."""
        return not self._closed

    async def run(self) -> None:
        """Seal until cancelled. A failure is logged once until it is over, and retried.

        Raises:
            ArchiveError, HistoryUnavailable: with a tenure, each failure ends it: another server
                may be able to go on.
        """
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
                        # Longer than a segment stays open: it may be written to rarely.
                        grace = max(_GRACE, 2 * self._policy.seconds)
                        await self._in_thread(partial(self.archive.messages.sweep, grace=grace))
                        await self._refresh()
            except (ArchiveError, HistoryUnavailable):
                if self._tenure is not None:
                    raise
                pause = _RETRY
            except Exception as error:  # a bug of ours must not stop the server
                log.exception("sealing failed")
                self.failures += 1
                if self._tenure is not None:
                    raise ArchiveError(f"archive {self.archive.folder}: {error!r}") from error
                pause = _RETRY
            await trio.sleep(pause)

    async def seal_now(self, *, seconds: float | None = None) -> int:
        """Seal all that the log holds now.

        Args:
            seconds: after these, return with what has been done; None is no limit. A later call
                continues there.

        Returns:
            `sealed` afterwards.

        Raises:
            ArchiveError, HistoryUnavailable: it failed; a later call may succeed.
        """
        self._seal_now_calls += 1
        try:
            async with self._attempt():
                if await self._take(seconds):
                    await self._finish(self._after)
        finally:
            self._seal_now_calls -= 1
        return self.sealed

    async def retire(self) -> None:
        """Seal what is left, since the server stops. What fails is sealed next time."""
        with suppress(ArchiveError, HistoryUnavailable):
            await self.seal_now()

    async def erase(
        self,
        erasure: Erasure,
        *,
        after: int = 0,
        upto: int | None = None,
        seconds: float | None = None,
    ) -> Erased:
        """Erase messages from the log, and keep them from being sealed; see `History.erase`.

        Existing segments are rewritten by the pipeline, not here.
        """
        async with self._turn:
            broken, self._broken = self._broken, True  # the log is read again from what is sealed
            done: Erased | None = None
            try:
                done = await self.history.erase(erasure, after=after, upto=upto, seconds=seconds)
            finally:
                if done is not None and done.last <= self.sealed:
                    self._broken = broken  # the open segment has none of them
                else:
                    with trio.CancelScope(shield=True):
                        await self._abandon()
            return done

    async def read_again(self) -> None:
        """Drop what was read of the log and is not sealed: the log has changed."""
        async with self._turn:
            self._broken = True
            with trio.CancelScope(shield=True):
                await self._abandon()

    async def aclose(self) -> None:
        """Release the archive. What is not sealed will be when it is opened again."""
        self._closed = True  # a call that is under way ends soon
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
        """Run one attempt at a time. Where the last one was interrupted, by an error or
        cancellation, its open segment is dropped, and this one starts from what is sealed."""
        async with self._turn:
            try:
                self._check_open()
                if self._broken:
                    await self._restart()
                self._broken = True
                yield
            except Superseded:
                await self._abandon()
                raise
            except (ArchiveError, HistoryUnavailable) as error:
                self.failures += 1
                self._outage.note(str(error))
                await self._abandon()  # at once: the disk may be full
                raise
            self._broken = False
            self._outage.end()

    async def _restart(self) -> None:
        await self._abandon()
        manifest = await self._in_thread(self.archive.messages.current)
        if not self._is_ours(manifest) or manifest.epoch != (await self.history.position()).epoch:
            raise self._replaced()
        self.manifest = manifest
        self._after = manifest.sealed

    def _check_open(self) -> None:
        if self._closed or (self._tenure is not None and self._tenure.is_over):
            raise self._replaced()

    def _is_ours(self, manifest: Manifest) -> bool:
        """Whether this sealer may go on with an archive."""
        tenure = self._tenure
        return tenure is None or tenure.admits(manifest)

    def _replaced(self) -> ArchiveError:
        if self._tenure is None:
            return ArchiveError(f"archive {self.archive.folder}: another one is in its place")
        return Superseded(f"archive {self.archive.folder}: another node seals it")

    async def _abandon(self) -> None:
        current, self._open = self._open, None
        self._lost.clear()
        if current is not None:
            await self._in_thread(current.abandon)

    async def _refresh(self) -> None:
        """Read the manifest again: the pipeline changes the archive as well."""
        manifest = await self._in_thread(self.archive.messages.current)
        if (manifest.epoch, manifest.sealed) == (self.manifest.epoch, self.manifest.sealed):
            self.manifest = manifest

    # reading the log

    async def _take(self, seconds: float | None = None) -> bool:
        """Read to the end of the log, and finish segments that are full.

        Args:
            seconds: to stop after; None is no limit.

        Returns:
            Whether the end was reached.
        """
        newest = (await self.history.position()).newest
        deadline = trio.current_time() + (math.inf if seconds is None else seconds)
        while self._after < newest:
            began = trio.current_time()
            try:
                page = await self.history.columns(after=self._after, upto=newest, limit=_PAGE)
            except HistoryDamaged as damage:
                if damage.last <= self._after:
                    raise
                # Everything ahead of the block has been read, so what is missing has expired.
                expired = (await self.history.position()).expired
                self._note_lost(self._after + 1, min(damage.first - 1, expired))
                last = min(damage.last, newest)
                self._note_lost(max(damage.first, self._after + 1), last)
                self._after = last
            else:
                await self._add(page)
                self._after = page.after
            self._check_open()
            if not self._seal_now_calls:
                if self._turn.statistics().tasks_waiting:
                    return False  # an erasure, which need not wait for a backlog to be sealed
                await trio.sleep(trio.current_time() - began)
            if self._after < newest and trio.current_time() >= deadline:
                return False
        return True

    async def _add(self, page: ColumnPage) -> None:
        # Read after the page: what was removed before the page was read is included.
        expired = (await self.history.position()).expired
        if expired <= self._forgiven:
            expired = 0
        pieces, gaps = await self._in_thread(partial(cut, page, self._after, expired))
        for first, last in gaps:
            self._note_lost(max(first, self._forgiven + 1), last)
        for piece in pieces:
            await self._fill(piece)

    async def _fill(self, piece: Piece) -> None:
        rest = piece.batch
        while rest.num_rows:
            if self._open is not None and self._open.day != piece.day:
                await self._finish(self._open.last)
            if self._open is None:
                first = rest.column("id")[0].as_py()
                self._open = OpenSegment(
                    self.archive.messages,
                    self._policy,
                    piece.day,
                    first,
                    trio.current_time(),
                    # Or else one whose tenure is over could write over what another has listed.
                    "" if self._tenure is None else f"-{secrets.token_hex(4)}",
                )
            rest = rest.slice(await self._in_thread(partial(self._open.add, rest)))
            if self._open.full:
                await self._finish(self._open.last)

    def _note_lost(self, first: int, last: int) -> None:
        if first <= last:
            log.warning("lost to the archive", extra={"first": first, "last": last})
            self._lost.append((first, last))

    # finishing

    def _is_due(self) -> bool:
        if self._open is None:
            return self._after > self.sealed
        # What failed was due, and only another attempt tells whether it works again.
        return self.failing or trio.current_time() - self._open.since >= self._policy.seconds

    async def _finish(self, upto: int) -> None:
        """List the open segment in the manifest, and that all ids up to `upto` were handled."""
        current = self._open
        if current is None and upto <= self.sealed:
            return
        segments = [] if current is None else [await self._in_thread(current.finish)]
        lost = [each for each in self._lost if each[0] <= upto]
        try:
            await self.history.sync()
            if self._tenure is not None:
                await self._tenure.check()
        except BaseException:
            await self._discard(segments)
            raise
        try:
            self.manifest = await self._in_thread(partial(self._list, segments, lost, upto))
        except Superseded:
            await self._discard(segments)
            raise
        self._lost = self._lost[len(lost) :]
        self._open = None
        for segment in segments:
            log.info("sealed", extra={"file": segment.file, "rows": segment.rows})

    async def _discard(self, segments: Sequence[Segment]) -> None:
        """Delete segments that are not listed, also when cancelled."""
        for segment in segments:
            with trio.CancelScope(shield=True), suppress(ArchiveError):  # a sweep will do it
                await self._in_thread(self.archive.messages.path(segment).unlink)

    def _list(
        self, segments: Sequence[Segment], lost: Sequence[tuple[int, int]], upto: int
    ) -> Manifest:
        expected = self.manifest

        def edit(manifest: Manifest) -> Manifest:
            is_expected = (manifest.epoch, manifest.sealed) == (expected.epoch, expected.sealed)
            if not is_expected or not self._is_ours(manifest):
                raise self._replaced()
            return msgspec.structs.replace(
                manifest.plus(*segments),
                sealed=upto,
                lost=join_ranges([*manifest.lost, *lost], _MAX_LOST),
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
