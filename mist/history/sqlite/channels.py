"""The tables `channel` and `numbering`: the statements that write and read them; see
`mist.history.numbering`.

However many channels a block has, reading their positions is one statement and writing them is
one: each statement, and each row returned, is a wait for the interpreter lock.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from mist.history.encoding import with_channel_counts
from mist.history.layout import Head, Row
from mist.history.numbering import (
    ChannelCounts,
    ChannelPosition,
    advanced,
    channel_key,
    pack_befores,
)
from mist.history.sqlite.rows import checked, fetch

__all__ = [
    "add",
    "channels_above",
    "number_all",
    "put_channels",
    "put_numbers",
    "read_channels",
    "read_numbers",
]

_READ: Final = (
    "SELECT json_group_array(json_array(name, json_array(last, id, time, floor, age))) "
    "FROM channel WHERE name IN (SELECT value FROM json_each(?))"
)
_WRITE: Final = (
    "INSERT OR REPLACE INTO channel (name, last, id, time, floor, age) SELECT "
    "json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), "
    "json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]') "
    "FROM json_each(?)"
)
_Values = tuple[int, int, int, int, int | None]  # of a ChannelPosition
_NEW: Final = (0, 0, 0, 0, None)
_decode: Final = msgspec.json.Decoder(list[tuple[str, _Values]]).decode
_encode: Final = msgspec.json.Encoder().encode


def read_channels(
    connection: sqlite3.Connection, keys: Sequence[str]
) -> dict[str, ChannelPosition]:
    """Positions of channels by their keys."""
    return {key: ChannelPosition(*values) for key, values in _read(connection, keys).items()}


def _read(connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, _Values]:
    ((packed,),) = fetch(connection, _READ, (_encode(keys).decode(),))
    with checked():
        return dict(_decode(packed))


def add(connection: sqlite3.Connection, head: Head, tally: ChannelCounts) -> None:
    """Advance the channels of a block and store its numbers. Part of its transaction.

    Raises:
        sqlite3.Error: untranslated, since the caller's transaction translates it.
    """
    keys = list(map(channel_key, tally))
    befores = _read(connection, keys)
    values, numbers = [], []
    for key, added in zip(keys, tally.values(), strict=True):
        last, _, _, floor, _ = befores.get(key, _NEW)
        numbers.append(last)
        values.append((key, *advanced(last, floor, added, head.first, head.newest)))
    connection.execute(_WRITE, (_encode(values).decode(),))
    put_numbers(connection, head.first, pack_befores(numbers))


def channels_above(
    connection: sqlite3.Connection, key: str, limit: int
) -> list[tuple[str, ChannelPosition]]:
    """See `BlockStore.all_channels`."""
    rows = fetch(
        connection,
        "SELECT name, last, id, time, floor, age FROM channel WHERE name > ? ORDER BY name LIMIT ?",
        (key, limit),
    )
    with checked():
        found = msgspec.convert([(each[0], each[1:]) for each in rows], list[tuple[str, _Values]])
    return [(name, ChannelPosition(*values)) for name, values in found]


def put_channels(
    connection: sqlite3.Connection, channels: Sequence[tuple[str, ChannelPosition]]
) -> None:
    """Store positions of channels by their keys. Part of a transaction; raises as `add`."""
    values = [(key, attrs.astuple(position)) for key, position in channels]
    connection.execute(_WRITE, (_encode([(key, *each) for key, each in values]).decode(),))


def put_numbers(connection: sqlite3.Connection, first: int, numbers: bytes) -> None:
    """Store the numbers of a block. Part of its transaction; raises as `add`."""
    connection.execute("INSERT INTO numbering VALUES (?, ?)", (first, numbers))


def read_numbers(connection: sqlite3.Connection, first: int) -> bytes | None:
    """The numbers of the block with this key."""
    rows = fetch(connection, "SELECT numbers FROM numbering WHERE first = ?", (first,))
    return bytes(rows[0][0]) if rows else None


def number_all(connection: sqlite3.Connection) -> None:
    """Number the messages of an older version that had no numbers, from 1.

    Blocks that can't be read get none. Reads the whole log, which takes seconds for a gigabyte.
    Part of a transaction; raises as `add`.
    """
    keys = connection.execute("SELECT first FROM block ORDER BY first").fetchall()
    for (first,) in keys:
        ((newest, body),) = connection.execute(
            "SELECT newest, body FROM block WHERE first = ?", (first,)
        ).fetchall()
        head = Head(first, first, first, 1, newest, newest, 0)
        try:
            row = with_channel_counts(Row(head, b"", 0, body))
        except (ValueError, TypeError):  # `verify` reports it
            continue
        if row.tally is not None:
            add(connection, head, row.tally)
