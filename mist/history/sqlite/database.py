"""The file of a `sqlite:///` log: whose it is, who may write it, what its errors mean.

One process at a time writes, and holds a lock on a file beside the database for as long as it
lives; the kernel lets go of it however the process ends. Others may read meanwhile, which is
what SQLite's write-ahead log is for. The lock is on a file of its own, since SQLite's are lost
when any descriptor of the database is closed.
"""

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mist.errors import HistoryDamaged, HistoryUnavailable, StartupError

__all__ = [
    "boot_id",
    "connect",
    "explained",
    "lock",
    "path_of",
    "prepare",
    "touch",
    "transaction",
    "translated",
]

_APPLICATION_ID: Final = 0x6D736869  # "mshi": mist history; a token registry has another
_VERSION: Final = 1  # of the schema
_PATIENCE: Final = 2.0  # seconds for another process that is reading or recovering
_PAGE: Final = 8192  # bytes; rows are large, and each page of one is a step
_CHECKPOINT: Final = 8192  # pages of the write-ahead log, 64 MiB, if nobody does the chores
_WAL_LIMIT: Final = 32 * 1024 * 1024  # bytes that its file keeps after a checkpoint
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_SCHEMA: Final = """
    CREATE TABLE log (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        epoch TEXT NOT NULL,
        newest INTEGER NOT NULL,     -- see State for this and the following
        latest INTEGER NOT NULL,
        floor INTEGER NOT NULL,
        trimmed INTEGER NOT NULL,
        untracked INTEGER NOT NULL,
        patterns TEXT NOT NULL,      -- joined by LF
        durability TEXT NOT NULL,    -- of the last process that wrote
        boot TEXT NOT NULL,          -- of the machine then
        clean INTEGER NOT NULL       -- whether that process closed the log
    ) STRICT;
    CREATE TABLE block (
        first INTEGER PRIMARY KEY,   -- see Head for this and the following
        last INTEGER NOT NULL,
        start INTEGER NOT NULL,
        messages INTEGER NOT NULL,
        oldest INTEGER NOT NULL,
        newest INTEGER NOT NULL,
        size INTEGER NOT NULL,
        checksum INTEGER NOT NULL,   -- see Row
        hashes BLOB NOT NULL,
        body BLOB NOT NULL           -- last, so that the others are read without it
    ) STRICT;
    CREATE TABLE tracked (tag TEXT PRIMARY KEY, id INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE segment (           -- see `directory`
        first INTEGER PRIMARY KEY,
        last INTEGER NOT NULL,
        blocks BLOB NOT NULL
    ) STRICT;
    CREATE TABLE directory (
        part INTEGER NOT NULL,
        segment INTEGER NOT NULL,
        hashes BLOB NOT NULL,
        masks BLOB NOT NULL,
        PRIMARY KEY (part, segment)
    ) STRICT, WITHOUT ROWID;
"""


def path_of(location: str) -> Path:
    """The path in what follows `sqlite://`: `/history.db` is relative, `//var/history.db` not."""
    if not location.startswith("/") or not location[1:] or "\0" in location:
        raise StartupError("history: sqlite:/// needs three slashes and a path")
    # Absolute, so that nothing in it means anything to SQLite (`:memory:`), and a later chdir
    # changes nothing.
    return Path(os.path.abspath(location[1:]))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what goes wrong while opening into one line for whoever starts the server."""
    try:
        yield
    except OSError as error:
        raise StartupError(f"history {error.filename or path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StartupError(f"history {path}: {_reason(error)}") from error
    except UnicodeDecodeError as error:  # sqlite3's, on its way to quote a damaged schema
        raise StartupError(f"history {path}: the database is damaged") from error
    except HistoryDamaged as error:
        raise StartupError(f"history {path}: {error.reason}") from error
    except HistoryUnavailable as error:
        raise StartupError(f"history {path}: {error}") from error


@contextmanager
def translated() -> Iterator[None]:
    """Turn what goes wrong later into the errors of the contract."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise HistoryDamaged(0, "the database is damaged") from error
    except sqlite3.Error as error:
        match _code(error):
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                raise HistoryDamaged(0, _reason(error)) from error
            case _:
                raise HistoryUnavailable(f"History is unavailable: {_reason(error)}") from error


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is detail


def _reason(error: sqlite3.Error) -> str:
    match _code(error):
        case sqlite3.SQLITE_BUSY:
            return "in use by another process"
        case sqlite3.SQLITE_NOTADB:
            return "not a database"
        case sqlite3.SQLITE_CORRUPT:
            return "the database is damaged"
        case sqlite3.SQLITE_FULL:
            return "the disk is full"
        case sqlite3.SQLITE_READONLY:
            return "it may not be written"
        case _:
            return " ".join(str(error).split())


def touch(path: Path) -> None:
    """Make the file where there is none, before SQLite does: for its owner's eyes only.

    SQLite gives the files beside it (`-wal`, `-shm`) the same mode.
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
        raise StartupError(f"history {path}: not a regular file")
    if is_new:  # a name that a power cut may take back is no durable log
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def lock(path: Path) -> int:
    """Be the one process that writes. Returns the descriptor to close when done."""
    descriptor = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StartupError(f"history {path}: in use by another process") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection whose transactions begin and end where we say."""
    connection = sqlite3.connect(
        path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
    )
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def prepare(connection: sqlite3.Connection, path: Path, epoch: str | None) -> None:
    """See that the database is ours, and make it ours where it is new.

    Nothing is written before it is known whose it is.

    Args:
        epoch: of the log, where it has to be made; None where it has to be there.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    is_new = (application, version, objects) == (0, 0, 0)
    if (is_new and epoch is None) or (not is_new and application != _APPLICATION_ID):
        raise StartupError(f"history {path}: a database of another program")
    if not is_new and version != _VERSION:
        raise StartupError(
            f"history {path}: schema version {version}, but this mist knows {_VERSION}"
        )
    if epoch is None:
        return
    if is_new:  # both have to be said before there is a table
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if connection.execute("PRAGMA journal_mode = WAL").fetchall() != [("wal",)]:
        raise StartupError(f"history {path}: its file system can't hold a write-ahead log")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
    if is_new:
        with transaction(connection):
            for statement in _SCHEMA.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO log VALUES (1, ?, 0, 0, 0, 0, 0, '', '', '', 1)", (epoch,)
            )
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")


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


def boot_id() -> str:
    """Which start of this machine it is; empty where the system doesn't tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
