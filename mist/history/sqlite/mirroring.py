"""The table `mirror`: how far a log is that mirrors another; see `mist.history.mirroring`.

It is made where a log becomes a mirror, so it needs no version of the schema: others have none.
"""

import sqlite3
from typing import Final

import msgspec

from mist.history.sqlite.gaps import note_skipped
from mist.history.sqlite.rows import checked, fetch

__all__ = ["begin_mirror", "note_left_out", "put_offset", "read_mirrored", "rename_mirror"]

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS mirror (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        epoch TEXT NOT NULL,         -- of the log that is mirrored
        offset INTEGER NOT NULL      -- of the last of what was applied
    ) STRICT
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
