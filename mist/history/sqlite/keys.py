"""The table `key`: the statements that write and read it; see `mist.history.keys`."""

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from mist.history.keys import Kept
from mist.history.sqlite.rows import checked, fetch

__all__ = ["insert_keys", "outdated_keys", "read_key"]

_AT_ONCE: Final = 1_000  # of a statement, which takes 32,766 parameters

_KeyValues = tuple[int, int, bytes, bytes]


def insert_keys(connection: sqlite3.Connection, keys: Sequence[Kept]) -> None:
    """Add keys, each in the place of an older one of its name. Part of a transaction.

    Raises:
        sqlite3.Error: untranslated, since it is part of something larger.
    """
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join(["(?, ?, ?, ?)"] * len(some))
        connection.execute(
            f"INSERT OR REPLACE INTO key (first, time, name, digest) VALUES {marks}",  # noqa: S608
            [value for kept in some for value in (kept.first, kept.time, kept.name, kept.digest)],
        )


def read_key(connection: sqlite3.Connection, name: bytes) -> Kept | None:
    """The key with this name."""
    rows = fetch(connection, "SELECT first, time, name, digest FROM key WHERE name = ?", (name,))
    with checked():
        found = msgspec.convert(rows, list[_KeyValues])
    return Kept(*found[0]) if found else None


def outdated_keys(connection: sqlite3.Connection, before: int, most: int, step: int) -> int:
    """See `Shelf.outdated`. O(keys), in C: times ascend with `first`, so one is sought."""
    ((upto,),) = fetch(
        connection,
        "SELECT max("
        "coalesce((SELECT max(first) FROM (SELECT first, time FROM key ORDER BY first LIMIT ?1) "
        "WHERE time < ?2), 0), "
        "coalesce((SELECT max(first) FROM (SELECT first FROM key ORDER BY first "
        "LIMIT max(min((SELECT count(*) FROM key) - ?3, ?1), 0))), 0))",
        (step, before, most),
    )
    return int(upto)
