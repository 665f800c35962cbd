"""Manifests: which segments a table consists of, and how that changes.

A change writes a whole new manifest under the next number and renames it into place; readers
take the highest number there is. Writers, in whatever process, take turns by a lock on a file;
the kernel lets go of it however a process ends.
"""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from mist.errors import MistError

__all__ = [
    "Archive",
    "ArchiveDamaged",
    "ArchiveError",
    "ArchiveMissing",
    "Manifest",
    "Retired",
    "Segment",
    "Table",
    "sync_directory",
]

_VERSION: Final = 1
_KEPT: Final = 8  # generations, for whoever is reading an older one, and for people
_GRACE: Final = 3600.0  # seconds for which a file stays that no manifest lists any more
_FOLDER: Final = "_manifest"
_NAME: Final = re.compile(r"[0-9]{20}\.json")


class ArchiveError(MistError):
    """An archive can't be used. The text is one line that says why."""

    code = "archive"


class ArchiveMissing(ArchiveError):
    """There is no archive."""

    code = "archive_missing"


class ArchiveDamaged(ArchiveError):
    """Something in an archive isn't what was written."""

    code = "archive_damaged"


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a table, all of one day (UTC).

    Attributes:
        file: relative to the table's folder.
        first, last: the ids it answers for, both in it; in a table by the minute, minutes
            since 1970. Some between may have been erased.
        rows: in it.
        bytes: of the file.
        oldest, newest: times of its rows, microseconds since 1970.
    """

    file: str
    first: int
    last: int
    rows: int
    bytes: int
    oldest: int
    newest: int


class Retired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that has been replaced. `since` is Unix seconds."""

    file: str
    since: float


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table consists of.

    Attributes:
        table: its name.
        version: of this format.
        generation: counts the changes.
        epoch: of the log that the ids belong to; empty before the first segment.
        sealed: the highest id that is taken care of: each one up to it is in a segment, in
            `lost`, or has been taken out since.
        segments: in the order of their ids; they don't overlap but in tables by the minute.
        lost: ranges of ids, both ends in them, that were gone before they could be sealed.
        retired: what is to be deleted.
    """

    table: str = "messages"
    version: int = _VERSION
    generation: int = 0
    epoch: str = ""
    sealed: int = 0
    segments: tuple[Segment, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    retired: tuple[Retired, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of all segments."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def first(self) -> int:
        """The lowest id that can be had; `sealed + 1` where none can."""
        return self.segments[0].first if self.segments else self.sealed + 1

    def following(self, after: int, upto: int) -> Segment | None:
        """The first segment with ids in `(after, upto]`."""
        for segment in self.segments:
            if segment.last > after and segment.first <= upto:
                return segment
        return None

    def gone(self, after: int, upto: int) -> tuple[tuple[int, int], ...]:
        """What of `(after, upto]` was never sealed, or went with the oldest segments.

        Ids missing between two segments have been erased, which is no loss.
        """
        return tuple(
            (max(first, after + 1), min(last, upto))
            for first, last in ((0, self.first - 1), *self.lost)
            if first <= upto and last > after
        )

    def plus(self, *segments: Segment) -> "Manifest":
        """With further segments, each at its place."""
        merged = sorted((*self.segments, *segments), key=lambda each: (each.first, each.last))
        return msgspec.structs.replace(self, segments=tuple(merged))

    def minus(self, files: set[str], now: float | None = None) -> "Manifest":
        """Without the segments of these files, which are retired.

        Args:
            now: Unix seconds; None takes the clock's.
        """
        since = time.time() if now is None else now
        gone = tuple(Retired(each.file, since) for each in self.segments if each.file in files)
        kept = tuple(each for each in self.segments if each.file not in files)
        return msgspec.structs.replace(self, segments=kept, retired=(*self.retired, *gone))


_decode: Final[Callable[[bytes], Manifest]] = msgspec.json.Decoder(Manifest).decode


class Table:
    """A folder of segments and the manifests that list them.

    Args:
        folder: of the table.
        name: of the table.

    Attributes:
        folder, name: as given.
    """

    def __init__(self, folder: Path, name: str = "messages") -> None:
        self.folder = folder
        self.name = name

    def __repr__(self) -> str:
        return f"Table({str(self.folder)!r})"

    @property
    def exists(self) -> bool:
        """Whether there is one, with or without a segment."""
        return (self.folder / _FOLDER).is_dir()

    def path(self, segment: Segment) -> Path:
        """Where a segment's file is."""
        return self.folder / segment.file

    def create(self) -> None:
        """See that the folders are there.

        Raises:
            ArchiveError: they can't be made.
        """
        try:
            (self.folder / _FOLDER).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error

    def current(self) -> Manifest:
        """The newest manifest; an empty one where nothing has been entered yet.

        Raises:
            ArchiveMissing: there is no table.
            ArchiveDamaged: the manifest can't be read, or is of another version.
        """
        while True:
            names = self._generations()
            if not names:
                return Manifest(self.name)
            path = self.folder / _FOLDER / names[-1]
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # a newer one has come, and this was the oldest kept
            except OSError as error:
                raise ArchiveError(f"archive {path}: {error.strerror}") from error
            return self._read(path, data)

    def change(self, edit: Callable[[Manifest], Manifest]) -> Manifest:
        """Make the next generation of what `edit` returns; nothing where that is the same.

        Writers take turns. `edit` gets what is there when it is this one's turn. What the new
        manifest lists must be on the disk already.

        Returns:
            What holds now.

        Raises:
            ArchiveMissing, ArchiveDamaged: as `current`.
            ArchiveError: it can't be written; what was there still holds.
        """
        with self.locked():
            before = self.current()
            edited = edit(before)
            if edited == before:
                return before
            after = msgspec.structs.replace(edited, generation=before.generation + 1)
            self._check_order(after)
            try:
                self._write(after)
            except OSError as error:
                raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error
        return after

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the one that changes the table. Not to be entered twice."""
        try:
            handle = os.open(
                self.folder / _FOLDER / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except FileNotFoundError:
            raise self._missing() from None
        except OSError as error:
            raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def sweep(self, now: float | None = None, grace: float = _GRACE) -> list[str]:
        """Delete what nobody asks for: retired files, and those that were never entered.

        Args:
            now: Unix seconds; None takes the clock's.
            grace: seconds since a file was retired or written, for which it stays: somebody
                may be reading it, or be about to enter it.

        Returns:
            The files deleted, relative to the folder.
        """
        now = time.time() if now is None else now
        due = {each.file for each in self.current().retired if now - each.since >= grace}
        deleted = [file for file in sorted(due) if self._delete(self.folder / file)]
        if due:
            self.change(
                lambda manifest: msgspec.structs.replace(
                    manifest,
                    retired=tuple(each for each in manifest.retired if each.file not in due),
                )
            )
        with self.locked():  # so that what is listed meanwhile isn't taken for an orphan
            manifest = self.current()
            known = {each.file for each in manifest.segments + manifest.retired}
            for path in self.folder.glob("date=*/*.parquet*"):
                file = str(path.relative_to(self.folder))
                if file in known:
                    continue
                with suppress(FileNotFoundError):
                    if now - path.stat().st_mtime >= grace and self._delete(path):
                        deleted.append(file)
        for day in self.folder.glob("date=*"):
            with suppress(OSError):  # that it isn't empty
                day.rmdir()
        return deleted

    def _read(self, path: Path, data: bytes) -> Manifest:
        try:
            manifest = _decode(data)
        except msgspec.MsgspecError as error:
            raise ArchiveDamaged(f"archive {path}: {error}") from error
        if manifest.version != _VERSION:
            raise ArchiveDamaged(f"archive {path}: version {manifest.version}; this is {_VERSION}")
        if manifest.table != self.name:
            raise ArchiveDamaged(f"archive {path}: the table {manifest.table!r}, not {self.name!r}")
        return manifest

    def _check_order(self, manifest: Manifest) -> None:
        for one, next_one in pairwise(manifest.segments):
            if self.name == "messages" and next_one.first <= one.last:
                raise ArchiveError(f"archive {self.folder}: {one.file} and {next_one.file} overlap")

    def _write(self, manifest: Manifest) -> None:
        folder = self.folder / _FOLDER
        path = folder / f"{manifest.generation:020}.json"
        temporary = folder / f".{path.name}"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        sync_directory(folder)
        for name in self._generations()[:-_KEPT]:
            self._delete(folder / name)

    def _generations(self) -> list[str]:
        try:
            names = os.listdir(self.folder / _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing() from None
        except OSError as error:
            raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error
        return sorted(name for name in names if _NAME.fullmatch(name))

    def _missing(self) -> ArchiveMissing:
        return ArchiveMissing(f"no archive at {self.folder}")

    def _delete(self, path: Path) -> bool:
        try:
            path.unlink()
        except OSError:  # gone already, or tried again by the next sweep
            return False
        return True


class Archive:
    """All tables of an archive.

    Args:
        folder: where it is. The table of messages is right there, the others are below
            `_tables`, where Spark doesn't look when it is told to read the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages = Table(folder)

    def __repr__(self) -> str:
        return f"Archive({str(self.folder)!r})"

    def table(self, name: str) -> Table:
        """One of the tables, `messages` among them. It need not exist yet."""
        return self.messages if name == "messages" else Table(self.folder / "_tables" / name, name)

    @classmethod
    def open(cls, folder: Path) -> "Archive":
        """One that is there.

        Raises:
            ArchiveMissing: it isn't.
        """
        archive = cls(folder)
        if not archive.messages.exists:
            raise ArchiveMissing(
                f"no archive at {folder}; a server that is to keep one needs --archive"
            )
        return archive

    @classmethod
    def create(cls, folder: Path) -> "Archive":
        """One that is there, or made now.

        Raises:
            ArchiveError: it can't be made.
        """
        archive = cls(folder)
        archive.messages.create()
        return archive


def sync_directory(folder: Path) -> None:
    """Have what was renamed or made in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
