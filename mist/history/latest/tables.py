"""The tables of latest values, in a database of their own beside the log.

    key      a tag that matches a pattern, by its hash
    kind     everything else that a message is selected by: its other tags, its audience, its
             publisher. Messages of one key and one kind match the same subscriptions, are seen
             by the same sessions, and are erased by the same erasures
    entry    the id of the newest message of each key and kind

So of the messages that a subscription matches, the newest of each key is among the entries,
whatever the subscription. Mostly a key has one entry, or as many as its orders have states.

Keys and kinds are hashes of 64 bits with a random salt: nobody can make two tags that have the
same. An entry takes some 70 bytes of the file, its index by id included, and nothing in memory but
the pages that SQLite caches.

Nothing here is lost that is not in the log: a database that is damaged, or of another log, is made
anew. It is written in large transactions, since the pages of many keys are written at random.
"""

import hashlib
import secrets
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from mist import sqlite
from mist.errors import HistoryUnavailable, StartupError
from mist.history.latest.files import IN_MEMORY, remove_tables
from mist.sqlite import DatabaseKind

__all__ = ["Kind", "LatestTables"]

Kind = tuple[str, str | None]
"""Its tags beside the key, as a tag list; and its audience."""

_FILE: Final = DatabaseKind("latest values", application_id=0x6D736C76, version=1)  # "mslv"
_CACHE: Final = 16_384  # KiB of pages
_BUSY_TIMEOUT: Final = 2.0  # seconds
_COMMITTED: Final = 50_000  # entries in one transaction
_SECONDS: Final = 5.0  # that a smaller one stays open
_KINDS: Final = 10_000  # kinds that are remembered
_ROWS: Final = 10_000  # entries read or written by one statement

