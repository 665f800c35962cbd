"""The table of what is known of the clock; see `mist.history.leaps`.

It is made when there is something to record. So it needs no version of the schema: a mist that
doesn't know it leaves it alone.
"""

import sqlite3
from typing import Final

import msgspec

from mist.history.leaps import ClockRecord, Leap, Reading
from mist.history.sqlite.rows import checked, fetch

__all__ = ["put_clock_record", "read_clock_record"]

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS clock (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        wall INTEGER NOT NULL,       -- see Reading for this and the following
        steady INTEGER NOT NULL,
        boot TEXT NOT NULL,
        leaps TEXT NOT NULL          -- JSON: `after` and `by` of each
    ) STRICT
"""
_decode: Final = msgspec.json.Decoder(list[tuple[int, int]]).decode


def read_clock_record(connection: sqlite3.Connection) -> ClockRecord | None:
    """What was recorded; None where nothing was."""
    if not fetch(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'clock'"):
        return None
    rows = fetch(connection, "SELECT wall, steady, boot, leaps FROM clock")
    if not rows:
        return None
    ((wall, steady, boot, leaps),) = rows
    with checked():
        return ClockRecord(
            Reading(wall, steady, boot), tuple(Leap(*each) for each in _decode(leaps))
        )


def put_clock_record(connection: sqlite3.Connection, record: ClockRecord) -> None:
    """Record that, in a transaction of the caller's."""
    reading = record.reading
    leaps = msgspec.json.encode([(each.after, each.by) for each in record.leaps]).decode()
    connection.execute(_TABLE)
    connection.execute(
        "INSERT OR REPLACE INTO clock VALUES (1, ?, ?, ?, ?)",
        (reading.wall, reading.steady, reading.boot, leaps),
    )
