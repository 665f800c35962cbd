"""The database of a `sqlite:///` log: its schema, the writer's lock, what its errors mean.

One process at a time writes, and holds a lock on a file beside the database for as long as it
lives; the kernel releases it however the process ends. Others may read meanwhile, through
SQLite's write-ahead log. The lock is on a file of its own, since a process loses SQLite's locks
when it closes any descriptor of the database.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from mist import sqlite
from mist.errors import HistoryDamaged, HistoryUnavailable, StartupError
from mist.sqlite import DatabaseKind, FileIdentity

__all__ = [
    "LOG",
    "FileCheck",
    "connect",
    "lock",
    "prepare",
    "startup_errors",
    "translated",
]

LOG: Final = DatabaseKind("history", application_id=0x6D736869, version=6)  # "mshi": mist history

_BUSY_TIMEOUT: Final = 2.0  # seconds to wait for another process that reads or recovers
_PAGE: Final = 8192  # bytes; rows are large, and each page of one is read separately
_CHECKPOINT: Final = 8192  # pages of the write-ahead log, 64 MiB; without maintenance
_WAL_LIMIT: Final = 32 * 1024 * 1024  # bytes that its file keeps after a checkpoint
_CHECK_INTERVAL: Final = 0.1  # seconds; a check is one more wait for the interpreter lock

# New in version 2.
_KEYS: Final = """
    CREATE TABLE key (
        first INTEGER PRIMARY KEY,   -- see KeyRecord for this and the following
        time INTEGER NOT NULL,
        name BLOB NOT NULL UNIQUE,
        digest BLOB NOT NULL
    ) STRICT
"""
# New in version 3.
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
# New in version 4.
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
# New in version 5, in the place of one of another form. It is made anew by maintenance.
_DIRECTORY: Final = """
    CREATE TABLE directory (
        part INTEGER NOT NULL,
        segment INTEGER NOT NULL,    -- the first of it
        hashes BLOB NOT NULL,        -- see `directory` for this and the following
        ends BLOB NOT NULL,
        PRIMARY KEY (part, segment)
    ) STRICT, WITHOUT ROWID
"""
_SCHEMA: Final = f"""
    {_KEYS};
    {_COMMITS};
    {_ERASURE};
    {_CHANNEL};
    {_NUMBERING};
    {_DIRECTORY};
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
"""


_NUMBERED: Final = 4  # the version from which on messages in channels have numbers


@contextmanager
def startup_errors(path: Path) -> Iterator[None]:
    """Translate errors of opening into a StartupError of one line."""
    with LOG.startup_errors(path):
        try:
            yield
        except HistoryDamaged as error:
            raise StartupError(f"history {path}: {error.reason}") from error
        except HistoryUnavailable as error:
            raise StartupError(f"history {path}: {error}") from error


@contextmanager
def translated() -> Iterator[None]:
    """Translate errors after opening into those of the contract."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        reason = sqlite.reason(error)
        if sqlite.is_damage(error):
            raise HistoryDamaged(0, reason) from error
        raise HistoryUnavailable(f"History is unavailable: {reason}") from error


def lock(path: Path) -> int:
    """Lock the log for writing by this process. Returns the descriptor to close when done.

    The lock is beside the real file, as SQLite's own files are, also where the path is a link.
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
    """Check that the database is a log, create its tables where it is new, upgrade an older one.

    Args:
        epoch: of a new log; None where it must exist.
        number: numbers the messages in channels of an older version.
    """
    _upgrade(connection, path, number, may_write=epoch is not None)
    is_new = LOG.is_new(connection, path)
    if epoch is None:
        if is_new:
            raise StartupError(f"history {path}: a database of another program")
        return
    if is_new:  # both must be set before there is a table
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


_NEW_IN: Final = {
    2: (_KEYS,),
    3: (_COMMITS, _ERASURE),
    4: (_CHANNEL, _NUMBERING),
    5: ("DROP TABLE directory", _DIRECTORY, "DELETE FROM segment"),
    6: (),  # blocks of another layout; those of former versions stay as they are
}


def _upgrade(
    connection: sqlite3.Connection,
    path: Path,
    number: Callable[[sqlite3.Connection], None],
    *,
    may_write: bool,
) -> None:
    """Upgrade a log of an older version in one transaction; leave any other unchanged."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != LOG.application_id or not 0 < version < LOG.version:
        return
    if not may_write:
        raise StartupError(
            f"history {path}: schema version {version}; "
            f"a server that opens it upgrades it to {LOG.version}"
        )
    with sqlite.transaction(connection):
        for new, statements in _NEW_IN.items():
            for statement in statements if new > version else ():
                connection.execute(statement)
        if version < _NUMBERED:
            number(connection)
        connection.execute(f"PRAGMA user_version = {LOG.version}")


@attrs.define
class FileCheck:
    """Checks at intervals that the file that is written is still at its path.

    So where the file vanishes, a tenth of a second of appends is lost with it, and no more.
    """

    _identity: FileIdentity
    _next: float = 0.0
    _problem: str = ""

    def check(self) -> None:
        """Check, if the last check is long enough ago.

        Raises:
            HistoryUnavailable: the file is not there. It may be back later.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _CHECK_INTERVAL
            try:
                self._identity.check()
                self._problem = ""
            except OSError as error:
                self._problem = f"its file is gone: {error.strerror}"
        if self._problem:
            raise HistoryUnavailable(f"History is unavailable: {self._problem}")
