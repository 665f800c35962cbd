"""The table `key`: the statements that write and read it; see `mist.history.idempotency`."""

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from mist.history.idempotency import OWNER_BYTES
from mist.history.record import KeyRecord
from mist.history.sqlite.rows import checked, fetch

__all__ = ["crowding_keys", "forget_keys", "insert_keys", "keys_above", "outdated_keys", "read_key"]

_AT_ONCE: Final = 1_000  # of a statement, which takes 32,766 parameters

_KeyValues = tuple[int, int, bytes, bytes]


def insert_keys(connection: sqlite3.Connection, keys: Sequence[KeyRecord]) -> None:
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


def read_key(connection: sqlite3.Connection, name: bytes) -> KeyRecord | None:
    """The key with this name."""
    rows = fetch(connection, "SELECT first, time, name, digest FROM key WHERE name = ?", (name,))
    with checked():
        found = msgspec.convert(rows, list[_KeyValues])
    return KeyRecord(*found[0]) if found else None


def keys_above(connection: sqlite3.Connection, first: int, limit: int) -> list[KeyRecord]:
    """See `BlockStore.keys`."""
    rows = fetch(
        connection,
        "SELECT first, time, name, digest FROM key WHERE first > ? ORDER BY first LIMIT ?",
        (first, limit),
    )
    with checked():
        return [KeyRecord(*each) for each in msgspec.convert(rows, list[_KeyValues])]


def outdated_keys(connection: sqlite3.Connection, before: int, most: int, step: int) -> int:
    """See `BlockStore.outdated`. O(keys), in C: times ascend with `first`, so one is sought."""
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


def crowding_keys(connection: sqlite3.Connection, most: int, step: int) -> tuple[bytes, int] | None:
    """See `BlockStore.crowding`. O(keys), in C: names of an owner stand together in their index, so
    one with too many is met by strides of as many. Grouping them would sort all, for a second.
    """
    passed = b""
    while True:
        rows = fetch(
            connection,
            "SELECT name FROM key WHERE name > ? ORDER BY name LIMIT 1 OFFSET ?",
            (passed, most),
        )
        if not rows:
            return None
        owner = bytes(rows[0][0][:OWNER_BYTES])
        ((count,),) = fetch(
            connection, "SELECT count(*) FROM key WHERE name BETWEEN ? AND ?", _names_of(owner)
        )
        if count > most:
            break
        _, passed = _names_of(owner)
    ((upto,),) = fetch(
        connection,
        "SELECT max(first) FROM "
        "(SELECT first FROM key WHERE name BETWEEN ? AND ? ORDER BY first LIMIT ?)",
        (*_names_of(owner), min(count - most, step)),
    )
    return owner, int(upto)


def forget_keys(connection: sqlite3.Connection, upto: int, owner: bytes) -> None:
    """See `BlockStore.forget`.

    Raises:
        sqlite3.Error: untranslated.
    """
    if owner:
        connection.execute(
            "DELETE FROM key WHERE first <= ? AND name BETWEEN ? AND ?", (upto, *_names_of(owner))
        )
    else:
        connection.execute("DELETE FROM key WHERE first <= ?", (upto,))


def _names_of(owner: bytes) -> tuple[bytes, bytes]:
    """The lowest and the highest name that begin so."""
    return owner, owner + b"\xff" * 32
