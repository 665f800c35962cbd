"""Where staged parts wait for their commit: files in the data directory.

    stage/service/t.QUERY/17/0.3.0          batch 17, partition 0, attempt 3, part 0
    stage/token.ID/t.QUERY/17/0.3.0

They belong to the credential they came with, and no other can name them. They need not survive a
power cut: a commit reads each to its end before anything is stored, and one that is missing or
damaged is staged again. One thread does all work on the files, one task after the other; only a
commit reads them from another thread, and they are not changed meanwhile.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar
from zlib import crc32

import attrs
import msgspec
import trio

from mist.history import Bulk
from mist.history.commits import unpack_blocks
from mist.history.layout import Row
from mist.history.leaps import steady_seconds
from mist.http.problems import Problem

__all__ = ["MAX_COMMIT", "WRITER", "Attempt", "Batch", "Part", "PartMissing", "Stage", "Staged"]

T = TypeVar("T")

MAX_COMMIT: Final = 256 * 1024 * 1024  # bytes staged for one commit
WRITER: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

_STALE: Final = 24 * 3600.0  # seconds without a new part, after which a batch is deleted
_SWEEP: Final = 600.0  # seconds between two scans for stale batches
_SET: Final = 3600.0  # seconds that the clock gains or loses at once where it was set
_BLOCK: Final = 4096  # bytes that a file takes at least


class PartMissing(Exception):
    """A part of a commit is missing or damaged, or has to be staged again."""


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A part as it is stored, behind its checksum.

    Attributes:
        rows: how many.
        lists: their distinct tag lists; empty for services.
        blocks: the messages.
        site: of the token that staged it, which its messages are restricted to; empty is none.
    """

    rows: int
    lists: Sequence[bytes]
    blocks: bytes
    site: str = ""

    @property
    def encoded(self) -> bytes:
        """What a `Stage` stores."""
        packed = msgspec.msgpack.encode(self)
        return crc32(packed).to_bytes(4, "big") + packed


_decode: Final = msgspec.msgpack.Decoder(Part).decode


@attrs.frozen
class Batch:
    """A writer's batch.

    Attributes:
        owner: registry id of the token; None for services.
        writer: its name, as `WRITER` allows.
        number: of the batch.
    """

    owner: str | None
    writer: str
    number: int


@attrs.frozen
class Attempt:
    """Parts 0 to `parts - 1` of one attempt at one partition."""

    partition: int
    attempt: int
    parts: int


@attrs.frozen
class Staged:
    """The staged parts of a commit.

    Attributes:
        bulk: the messages.
        lists: their distinct tag lists; empty for services.
        sites: of the token, as its parts were staged.
        size: bytes of the files.
    """

    bulk: Bulk
    lists: frozenset[bytes]
    sites: frozenset[str]
    size: int


