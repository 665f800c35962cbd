"""`sqlite:///…`: the registry in a SQLite file that one server has for itself.

A token is one row, its tags and attributes in their canonical forms. A table of tags beside it
would be the normal form; but nothing ever asks the database about a tag, and a row for each tag
would be a statement for each tag, each of which may wait for the interpreter lock beside a busy
event loop. For the same reason rows are written hundreds at a time.

Locked exclusively for as long as it is open: the registry answers from memory and would not see
what a second process writes. Tokens are changed through the server.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Self

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth import Record, TokenStore
from mist.auth.digests import Digests
from mist.auth.key import create_key, read_key
from mist.auth.secret_file import warn_if_exposed
from mist.errors import InvalidAudience, RegistryUnavailable, StartupError
from mist.message import format_tags
from mist.sqlite import DAMAGED, DatabaseKind, FileIdentity, connect, create, transaction

__all__ = ["REGISTRY", "SqliteStore", "check_key"]

REGISTRY: Final = DatabaseKind("token registry", application_id=0x6D73746B, version=4)  # "mstk"

_ROWS: Final = 140  # a statement; seven parameters each, and some builds take only 999
_LOCK_TIMEOUT: Final = 0.5  # seconds; a server that is just stopping still holds the file

# New in version 2.
_ATTRIBUTES: Final = "attributes TEXT NOT NULL DEFAULT ''"  # see Attributes.text
# New in version 3; see `mist.terms`.
_EXPIRES: Final = "expires REAL"  # Unix seconds
_NAME: Final = "name TEXT NOT NULL DEFAULT ''"
# New in version 4: of the key, of which there is one row, or none yet; see `Digests.fingerprint`.
_KEY_TABLE: Final = """
    CREATE TABLE token_key (
        fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 32)
    ) STRICT
"""
_ADD: Final = "ALTER TABLE token ADD COLUMN "
_UPGRADES: Final = {
    1: (_ADD + _ATTRIBUTES, _ADD + _EXPIRES, _ADD + _NAME, _KEY_TABLE),
    2: (_ADD + _EXPIRES, _ADD + _NAME, _KEY_TABLE),
    3: (_KEY_TABLE,),
}
_SCHEMA: Final = f"""
    CREATE TABLE token (
        digest BLOB NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
        id TEXT NOT NULL UNIQUE,
        tags TEXT NOT NULL, -- sorted, joined by commas
        created REAL NOT NULL, -- Unix seconds
        {_ATTRIBUTES},
        {_EXPIRES},
        {_NAME}
    ) STRICT
