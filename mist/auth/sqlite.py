"""`sqlite:///…`: the registry in a file that one server has for itself.

A token is one row, its tags in their canonical form. A table of tags beside it would be the
textbook's way; but nothing ever asks the database about a tag, and a row a tag is a statement
a tag, each of which may wait for the interpreter lock beside a busy event loop. For the same
reason rows are written hundreds at a time.

Locked exclusively for as long as it is open: the registry answers from memory, so a second
process that writes would be a truth of its own. Whoever wants to change tokens asks the
server.
"""

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, Self

from mist.auth import Record, TokenStore
from mist.auth.key import create_key, read_key, warn_if_open
from mist.errors import RegistryUnavailable, StartupError
from mist.message import format_tags

__all__ = ["SqliteStore"]

_APPLICATION_ID: Final = 0x6D73746B  # "mstk": mist tokens; a mist history has another
_VERSION: Final = 1  # of the schema
_ROWS: Final = 200  # a statement; four parameters each, and some builds take only 999
_PATIENCE: Final = 0.5  # seconds for a server that is just stopping to let go of the file

_SCHEMA: Final = """
    CREATE TABLE token (
        digest BLOB NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
        id TEXT NOT NULL UNIQUE,
        tags TEXT NOT NULL, -- sorted, joined by commas
        created REAL NOT NULL -- Unix seconds
    ) STRICT
"""

_Row = tuple[bytes, str, str, float]


def _rows(records: Iterable[Record]) -> Iterator[_Row]:
    return ((each.digest, each.id, format_tags(each.tags), each.created) for each in records)


def _record(row: _Row) -> Record:
    digest, name, tags, created = row
    return Record(name, digest, frozenset(tags.split(",") if tags else ()), created)


class SqliteStore(TokenStore):
    """See the module. Use `open`.

    Args:
        connection: to a database that is known to be a registry.
        path: the database's, for messages.
        key: see `TokenStore`.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, key: bytes) -> None:
        self.key = key
        self._connection = connection
        self._path = path

    @classmethod
    def open(cls, location: str) -> Self:
        """See `TokenStore.open`. The key is kept in a file beside the database, `<path>.key`.

        Args:
            location: `/` and the path, which is taken as it is: `/tokens.db` is relative,
                `//var/lib/mist/tokens.db` absolute. Missing folders are made.
        """
        path = _path(location)
        with _explained(path):
            _touch(path)
            connection = sqlite3.connect(
                path,
                timeout=_PATIENCE,
                isolation_level=None,  # transactions begin and end where we say
                check_same_thread=False,
            )
            try:
                _prepare(connection, path)
                warn_if_open(path, path.stat().st_mode)
                return cls(connection, path, _key(connection, path))
            except BaseException:
                connection.close()
                raise

    def load(self) -> Iterable[Record]:
        with _explained(self._path):
            rows = self._connection.execute("SELECT digest, id, tags, created FROM token")
            return list(map(_record, rows))

    def write(self, changes: Mapping[bytes, Record | None]) -> None:
        gone = [digest for digest, record in changes.items() if record is None]
        kept = [record for record in changes.values() if record is not None]
        try:
            with self._connection:  # commits, or rolls back
                self._connection.execute("BEGIN IMMEDIATE")
                self._remove(gone)
                self._put(_rows(kept))
        except sqlite3.Error as error:
            raise RegistryUnavailable from error

    def _remove(self, digests: Sequence[bytes]) -> None:
        for start in range(0, len(digests), _ROWS):
            some = digests[start : start + _ROWS]
            marks = ",".join("?" * len(some))
            self._connection.execute(
                f"DELETE FROM token WHERE digest IN ({marks})",  # noqa: S608  # marks only
                some,
            )

    def _put(self, rows: Iterator[_Row]) -> None:
        while some := list(islice(rows, _ROWS)):
            marks = ",".join(["(?, ?, ?, ?)"] * len(some))
            # Not OR REPLACE: that would silently remove another token with the same id.
            self._connection.execute(
                f"INSERT INTO token (digest, id, tags, created) VALUES {marks} "  # noqa: S608
                "ON CONFLICT (digest) DO UPDATE SET "
                "id = excluded.id, tags = excluded.tags, created = excluded.created",
                [value for row in some for value in row],
            )

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what goes wrong with the files into one line for whoever starts the server."""
    try:
        yield
    except OSError as error:
        raise StartupError(f"token registry {error.filename or path}: {error.strerror}") from error
    except sqlite3.Error as error:
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the rest is detail
            case sqlite3.SQLITE_BUSY:
                reason = "in use by another process"
            case sqlite3.SQLITE_NOTADB:
                reason = "not a database"
            case sqlite3.SQLITE_CORRUPT:
                reason = "the database is damaged"
            case _:
                reason = " ".join(str(error).split())
        raise StartupError(f"token registry {path}: {reason}") from error


def _path(location: str) -> Path:
    if not location.startswith("/") or not location[1:] or "\0" in location:
        raise StartupError("token registry: sqlite:/// needs three slashes and a path")
    # Absolute, so that nothing in it means anything to SQLite (`:memory:`), and a later chdir
    # changes nothing.
    return Path(os.path.abspath(location[1:]))


def _touch(path: Path) -> None:
    """Make the file where there is none, before SQLite does: for its owner's eyes only.

    SQLite gives the log beside it (`-wal`) the same mode.
    """
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    if not is_file:  # SQLite would take /dev/null, and leave its journal in /dev
        raise StartupError(f"token registry {path}: not a regular file")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Lock the database, see that it is ours and sound, make it ours where it is new.

    Nothing is written before it is known whose it is.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    is_new = (application, version, objects) == (0, 0, 0)
    if not is_new and application != _APPLICATION_ID:
        raise StartupError(f"token registry {path}: a database of another program")
    if not is_new and version != _VERSION:
        raise StartupError(
            f"token registry {path}: schema version {version}, but this mist knows {_VERSION}"
        )
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise StartupError(f"token registry {path}: the database is damaged")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
    if is_new:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")


def _key(connection: sqlite3.Connection, path: Path) -> bytes:
    key_path = path.with_name(path.name + ".key")
    try:
        return read_key(key_path)
    except FileNotFoundError:
        (tokens,) = connection.execute("SELECT count(*) FROM token").fetchone()
        if tokens:
            raise StartupError(
                f"token registry {path}: its key {key_path.name} is missing, and no token can "
                "be recognised without; put it back, or remove the database to begin anew"
            ) from None
        return create_key(key_path)
