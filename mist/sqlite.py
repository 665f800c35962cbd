"""SQLite files of ours: whose they are, who may look into them, what their errors mean.

What the token registry and the message log have in common, though one has its file for itself
and the other lets readers in. Opening either is

    path = kind.locate(location)
    with kind.explained(path):              whatever goes wrong is one line
        create(path)                        for its owner's eyes only
        connection = connect(path, patience)
        if kind.is_new(connection, path):   nothing is written before it is known whose it is
            with kind.founding(connection):
                ...                         its tables
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs

from mist.errors import StartupError

__all__ = [
    "DAMAGED",
    "Kind",
    "Place",
    "connect",
    "create",
    "is_damage",
    "reason",
    "sync_folder",
    "transaction",
]

DAMAGED: Final = "the database is damaged"


@attrs.frozen
class Kind:
    """A kind of database, told from those of other programs and of other versions.

    Attributes:
        name: what messages call it.
        application_id: 32 bits, SQLite's mark for whose a file is.
        version: of the schema.
    """

    name: str
    application_id: int
    version: int

    def locate(self, location: str) -> Path:
        """The path in what follows `sqlite://`: `/a.db` is relative, `//var/a.db` is not.

        Raises:
            StartupError: there is none.
        """
        if not location.startswith("/") or not location[1:] or "\0" in location:
            raise StartupError(f"{self.name}: sqlite:/// needs three slashes and a path")
        # Absolute, so that nothing in it means anything to SQLite (`:memory:`), and a later
        # chdir changes nothing.
        return Path(os.path.abspath(location[1:]))

    @contextmanager
    def explained(self, path: Path) -> Iterator[None]:
        """Turn what goes wrong while opening into one line for whoever starts the server."""
        try:
            yield
        except OSError as error:
            place = error.filename or path
            raise StartupError(f"{self.name} {place}: {error.strerror}") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StartupError(f"{self.name} {path}: {reason(error)}") from error

    def is_new(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Whether nothing has been made of the database yet. Writes nothing.

        Raises:
            StartupError: it is another program's, or another version's.
        """
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if (application, version, objects) == (0, 0, 0):
            return True
        if application != self.application_id:
            raise StartupError(f"{self.name} {path}: a database of another program")
        if version != self.version:
            raise StartupError(
                f"{self.name} {path}: schema version {version}, but this mist knows {self.version}"
            )
        return False

    def write_ahead(self, connection: sqlite3.Connection, path: Path) -> None:
        """Have a commit on the disk when it returns, at one wait for it.

        Raises:
            StartupError: the file system can't.
        """
        if connection.execute("PRAGMA journal_mode = WAL").fetchall() != [("wal",)]:
            raise StartupError(f"{self.name} {path}: its file system can't hold a write-ahead log")
        connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def founding(self, connection: sqlite3.Connection) -> Iterator[None]:
        """A transaction that makes the tables of a new database, and makes it ours."""
        with transaction(connection):
            yield
            connection.execute(f"PRAGMA application_id = {self.application_id}")
            connection.execute(f"PRAGMA user_version = {self.version}")


def create(path: Path) -> None:
    """Make the file where there is none, before SQLite does: for its owner's eyes only.

    SQLite gives the files beside it (`-wal`, `-shm`) the same mode. Missing folders are made.

    Raises:
        OSError: it can't be made, or opened to be written, or is no file.
    """
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    if not is_file:  # SQLite would take /dev/null, and leave its journal in /dev
        raise OSError(0, "not a regular file", str(path))
    if is_new:
        sync_folder(path.parent)


@attrs.frozen
class Place:
    """Where a file was when it was opened.

    An open file that is removed, or moved together with its folder, can still be written, and
    SQLite does so without a word; but what is written is gone when it is closed, or isn't
    where anybody will look for it.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "Place":
        """Where the file at `path` is now. Raises OSError."""
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino)

    def require(self) -> None:
        """Make sure that the file is still there.

        Raises:
            OSError: there is none, or another.
        """
        if Place.of(self.path) != self:
            raise FileNotFoundError(errno.ENOENT, "another file is in its place", str(self.path))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; fsync of a file sees to its content only.

    Raises:
        OSError: they can't be.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect(path: Path, busy_timeout: float, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection whose transactions begin and end where we say, for any thread.

    Args:
        busy_timeout: seconds to wait for another process that has the file to itself.
    """
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # which some errors have done already
            connection.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether the file is at fault, so that a later attempt will fail likewise.

    A UnicodeDecodeError is sqlite3's, on its way to quote a damaged schema.
    """
    if isinstance(error, UnicodeDecodeError):
        return True
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def reason(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """What went wrong, in one line."""
    if isinstance(error, UnicodeDecodeError):
        return DAMAGED
    match _code(error):
        case sqlite3.SQLITE_BUSY:
            return "in use by another process"
        case sqlite3.SQLITE_NOTADB:
            return "not a database"
        case sqlite3.SQLITE_CORRUPT:
            return DAMAGED
        case sqlite3.SQLITE_FULL:
            return "the disk is full"
        case sqlite3.SQLITE_READONLY:
            return "it may not be written"
        case _:
            return " ".join(str(error).split())


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is detail
