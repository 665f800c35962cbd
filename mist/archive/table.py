"""Tables of an archive: a directory of segments, and the manifests that list them.

A change writes a whole new manifest under the next number and renames it into place; readers
use the one with the highest number. Writers, in any process, take turns by a lock on a file,
which the kernel releases however a process ends.
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

from mist.archive.manifest import (
    VERSION,
    ArchiveDamaged,
    ArchiveError,
    ArchiveMissing,
    Manifest,
    Segment,
)

__all__ = ["Archive", "Table", "sync_directory"]

_KEPT: Final = 8  # generations, for readers of an older one, and for inspection
_GRACE: Final = 3600.0  # seconds for which a file stays that no manifest lists any more
_DIRECTORY: Final = "_manifest"
_NAME: Final = re.compile(r"[0-9]{20}\.json")

_decode: Final[Callable[[bytes], Manifest]] = msgspec.json.Decoder(Manifest).decode


class Table:
    """A directory of segments and the manifests that list them.

    Args:
        folder: the directory of the table.
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
        """Whether the table exists, with or without segments."""
        return (self.folder / _DIRECTORY).is_dir()

    def path(self, segment: Segment) -> Path:
        """The path of a segment's file."""
        return self.folder / segment.file

    def create(self) -> None:
        """Create the directories where they are missing.

        Raises:
            ArchiveError: they can't be created.
        """
        try:
            (self.folder / _DIRECTORY).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error

    def current(self) -> Manifest:
        """The newest manifest; an empty one before the first change.

        Raises:
            ArchiveMissing: there is no table.
            ArchiveDamaged: the manifest can't be read, or is of another version.
        """
        while True:
            names = self._generations()
            if not names:
                return Manifest(self.name)
            path = self.folder / _DIRECTORY / names[-1]
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # deleted meanwhile: there are newer ones
            except OSError as error:
                raise ArchiveError(f"archive {path}: {error.strerror}") from error
            return self._read(path, data)

    def change(self, edit: Callable[[Manifest], Manifest]) -> Manifest:
        """Write what `edit` returns as the next generation, unless it is unchanged.

        Writers take turns, and `edit` gets the newest manifest. The files that the new one lists
        must be on the disk already.

        Returns:
            The newest manifest.

        Raises:
            ArchiveMissing, ArchiveDamaged: as `current`.
            ArchiveError: it can't be written; the table is unchanged.
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
        """Hold the lock for changes of the table. Not reentrant."""
        try:
            handle = os.open(
                self.folder / _DIRECTORY / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
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
        """Delete unused files: those retired, and those that were never listed.

        Args:
            now: Unix seconds; None takes the clock's.
            grace: seconds for which a file stays after it was retired or written: it may still be
                read, or be about to be listed.

        Returns:
            The files deleted, relative to the directory.
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
        with self.locked():  # so that no file is listed meanwhile and taken for an orphan
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
            with suppress(OSError):  # not empty
                day.rmdir()
        return deleted

    def _read(self, path: Path, data: bytes) -> Manifest:
        try:
            manifest = _decode(data)
        except msgspec.MsgspecError as error:
            raise ArchiveDamaged(f"archive {path}: {error}") from error
        if manifest.version != VERSION:
            raise ArchiveDamaged(f"archive {path}: version {manifest.version}; this is {VERSION}")
        if manifest.table != self.name:
            raise ArchiveDamaged(f"archive {path}: the table {manifest.table!r}, not {self.name!r}")
        return manifest

    def _check_order(self, manifest: Manifest) -> None:
        for one, next_one in pairwise(manifest.segments):
            if self.name == "messages" and next_one.first <= one.last:
                raise ArchiveError(f"archive {self.folder}: {one.file} and {next_one.file} overlap")

    def _write(self, manifest: Manifest) -> None:
        folder = self.folder / _DIRECTORY
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
            names = os.listdir(self.folder / _DIRECTORY)
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
        except OSError:  # deleted already, or retried by the next sweep
            return False
        return True


class Archive:
    """All tables of an archive.

    Args:
        folder: its directory, which is that of the table of messages. The others are below
            `_tables`, which Spark skips when it reads the directory.
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
        """Open an existing archive.

        Raises:
            ArchiveMissing: there is none.
        """
        archive = cls(folder)
        if not archive.messages.exists:
            raise ArchiveMissing(
                f"no archive at {folder}; a server that is to keep one needs --archive"
            )
        return archive

    @classmethod
    def create(cls, folder: Path) -> "Archive":
        """Open an archive, or create it.

        Raises:
            ArchiveError: it can't be created.
        """
        archive = cls(folder)
        archive.messages.create()
        return archive


def sync_directory(folder: Path) -> None:
    """Make renamed and new names in a directory survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
