"""Tables of an archive: a directory of segments, and the manifests that list them.

A change writes a whole new manifest under the next number; readers use the one with the highest
number. Writers may be any processes, at any machines that have the directory: a change that starts
from an older manifest than the newest is refused, and made again (`generations`).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from mist.archive.generations import Generations, Taken
from mist.archive.manifest import (
    VERSION,
    ArchiveDamaged,
    ArchiveError,
    ArchiveMissing,
    Manifest,
    Segment,
)

__all__ = ["Archive", "Table"]

_GRACE: Final = 3600.0  # seconds for which a file stays that no manifest lists any more
_DIRECTORY: Final = "_manifest"

_decode: Final[Callable[[bytes], Manifest]] = msgspec.json.Decoder(Manifest).decode


class Table:
    """A directory of segments and the manifests that list them.

    Args:
        folder: the directory of the table.
        name: of the table.
        lock_timeout: seconds for which a change waits for its turn; then it is made without, which
            is safe, see `Generations`. None waits for as long as it takes.

    Attributes:
        folder, name: as given.
    """

    def __init__(
        self, folder: Path, name: str = "messages", *, lock_timeout: float | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self._generations = Generations(folder / _DIRECTORY)
        self._lock_timeout = lock_timeout

    def __repr__(self) -> str:
        return f"Table({str(self.folder)!r})"

    @property
    def exists(self) -> bool:
        """Whether the table exists, with or without segments."""
        return (self.folder / _DIRECTORY).is_dir()

    def path(self, segment: Segment) -> Path:
        """The path of a segment's file."""
        return self.folder / segment.file

    def check_links(self) -> None:
        """See `Generations.check_links`."""
        self._generations.check_links()

    def create(self) -> None:
        """Create the directories where they are missing.

        Raises:
            ArchiveError: they can't be created.
        """
        try:
            (self.folder / _DIRECTORY).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error

    def manifest_path(self, generation: int) -> Path:
        """Where the manifest of a generation is, while it is kept."""
        return self._generations.path(generation)

    def current(self, known: Manifest | None = None) -> Manifest:
        """The newest manifest; an empty one before the first change.

        Args:
            known: is returned where it is still the newest, without reading it.

        Raises:
            ArchiveMissing: there is no table.
            ArchiveDamaged: the manifest can't be read, or is of another version.
        """
        while True:
            number = self._newest()
            if known is not None and number == known.generation:
                return known
            if not number:
                return Manifest(self.name)
            path = self._generations.path(number)
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # deleted meanwhile: there are newer ones
            except OSError as error:
                raise ArchiveError(f"archive {path}: {error.strerror}") from error
            return self._read(path, data)

    def change(self, edit: Callable[[Manifest], Manifest]) -> Manifest:
        """Write what `edit` returns as the next generation, unless it is unchanged.

        The files that it lists must be on the disk already.

        Args:
            edit: gets the newest manifest. Called again where another writer was faster.

        Returns:
            The newest manifest.

        Raises:
            ArchiveMissing, ArchiveDamaged: as `current`.
            ArchiveError: it can't be written; the table is unchanged.
        """
        with self.locked(self._lock_timeout) as is_locked:
            while True:
                before = self.current()
                edited = edit(before)
                if edited == before:
                    return before
                after = msgspec.structs.replace(edited, generation=before.generation + 1)
                self._check_order(after)
                data = msgspec.json.format(msgspec.json.encode(after), indent=1)
                try:
                    self._generations.add(data, after.generation, locked=is_locked)
                except Taken:
                    continue
                except OSError as error:
                    raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error
                return after

    @contextmanager
    def locked(self, timeout: float | None = None) -> Iterator[bool]:
        """Have the lock for changes of the table. See `Generations.locked`."""
        with ExitStack() as stack:
            try:
                is_locked = stack.enter_context(self._generations.locked(timeout))
            except FileNotFoundError:
                raise self._missing() from None
            except OSError as error:
                raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error
            yield is_locked

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
        with self.locked(self._lock_timeout) as is_locked:
            if is_locked:  # so that no file is listed meanwhile and taken for an orphan
                deleted += self._delete_orphans(now - grace)
        for day in self.folder.glob("date=*"):
            with suppress(OSError):  # not empty
                day.rmdir()
        return deleted

    def _delete_orphans(self, before: float) -> list[str]:
        """Delete files that were never listed, and are older than `before` (Unix seconds)."""
        deleted = []
        manifest = self.current()
        known = {each.file for each in manifest.segments + manifest.retired}
        for path in self.folder.glob("date=*/*.parquet*"):
            file = str(path.relative_to(self.folder))
            if file in known:
                continue
            with suppress(FileNotFoundError):
                if path.stat().st_mtime <= before and self._delete(path):
                    deleted.append(file)
        return deleted

    def _read(self, path: Path, data: bytes) -> Manifest:
        try:
            manifest = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
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

    def _newest(self) -> int:
        try:
            return self._generations.newest()
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing() from None
        except OSError as error:
            raise ArchiveError(f"archive {self.folder}: {error.strerror}") from error

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
        lock_timeout: of its tables.
    """

    def __init__(self, folder: Path, *, lock_timeout: float | None = None) -> None:
        self.folder = folder
        self._lock_timeout = lock_timeout
        self.messages = Table(folder, lock_timeout=lock_timeout)

    def __repr__(self) -> str:
        return f"Archive({str(self.folder)!r})"

    def table(self, name: str) -> Table:
        """One of the tables, `messages` among them. It need not exist yet."""
        if name == "messages":
            return self.messages
        return Table(self.folder / "_tables" / name, name, lock_timeout=self._lock_timeout)

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
    def create(cls, folder: Path, *, lock_timeout: float | None = None) -> "Archive":
        """Open an archive, or create it.

        Raises:
            ArchiveError: it can't be created.
        """
        archive = cls(folder, lock_timeout=lock_timeout)
        archive.messages.create()
        return archive

    def check_shareable(self) -> None:
        """Check that servers may share the archive: that its file system has hard links.

        Raises:
            ArchiveError: it has none.
        """
        try:
            self.messages.check_links()
        except OSError as error:
            raise ArchiveError(
                f"archive {self.folder}: nodes need hard links to share it: {error.strerror}"
            ) from error