class Stage:
    """See the module.

    Args:
        folder: created when first needed.
        most: bytes in total.
        clock: Unix seconds.
        steady: seconds, by a clock that can't be set.
    """

    def __init__(
        self,
        folder: Path,
        most: int,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        self._folder = folder
        self._most = most
        self._clock = clock
        self._steady = steady
        self._ahead: float | None = None  # seconds of the clock before the steady one
        self._turn = trio.CapacityLimiter(1)
        self._used: int | None = None  # bytes; None until counted
        self._swept = 0.0
        self._busy: set[Batch] = set()

    async def put(self, batch: Batch, partition: int, attempt: int, part: int, data: bytes) -> None:
        """Store a part; it replaces an earlier one of its name.

        Raises:
            Problem: there is no room (429), or the batch is being committed (409).
        """
        path = self._path(batch) / f"{partition}.{attempt}.{part}"
        await self._do(lambda: self._put(batch, path, data))

    async def discard(self, batch: Batch, *, and_before: bool = False) -> None:
        """Delete a batch, if there is one.

        Args:
            and_before: also those of lower numbers.

        Raises:
            Problem: it is being committed (409).
        """
        await self._do(lambda: self._discard(batch, and_before))

    async def gather(self, batch: Batch, attempts: Sequence[Attempt]) -> Staged:
        """All parts of a commit, read to the end.

        Raises:
            PartMissing: one is missing or damaged.
        """
        return await self._do(lambda: self._gather(batch, attempts))

    @contextmanager
    def untouched(self, batch: Batch) -> Iterator[None]:
        """A context during which the parts of a batch are not changed."""
        self._busy.add(batch)
        try:
            yield
        finally:
            self._busy.discard(batch)

    async def _do(self, work: Callable[[], T]) -> T:
        def do() -> T:
            if self._used is None:
                self._used = sum(_room(size) for _, size, _ in _files(self._folder))
            now = self._clock()
            self._note_clock(now)
            if now - self._swept > _SWEEP:
                self._swept = now
                self._sweep(now - _STALE)
            return work()

        return await trio.to_thread.run_sync(do, limiter=self._turn)

    def _note_clock(self, now: float) -> None:
        """Where the clock was set, no time has passed: what is staged is as if it came just now."""
        before, self._ahead = self._ahead, now - self._steady()
        if before is None or abs(self._ahead - before) <= _SET:
            return
        self._swept = now
        for path, _, _ in _files(self._folder):
            with suppress(OSError):
                os.utime(path, (now, now))

    def _path(self, batch: Batch) -> Path:
        # With a prefix: a writer may be named `..`.
        owner = "service" if batch.owner is None else f"token.{batch.owner}"
        return self._folder / owner / f"t.{batch.writer}" / str(batch.number)

    def _require_idle(self, batch: Batch) -> None:
        if batch in self._busy:
            raise Problem(409, "being_committed", "the batch is being committed")

    def _put(self, batch: Batch, path: Path, data: bytes) -> None:
        self._require_idle(batch)
        assert self._used is not None
        try:
            before = _room(path.stat().st_size)
        except FileNotFoundError:
            before = 0
        used = self._used - before + _room(len(data))
        if used > self._most:
            detail = f"at most {self._most} bytes may be staged"
            raise Problem(429, "stage_full", detail, {"Retry-After": "5"})
        temporary = path.with_name(f".{path.name}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(
                os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as file:
                file.write(data)
            os.rename(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            detail = f"the part can't be stored: {error.strerror}"
            raise Problem(503, "stage_unavailable", detail, {"Retry-After": "5"}) from None
        self._used = used

    def _discard(self, batch: Batch, and_before: bool) -> None:
        self._require_idle(batch)
        path = self._path(batch)
        gone = [path]
        if and_before:
            with suppress(OSError):
                gone += [
                    each
                    for each in path.parent.iterdir()
                    if each.name.isdecimal() and int(each.name) < batch.number
                ]
        for each in gone:
            self._remove(each)

    def _remove(self, folder: Path) -> None:
        assert self._used is not None
        before = sum(_room(size) for _, size, _ in _files(folder))
        shutil.rmtree(folder, ignore_errors=True)
        self._used -= before - sum(_room(size) for _, size, _ in _files(folder))
        for parent in (folder.parent, folder.parent.parent):
            with suppress(OSError):  # not empty
                parent.rmdir()

    def _sweep(self, before: float) -> None:
        """Delete batches without a new part since `before`, Unix seconds."""
        newest: dict[Path, float] = {}
        for path, _, changed in _files(self._folder):
            newest[path.parent] = max(newest.get(path.parent, 0.0), changed)
        busy = {self._path(batch) for batch in tuple(self._busy)}  # commits begin and end meanwhile
        for folder, changed in newest.items():
            if changed < before and folder not in busy:
                self._remove(folder)

    def _gather(self, batch: Batch, attempts: Sequence[Attempt]) -> Staged:
        folder = self._path(batch)
        paths = [
            folder / f"{each.partition}.{each.attempt}.{part}"
            for each in attempts
            for part in range(each.parts)
        ]
        rows = size = 0
        lists: set[bytes] = set()
        sites: set[str] = set()
        for path in paths:
            data = _load(path)
            size += len(data)
            if size > MAX_COMMIT:
                detail = f"a commit takes at most {MAX_COMMIT} staged bytes"
                raise Problem(413, "commit_too_large", detail)
            part = _decode(memoryview(data)[4:])
            rows += part.rows
            lists.update(part.lists)
            sites.add(part.site)
        bulk = Bulk(lambda: _blocks(paths), rows)
        return Staged(bulk, frozenset(lists), frozenset(sites), size)


def _load(path: Path) -> bytes:
    name = f"partition {path.name.replace('.', ', attempt ', 1).replace('.', ', part ')}"
    try:
        data = path.read_bytes()
    except OSError:
        raise PartMissing(f"{name} isn't staged") from None
    if crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "big"):
        raise PartMissing(f"{name} is damaged; stage it again")
    return data


def _blocks(paths: Iterable[Path]) -> Iterator[Row]:
    for path in paths:
        yield from unpack_blocks(_decode(memoryview(_load(path))[4:]).blocks)


def _files(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Every file below, its bytes, and its time of modification."""
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            with suppress(OSError):
                found = path.stat()
                yield path, found.st_size, found.st_mtime


def _room(size: int) -> int:
    return max(size, _BLOCK)
