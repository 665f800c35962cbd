"""SQLite databases: identifying, creating, opening and locking files; what their errors mean.

What the token registry and the message log have in common, though the registry locks its file
and the log admits readers. Opening either is

    path = kind.locate(location)
    with kind.startup_errors(path):              errors become one line
        create(path)                        readable by its owner only
        connection = connect(path, busy_timeout)
        if kind.is_new(connection, path):   nothing is written before its kind is known
            with kind.initializing(connection):
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
    "DatabaseKind",
    "FileIdentity",
    "connect",
    "create",
    "is_damage",
    "reason",
    "sync_directory",
    "transaction",
]

DAMAGED: Final = "the database is damaged"

_MISTYPED: Final = ("JSON cannot hold BLOB values", "Could not decode to UTF-8")
"""How SQLite and its module refuse a value that a column's type excludes."""


@attrs.frozen
class DatabaseKind:
    """A kind of database, distinguished from those of other programs and other versions.

    Attributes:
        name: used in error messages.
        application_id: 32 bits, SQLite's mark for the program a file belongs to.
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
    def startup_errors(self, path: Path) -> Iterator[None]:
        """Translate errors of opening into a StartupError of one line."""
        try:
            yield
        except OSError as error:
            place = error.filename or path
            raise StartupError(f"{self.name} {place}: {error.strerror}") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StartupError(f"{self.name} {path}: {reason(error)}") from error

    def is_new(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Whether the database is still empty. Writes nothing.

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

    def enable_wal(self, connection: sqlite3.Connection, path: Path) -> None:
        """Turn on the write-ahead log, so that a commit is durable on return at one fsync.

        Raises:
            StartupError: the file system can't.
        """
        if connection.execute("PRAGMA journal_mode = WAL").fetchall() != [("wal",)]:
            raise StartupError(f"{self.name} {path}: its file system can't hold a write-ahead log")
        connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def initializing(self, connection: sqlite3.Connection) -> Iterator[None]:
        """A transaction for making the tables of a new database, which marks it as this kind."""
        with transaction(connection):
            yield
            connection.execute(f"PRAGMA application_id = {self.application_id}")
            connection.execute(f"PRAGMA user_version = {self.version}")


def create(path: Path) -> None:
    """Create the file where there is none, before SQLite does: readable by its owner only.

    SQLite gives the files beside it (`-wal`, `-shm`) the same mode. Missing directories are made.

    Raises:
        OSError: it can't be created or opened for writing, or is no regular file.
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
        sync_directory(path.parent)


@attrs.frozen
class FileIdentity:
    """Which file was opened, to notice that it was removed or replaced.

    An open file that is removed, or moved together with its directory, can still be written, and
    SQLite does so without an error; but what is written is lost when it is closed, or is not at
    the configured path.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "FileIdentity":
        """The file that is at `path` now. Raises OSError."""
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino)

    def check(self) -> None:
        """Check that the file is still at its path.

        Raises:
            OSError: there is none, or another one.
        """
        if FileIdentity.of(self.path) != self:
            raise FileNotFoundError(errno.ENOENT, "another file is in its place", str(self.path))


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable; fsync of a file covers its content only.

    Raises:
        OSError: they can't be made durable.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect(path: Path, busy_timeout: float, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode (see `transaction`), for use by any thread.

    Args:
        busy_timeout: seconds to wait for another process that has the file locked.
    """
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the body in one transaction: all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # which some errors have done already
            connection.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether the file is damaged, so that every later attempt will fail too.

    The sqlite3 module raises UnicodeDecodeError when it quotes a damaged schema.
    """
    if isinstance(error, UnicodeDecodeError):
        return True
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error).startswith(
        _MISTYPED
    )


def reason(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """The cause of an error, in one line."""
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
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended code
