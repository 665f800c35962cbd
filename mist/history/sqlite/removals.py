"""The table `removal`: what was removed from the log, until its latest values have forgotten it.

It is made where latest values are kept, and dropped where they are no longer, so it needs no
version of the schema: in most logs there is none, and nothing is noted.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from mist.history.sqlite.rows import fetch

__all__ = ["are_noted", "forget_removals", "note_removals", "put_removed", "put_reset", "removals"]

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS removal (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        first INTEGER NOT NULL,      -- ids; 0 where all that was is gone
        last INTEGER NOT NULL
    ) STRICT
"""


def are_noted(connection: sqlite3.Connection) -> bool:
    """Whether there is the table."""
    return bool(fetch(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'removal'"))


def note_removals(connection: sqlite3.Connection, *, on: bool) -> None:
    """Make the table, or drop it. Raises sqlite3.Error untranslated, as the following."""
    connection.execute(_TABLE if on else "DROP TABLE IF EXISTS removal")


def put_removed(connection: sqlite3.Connection, keys: Sequence[int]) -> None:
    """Note that blocks are about to be removed or replaced. Part of that transaction."""
    rows = connection.execute(
        "SELECT first, last FROM block WHERE first IN (SELECT value FROM json_each(?)) "
        "ORDER BY first",
        (msgspec.json.encode(keys).decode(),),
    ).fetchall()
    ranges: list[list[int]] = []
    for first, last in rows:
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1][1] = last
        else:
            ranges.append([first, last])
    connection.executemany("INSERT INTO removal (first, last) VALUES (?, ?)", ranges)


def put_reset(connection: sqlite3.Connection) -> None:
    """Note that all is removed. Part of that transaction."""
    connection.execute("INSERT INTO removal (first, last) VALUES (0, 0)")


def removals(connection: sqlite3.Connection, limit: int) -> list[tuple[int, int, int]]:
    """See `BlockStore.removals`."""
    if not are_noted(connection):
        return []
    rows = fetch(
        connection, "SELECT number, first, last FROM removal ORDER BY number LIMIT ?", (limit,)
    )
    return [(number, first, last) for number, first, last in rows]


def forget_removals(connection: sqlite3.Connection, upto: int) -> None:
    """See `BlockStore.forget_removals`."""
    connection.execute("DELETE FROM removal WHERE number <= ?", (upto,))
