"""The database of a `sqlite:///` log: its tables, who may write it, what its errors mean.

One process at a time writes, and holds a lock on a file beside the database for as long as it
lives; the kernel lets go of it however the process ends. Others may read meanwhile, which is
what SQLite's write-ahead log is for. The lock is on a file of its own, since SQLite's are lost
when any descriptor of the database is closed.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mist import sqlite
from mist.errors import HistoryDamaged, HistoryUnavailable, StartupError
from mist.sqlite import DatabaseKind

__all__ = ["LOG", "boot_id", "connect", "lock", "prepare", "startup_errors", "translated"]

LOG: Final = DatabaseKind("history", application_id=0x6D736869, version=4)  # "mshi": mist history

_BUSY_TIMEOUT: Final = 2.0  # seconds for another process that is reading or recovering
_PAGE: Final = 8192  # bytes; rows are large, and each page of one is a step
_CHECKPOINT: Final = 8192  # pages of the write-ahead log, 64 MiB, if nobody does the chores
_WAL_LIMIT: Final = 32 * 1024 * 1024  # bytes that its file keeps after a checkpoint
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

# What version 2 has and version 1 had not.
_KEYS: Final = """
    CREATE TABLE key (
        first INTEGER PRIMARY KEY,   -- see Kept for this and the following
        time INTEGER NOT NULL,
        name BLOB NOT NULL UNIQUE,
        digest BLOB NOT NULL
    ) STRICT
"""
# What version 3 has and version 2 had not.
_COMMITS: Final = """
    CREATE TABLE writer (            -- see Mark and Commit for this and the following
        owner TEXT NOT NULL,
        writer TEXT NOT NULL,
        batch INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        messages INTEGER NOT NULL,
        time INTEGER NOT NULL,
        PRIMARY KEY (owner, writer)
    ) STRICT, WITHOUT ROWID
"""
_ERASURE: Final = """
    CREATE TABLE erasure (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        upto INTEGER NOT NULL        -- see State.erased, no row where nothing was
    ) STRICT
"""
# What version 4 has and version 3 had not.
_CHANNEL: Final = """
    CREATE TABLE channel (           -- see ChannelPosition for this and the following
        name TEXT PRIMARY KEY,       -- its key
        last INTEGER NOT NULL,
        id INTEGER NOT NULL,
        time INTEGER NOT NULL,
        floor INTEGER NOT NULL,
        age INTEGER
    ) STRICT, WITHOUT ROWID
"""
_NUMBERING: Final = """
    CREATE TABLE numbering (         -- of blocks that hold messages of channels
        first INTEGER PRIMARY KEY,   -- the block's key
        numbers BLOB NOT NULL        -- see Row.numbers
    ) STRICT
"""
_SCHEMA: Final = f"""
    {_KEYS};
    {_COMMITS};
    {_ERASURE};
    {_CHANNEL};
    {_NUMBERING};
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


@contextmanager
def startup_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong while opening into one line for whoever starts the server."""
    with LOG.startup_errors(path):
        try:
            yield
        except HistoryDamaged as error:
            raise StartupError(f"history {path}: {error.reason}") from error
        except HistoryUnavailable as error:
            raise StartupError(f"history {path}: {error}") from error


@contextmanager
def translated() -> Iterator[None]:
    """Turn what goes wrong later into the errors of the contract."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        reason = sqlite.reason(error)
        if sqlite.is_damage(error):
            raise HistoryDamaged(0, reason) from error
        raise HistoryUnavailable(f"History is unavailable: {reason}") from error


def lock(path: Path) -> int:
    """Be the one process that writes. Returns the descriptor to close when done.

    The lock is beside the file itself, as SQLite's own files are, whatever link led there.
    """
    descriptor = os.open(
        f"{os.path.realpath(path)}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
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
    """A connection to a log; see `mist.sqlite.connect`."""
    return sqlite.connect(path, _BUSY_TIMEOUT, read_only=read_only)


def prepare(
    connection: sqlite3.Connection,
    path: Path,
    epoch: str | None,
    number: Callable[[sqlite3.Connection], None],
) -> None:
    """See that the database is a log, and make it one where it is new.

    Args:
        epoch: of the log, where it has to be made; None where it has to be there.
        number: numbers what an older version has stored in its channels.
    """
    _upgrade(connection, path, number, may_write=epoch is not None)
    is_new = LOG.is_new(connection, path)
    if epoch is None:
        if is_new:
            raise StartupError(f"history {path}: a database of another program")
        return
    if is_new:  # both have to be said before there is a table
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    LOG.enable_wal(connection, path)
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
    if is_new:
        with LOG.initializing(connection):
            for statement in _SCHEMA.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO log VALUES (1, ?, 0, 0, 0, 0, 0, '', '', '', 1)", (epoch,)
            )


_NEW_IN: Final = {2: (_KEYS,), 3: (_COMMITS, _ERASURE), 4: (_CHANNEL, _NUMBERING)}


def _upgrade(
    connection: sqlite3.Connection,
    path: Path,
    number: Callable[[sqlite3.Connection], None],
    *,
    may_write: bool,
) -> None:
    """Make a log of an older version one of this, all at once; leave any other as it is."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != LOG.application_id or version not in (1, 2, 3):
        return
    if not may_write:
        raise StartupError(
            f"history {path}: schema version {version}; "
            f"a server that opens it makes it {LOG.version}"
        )
    with sqlite.transaction(connection):
        for new, statements in _NEW_IN.items():
            for statement in statements if new > version else ():
                connection.execute(statement)
        number(connection)
        connection.execute(f"PRAGMA user_version = {LOG.version}")


def boot_id() -> str:
    """Which start of this machine it is; empty where the system doesn't tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