"""
_COLUMNS: Final = "digest, id, tags, created, attributes, expires, name"

_Row = tuple[bytes, str, str, float, str, float | None, str]


def _rows(records: Iterable[Record]) -> Iterator[_Row]:
    return (
        (
            each.digest,
            each.id,
            format_tags(each.tags),
            each.created,
            each.attributes.text,
            each.expires,
            each.name,
        )
        for each in records
    )


def _record(row: _Row) -> Record:
    digest, id_, tags, created, text, expires, name = row
    # Most tokens have none: they share one value.
    attributes = Attributes.parse(text) if text else NO_ATTRIBUTES
    granted = frozenset(tags.split(",") if tags else ())
    return Record(id_, digest, granted, created, attributes, expires, name)


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
        self._identity = FileIdentity.of(path)

    @classmethod
    def open(cls, location: str) -> Self:
        """See `TokenStore.open`. The key is kept in a file beside the database, `<path>.key`.

        Args:
            location: `/` and the path, which is taken as it is: `/tokens.db` is relative,
                `//var/lib/mist/tokens.db` absolute. Missing directories are made.
        """
        path = REGISTRY.locate(location)
        with REGISTRY.startup_errors(path):
            create(path)
            connection = connect(path, _LOCK_TIMEOUT)
            try:
                _prepare(connection, path)
                warn_if_exposed(path, path.stat())
                return cls(connection, path, _key(connection, path))
            except BaseException:
                connection.close()
                raise

    def load(self) -> Iterable[Record]:
        with REGISTRY.startup_errors(self._path):
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM token")  # noqa: S608
            try:
                return list(map(_record, rows))
            except InvalidAudience as error:
                # Without them the token would get messages meant for others.
                raise StartupError(f"token registry {self._path}: {DAMAGED}") from error

    def write(self, changes: Mapping[bytes, Record | None]) -> None:
        gone = [digest for digest, record in changes.items() if record is None]
        kept = [record for record in changes.values() if record is not None]
        try:
            self._identity.check()
            with transaction(self._connection):
                self._remove(gone)
                self._put(_rows(kept))
        except (sqlite3.Error, OSError) as error:
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
            marks = ",".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(some))
            # Not OR REPLACE: that would silently remove another token with the same id.
            self._connection.execute(
                f"INSERT INTO token ({_COLUMNS}) VALUES {marks} "  # noqa: S608
                "ON CONFLICT (digest) DO UPDATE SET id = excluded.id, tags = excluded.tags, "
                "created = excluded.created, attributes = excluded.attributes, "
                "expires = excluded.expires, name = excluded.name",
                [value for row in some for value in row],
            )

    def close(self) -> None:
        self._connection.close()


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Lock the database, check whose it is and that it is sound, make its tables if new."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    upgrade = _upgrade(connection)
    is_new = not upgrade and REGISTRY.is_new(connection, path)
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise StartupError(f"token registry {path}: {DAMAGED}")
    REGISTRY.enable_wal(connection, path)
    if is_new:
        with REGISTRY.initializing(connection):
            connection.execute(_SCHEMA)
            connection.execute(_KEY_TABLE)
    elif upgrade:
        with transaction(connection):
            for statement in upgrade:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {REGISTRY.version}")


def _upgrade(connection: sqlite3.Connection) -> Sequence[str]:
    """What makes a registry of an earlier version one of this; nothing for any other database."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return _UPGRADES.get(version, ()) if application == REGISTRY.application_id else ()


def _key(connection: sqlite3.Connection, path: Path) -> bytes:
    """The key, which the registry remembers from now on."""
    key = check_key(connection, path) or create_key(_key_path(path))
    fingerprint = Digests(key).fingerprint
    if _fingerprint(connection) != fingerprint:
        with transaction(connection):
            connection.execute("DELETE FROM token_key")
            connection.execute("INSERT INTO token_key VALUES (?)", (fingerprint,))
    return key


def check_key(connection: sqlite3.Connection, path: Path) -> bytes | None:
    """The key of the registry at `path`; None where there is none, nor anything to use it for.

    Any will do while there is no token. Writes nothing; the registry may be of an earlier version.

    Raises:
        OSError: it can't be read.
        StartupError: it is missing, is no key, or not the one that the tokens were stored with.
    """
    key_path = _key_path(path)
    (tokens,) = connection.execute("SELECT count(*) FROM token").fetchone()
    try:
        key = read_key(key_path)
    except FileNotFoundError:
        if not tokens:
            return None
        raise StartupError(
            f"token registry {path}: its key {key_path.name} is missing, and no token can "
            "be recognised without it; put it back, or remove the database to start afresh"
        ) from None
    if tokens and _fingerprint(connection) not in (None, Digests(key).fingerprint):
        raise StartupError(
            f"token registry {path}: {key_path.name} is another key than the one it was made with, "
            "and no token can be recognised with it; put that back, or remove the database to "
            "start afresh"
        )
    return key


def _key_path(path: Path) -> Path:
    return path.with_name(path.name + ".key")


def _fingerprint(connection: sqlite3.Connection) -> bytes | None:
    """That of the key which the registry was opened with; None where it doesn't say."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < REGISTRY.version:
        return None
    found: tuple[bytes] | None = connection.execute("SELECT fingerprint FROM token_key").fetchone()
    return None if found is None else found[0]
