"""The table `mirror`: how far a log is that mirrors another; see `mist.history.mirroring`.

It is made where a log becomes a mirror, so it needs no version of the schema: others have none.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mist.history.erasure import Erasure, PendingErasure
from mist.history.sqlite.gaps import note_skipped
from mist.history.sqlite.rows import checked, fetch

__all__ = [
    "begin_mirror",
    "forget_erasure",
    "note_left_out",
    "put_erasures",
    "put_notes",
    "put_offset",
    "read_erasures",
    "read_mirrored",
    "read_notes",
    "rename_mirror",
]

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS mirror (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        epoch TEXT NOT NULL,         -- of the log that is mirrored
        offset INTEGER NOT NULL      -- of the last of what was applied
    ) STRICT
"""


_ERASURES: Final = """
    CREATE TABLE IF NOT EXISTS mirror_erasure (  -- see PendingErasure for this and the following
        offset INTEGER PRIMARY KEY,
        upto INTEGER NOT NULL,
        erasure TEXT NOT NULL        -- JSON: tags or null, publisher or null
    ) STRICT
"""

_NOTES: Final = """
    CREATE TABLE IF NOT EXISTS mirror_note (
        name BLOB PRIMARY KEY,
        value BLOB NOT NULL
    ) STRICT, WITHOUT ROWID
"""

# All that is known of messages.
_TABLES: Final = (
    *("block", "segment", "directory", "key", "writer", "erasure", "channel", "numbering"),
    "tracked",
)


def begin_mirror(connection: sqlite3.Connection, epoch: str, offset: int, newest: int) -> None:
    """See `BlockStore.begin_mirror`. Part of a transaction, as the others.

    Raises:
        sqlite3.Error: untranslated.
    """
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table}")  # noqa: S608
    connection.execute(_TABLE)
    connection.execute(_ERASURES)
    connection.execute(_NOTES)
    connection.execute("DELETE FROM mirror_erasure")
    connection.execute("DELETE FROM mirror_note")
    connection.execute("INSERT OR REPLACE INTO mirror VALUES (1, ?, ?)", (epoch, offset))
    connection.execute(
        "UPDATE log SET epoch = ?1, newest = ?2, latest = 0, floor = ?2, trimmed = ?2, "
        "untracked = ?2, patterns = ''",
        (epoch, newest),
    )
    note_skipped(connection, newest)


def rename_mirror(connection: sqlite3.Connection, epoch: str, offset: int) -> None:
    """See `BlockStore.rename_mirror`."""
    connection.execute("UPDATE mirror SET epoch = ?, offset = ?", (epoch, offset))
    connection.execute("UPDATE log SET epoch = ?", (epoch,))


def put_offset(connection: sqlite3.Connection, offset: int) -> None:
    """Note how far it is."""
    connection.execute("UPDATE mirror SET offset = ?", (offset,))


def put_erasures(connection: sqlite3.Connection, erasures: Sequence[PendingErasure]) -> None:
    """Add to those that are pending."""
    for each in erasures:
        tags = None if each.erasure.tags is None else sorted(each.erasure.tags)
        values = msgspec.json.encode([tags, each.erasure.publisher]).decode()
        connection.execute(
            "INSERT INTO mirror_erasure VALUES (?, ?, ?)", (each.offset, each.upto, values)
        )


def read_erasures(connection: sqlite3.Connection) -> list[PendingErasure]:
    """See `BlockStore.pending_erasures`."""
    if not fetch(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'mirror_erasure'"):
        return []
    rows = fetch(connection, "SELECT offset, upto, erasure FROM mirror_erasure ORDER BY offset")
    with checked():
        found = [
            (offset, upto, msgspec.json.decode(text, type=tuple[list[str] | None, str | None]))
            for offset, upto, text in msgspec.convert(rows, list[tuple[int, int, str]])
        ]
    return [
        PendingErasure(offset, upto, Erasure(None if tags is None else frozenset(tags), publisher))
        for offset, upto, (tags, publisher) in found
    ]


def forget_erasure(connection: sqlite3.Connection, offset: int) -> None:
    """See `BlockStore.forget_erasure`."""
    connection.execute("DELETE FROM mirror_erasure WHERE offset = ?", (offset,))


def put_notes(connection: sqlite3.Connection, notes: Mapping[bytes, bytes | None]) -> None:
    """Keep these, and forget those that are None."""
    if notes:
        connection.execute(_NOTES)
    for name, value in notes.items():
        if value is None:
            connection.execute("DELETE FROM mirror_note WHERE name = ?", (name,))
        else:
            connection.execute("INSERT OR REPLACE INTO mirror_note VALUES (?, ?)", (name, value))


def read_notes(connection: sqlite3.Connection) -> dict[bytes, bytes]:
    """See `BlockStore.notes`."""
    if not fetch(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'mirror_note'"):
        return {}
    rows = fetch(connection, "SELECT name, value FROM mirror_note")
    with checked():
        return dict(msgspec.convert(rows, list[tuple[bytes, bytes]]))


def note_left_out(connection: sqlite3.Connection, upto: int) -> None:
    """Note that an id was given for which there is nothing, and perhaps ids below it."""
    connection.execute("UPDATE log SET newest = max(newest, ?)", (upto,))
    note_skipped(connection, upto)


def read_mirrored(connection: sqlite3.Connection) -> tuple[str, int] | None:
    """See `BlockStore.mirrored`."""
    if not fetch(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'mirror'"):
        return None
    rows = fetch(connection, "SELECT epoch, offset FROM mirror")
    with checked():
        found = msgspec.convert(rows, list[tuple[str, int]])
    return found[0] if found else None