_SCHEMA: Final = (
    """CREATE TABLE state (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        epoch TEXT NOT NULL,         -- of the log
        patterns TEXT NOT NULL,      -- joined by LF
        upto INTEGER NOT NULL        -- all messages up to this id are in
    ) STRICT""",
    "CREATE TABLE salt (id INTEGER PRIMARY KEY CHECK (id = 1), salt BLOB NOT NULL) STRICT",
    """CREATE TABLE kind (
        kind INTEGER PRIMARY KEY,
        tags TEXT NOT NULL,
        audience TEXT,
        entries INTEGER NOT NULL     -- that have it
    ) STRICT""",
    """CREATE TABLE entry (
        key INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        id INTEGER NOT NULL,
        PRIMARY KEY (key, kind)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX by_id ON entry (id)",
    """CREATE TRIGGER entry_made AFTER INSERT ON entry BEGIN
        UPDATE kind SET entries = entries + 1 WHERE kind = new.kind;
    END""",
    """CREATE TRIGGER entry_gone AFTER DELETE ON entry BEGIN
        UPDATE kind SET entries = entries - 1 WHERE kind = old.kind;
        DELETE FROM kind WHERE kind = old.kind AND entries = 0;
    END""",
)
_encode: Final = msgspec.json.Encoder().encode
_numbers: Final = msgspec.json.Decoder(list[int]).decode
_entries: Final = msgspec.json.Decoder(list[tuple[int, int, int]]).decode
_kinds: Final = msgspec.json.Decoder(list[tuple[int, str, str | None]]).decode


class LatestTables:
    """See the module. Used by one thread at a time.

    Args:
        path: of the file; `IN_MEMORY` for none.

    Attributes:
        epoch, patterns: of the log and of the keys that it is made of; empty where it is new.
        upto: up to this id all messages are in.

    Raises:
        StartupError: there can be no such file.
        HistoryUnavailable: each method, where the file can't be read or written. It is as after
            the last commit then; or where it is damaged, as new.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._open()
        except (sqlite3.DatabaseError, UnicodeDecodeError, StartupError):
            with _FILE.startup_errors(Path(path)):
                remove_tables(path)
                self._open()
        except OSError as error:
            raise StartupError(f"latest values {path}: {error.strerror}") from error

    def _open(self) -> None:
        self._remembered: dict[int, Kind] = {}
        self._added = 0  # entries of the transaction
        self._begun = 0.0
        in_memory = self._path == IN_MEMORY
        path = Path(self._path)
        if not in_memory:
            sqlite.create(path)
        self._connection = connection = sqlite.connect(path, _BUSY_TIMEOUT)
        try:
            is_new = _FILE.is_new(connection, path)
            if not in_memory:
                _FILE.enable_wal(connection, path)
            # What is erased must not be left in it.
            connection.execute("PRAGMA secure_delete = ON").fetchall()
            connection.execute(f"PRAGMA cache_size = -{_CACHE}")
            if is_new:
                with _FILE.initializing(connection):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    connection.execute("INSERT INTO state VALUES (1, '', '', 0)")
                    connection.execute("INSERT INTO salt VALUES (1, ?)", (secrets.token_bytes(16),))
            ((salt,),) = connection.execute("SELECT salt FROM salt").fetchall()
            self._salted = hashlib.blake2b(digest_size=8, key=salt)
            self._load()
        except BaseException:
            connection.close()
            raise

    def _load(self) -> None:
        ((self.epoch, patterns, self.upto),) = self._connection.execute(
            "SELECT epoch, patterns, upto FROM state"
        ).fetchall()
        self.patterns = tuple(patterns.split("\n")) if patterns else ()

    def hash(self, text: bytes) -> int:
        """The hash that stands for a key or a kind."""
        salted = self._salted.copy()
        salted.update(text)
        return int.from_bytes(salted.digest(), "little", signed=True)

    @contextmanager
    def _working(self, *, writes: bool = False) -> Iterator[None]:
        try:
            if writes and not self._connection.in_transaction:
                self._connection.execute("BEGIN IMMEDIATE")
                self._begun = time.monotonic()
            yield
        except (sqlite3.Error, UnicodeDecodeError, msgspec.MsgspecError, ValueError) as error:
            self._recover(error)
            raise HistoryUnavailable("History is unavailable: its latest values are") from error

    def _recover(self, error: Exception) -> None:
        """Be as after the last commit, or as new."""
        self._added = 0
        with suppress(sqlite3.Error, ValueError):
            self._connection.rollback()
            self._load()
            if isinstance(error, sqlite3.Error) and not sqlite.is_damage(error):
                return
        self._connection.close()
        with suppress(OSError, sqlite3.Error, StartupError):  # or else the next call tries again
            remove_tables(self._path)
            self._open()

    def begin(self, epoch: str, patterns: Sequence[str]) -> None:
        """Have nothing, and begin with the first message of a log."""
        with self._working(writes=True):
            execute = self._connection.execute
            execute("DROP TRIGGER entry_gone")  # so that SQLite needs not look at each entry
            execute("DELETE FROM entry")
            execute("DELETE FROM kind")
            execute(_SCHEMA[-1])
            execute(
                "UPDATE state SET epoch = ?, patterns = ?, upto = 0", (epoch, "\n".join(patterns))
            )
        self.epoch, self.patterns, self.upto = epoch, tuple(patterns), 0
        self.commit()

    def add(
        self, entries: Mapping[tuple[int, int], int], kinds: Mapping[int, Kind], upto: int
    ) -> None:
        """Add what messages up to an id have brought.

        Args:
            entries: ids by key and kind, none lower than one that was added before.
            kinds: at least those of the entries that are new.
        """
        with self._working(writes=True):
            execute = self._connection.execute
            if entries:
                execute(
                    "INSERT OR IGNORE INTO kind SELECT json_extract(value, '$[0]'), "
                    "json_extract(value, '$[1]'), json_extract(value, '$[2]'), 0 "
                    "FROM json_each(?)",
                    (_text([(kind, *of) for kind, of in kinds.items()]),),
                )
                rows = [(key, kind, id_) for (key, kind), id_ in entries.items()]
                for start in range(0, len(rows), _ROWS):
                    # In their order: neighbours stand on one page.
                    some = sorted(rows[start : start + _ROWS])
                    execute(
                        "INSERT INTO entry SELECT json_extract(value, '$[0]'), "
                        "json_extract(value, '$[1]'), json_extract(value, '$[2]') "
                        "FROM json_each(?) WHERE TRUE "
                        "ON CONFLICT (key, kind) DO UPDATE SET id = excluded.id",
                        (_text(some),),
                    )
            execute("UPDATE state SET upto = ?", (upto,))
        self.upto = upto
        self._added += len(entries)

    def commit_in_time(self) -> None:
        """Commit what was added, if that is much, or long ago."""
        with self._working():
            is_time = self._connection.in_transaction and (
                self._added >= _COMMITTED or time.monotonic() >= self._begun + _SECONDS
            )
        if is_time:
            self.commit()

    def commit(self) -> None:
        """Make all that was added durable."""
        with self._working():
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")
        self._added = 0

    def ids(self, after: int, upto: int, limit: int) -> Sequence[int]:
        """The lowest ids of entries in `(after, upto]`, ascending."""
        with self._working():
            ((packed,),) = self._connection.execute(
                "SELECT json_group_array(id) FROM (SELECT DISTINCT id FROM entry "
                "WHERE id > ? AND id <= ? ORDER BY id LIMIT ?)",
                (after, upto, limit),
            ).fetchall()
            return sorted(_numbers(packed))

    def forget(self, ids: Sequence[int]) -> None:
        """Forget the entries of messages that are no longer there."""
        with self._working(writes=True):
            self._connection.execute(
                "DELETE FROM entry WHERE id IN (SELECT value FROM json_each(?))", (_text(ids),)
            )

    def of_keys(self, keys: Collection[int]) -> Iterator[Sequence[tuple[int, int, int]]]:
        """All entries of some keys: key, kind, id. A key's come together, unless they are many."""
        asked = list(keys)
        while asked:
            found = self._of_keys(asked)
            if len(found) < _ROWS:
                yield found
                return
            if len(asked) == 1:
                yield from self._of_key(asked[0])
                return
            half = len(asked) // 2
            yield from self.of_keys(asked[:half])
            asked = asked[half:]

    def _of_keys(self, keys: Sequence[int]) -> Sequence[tuple[int, int, int]]:
        with self._working():
            ((packed,),) = self._connection.execute(
                "SELECT json_group_array(json_array(key, kind, id)) FROM (SELECT key, kind, id "
                "FROM entry WHERE key IN (SELECT value FROM json_each(?)) LIMIT ?)",
                (_text(keys), _ROWS),
            ).fetchall()
            return _entries(packed)

    def _of_key(self, key: int) -> Iterator[Sequence[tuple[int, int, int]]]:
        start, highest = -(1 << 63), (1 << 63) - 1
        while start <= highest:
            with self._working():
                ((packed,),) = self._connection.execute(
                    "SELECT json_group_array(json_array(key, kind, id)) FROM (SELECT key, kind, "
                    "id FROM entry WHERE key = ? AND kind >= ? ORDER BY kind LIMIT ?)",
                    (key, start, _ROWS),
                ).fetchall()
                found = _entries(packed)
            yield found
            if len(found) < _ROWS:
                return
            start = max(kind for _, kind, _ in found) + 1

    def kinds(self, numbers: Collection[int]) -> Mapping[int, Kind]:
        """What has these kinds, and perhaps others."""
        known = self._remembered
        missing = [each for each in numbers if each not in known]
        if missing:
            if len(known) > _KINDS:
                known.clear()
                missing = list(numbers)
            with self._working():
                ((packed,),) = self._connection.execute(
                    "SELECT json_group_array(json_array(kind, tags, audience)) FROM kind "
                    "WHERE kind IN (SELECT value FROM json_each(?))",
                    (_text(missing),),
                ).fetchall()
                known |= {kind: (tags, audience) for kind, tags, audience in _kinds(packed)}
        return known

    def count(self) -> int:
        """How many entries there are. O(entries)."""
        with self._working():
            ((entries,),) = self._connection.execute("SELECT count(*) FROM entry").fetchall()
        return int(entries)

    def size(self) -> int:
        """Bytes that it takes."""
        with self._working():
            ((pages,),) = self._connection.execute("PRAGMA page_count").fetchall()
            ((size,),) = self._connection.execute("PRAGMA page_size").fetchall()
        return int(pages) * int(size)

    def wipe(self) -> None:
        """Leave nothing of what was forgotten in the file."""
        self.commit()
        self._remembered.clear()
        with self._working():
            ((busy, _, _),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if busy > 0:
            raise HistoryUnavailable("History is unavailable: another process reads latest values")

    def close(self) -> None:
        """Commit and close. Idempotent."""
        with suppress(HistoryUnavailable):  # what is not committed is added again
            self.commit()
        self._connection.close()


def _text(value: object) -> str:
    return _encode(value).decode()
