"""Rows of the table `block`: the statements that write and read them, and their checks."""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import attrs
import msgspec

from mist.errors import HistoryDamaged
from mist.history.layout import Head, Row
from mist.history.sqlite.database import translated

__all__ = ["checked", "fetch", "insert", "read_heads", "read_rows"]

_HEAD: Final = "first, last, start, messages, oldest, newest, size"
_INSERT: Final = f"INSERT INTO block ({_HEAD}, checksum, hashes, body) VALUES (?,?,?,?,?,?,?,?,?,?)"  # noqa: S608
_SELECT: Final = f"SELECT {_HEAD}, checksum, hashes, body FROM block"  # noqa: S608

_HeadValues = tuple[int, int, int, int, int, int, int]
_RowValues = tuple[int, int, int, int, int, int, int, int, bytes, bytes]
_decode_heads: Final = msgspec.json.Decoder(list[_HeadValues]).decode


@contextmanager
def checked() -> Iterator[None]:
    """Treat values of unexpected types as damage."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise HistoryDamaged(0, f"the database is damaged: {error}") from error


def fetch(
    connection: sqlite3.Connection, statement: str, parameters: Sequence[object] = ()
) -> list[Sequence[Any]]:
    """All rows of a statement."""
    with translated():
        return connection.execute(statement, parameters).fetchall()


def insert(connection: sqlite3.Connection, row: Row) -> None:
    """Insert a block. One statement, so a transaction by itself where none is open.

    Raises:
        sqlite3.Error: untranslated, since the caller translates it.
    """
    connection.execute(_INSERT, (*attrs.astuple(row.head), row.checksum, row.hashes, row.body))


def read_rows(
    connection: sqlite3.Connection, which: str, parameters: Sequence[object]
) -> Generator[Row, None, None]:
    """Blocks, one at a time.

    Args:
        which: what follows `FROM block`.
    """
    statement = f"{_SELECT} {which}"
    with translated(), closing(connection.execute(statement, parameters)) as cursor:
        for values in cursor:
            with checked():
                *head, checksum, hashes, body = msgspec.convert(values, _RowValues)
            yield Row(Head(*head), hashes, checksum, body)


def read_heads(
    connection: sqlite3.Connection, which: str, parameters: Sequence[object] = ()
) -> Sequence[Head]:
    """Heads of blocks, ascending.

    They are read as one row that holds them all: each row is a wait for the interpreter lock, and
    beside a busy event loop 500 of them take seconds.

    Args:
        which: what follows `FROM block`.
    """
    ((packed,),) = fetch(
        connection,
        f"SELECT json_group_array(json_array({_HEAD})) FROM "  # noqa: S608
        f"(SELECT {_HEAD} FROM block {which})",
        parameters,
    )
    with checked():
        return [Head(*values) for values in sorted(_decode_heads(packed))]
