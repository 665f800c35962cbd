"""Rows of the table `block`: the statements that write and read them, and their checks."""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec

from mist.errors import HistoryDamaged
from mist.history.layout import PREFIX, Head, Row, index_size
from mist.history.pieces import AnyRow, OpenRow
from mist.history.sqlite.database import translated

__all__ = ["checked", "fetch", "insert", "open_rows", "read_heads", "read_rows"]

_HEAD: Final = "first, last, start, messages, oldest, newest, size"
_INSERT: Final = f"INSERT INTO block ({_HEAD}, checksum, hashes, body) VALUES (?,?,?,?,?,?,?,?,?,?)"  # noqa: S608
_head_values: Final = attrgetter(*_HEAD.split(", "))
_SELECT: Final = f"SELECT {_HEAD}, checksum, hashes, body FROM block"  # noqa: S608

# Below that, to read all of it takes no longer than to open it.
_SMALL: Final = 32_768  # bytes
_SELECT_SMALL: Final = (
    f"SELECT {_HEAD}, checksum, "  # noqa: S608
    "CASE WHEN size < ? THEN hashes END, CASE WHEN size < ? THEN body END FROM block"
)

_HeadValues = tuple[int, int, int, int, int, int, int]
_RowValues = tuple[int, int, int, int, int, int, int, int, bytes, bytes]
_SmallRowValues = tuple[int, int, int, int, int, int, int, int, bytes | None, bytes | None]
_WHOLE: Final = (*[int] * 8, bytes, bytes)
_NOT_READ: Final = (*[int] * 8, NoneType, NoneType)
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
    connection.execute(_INSERT, (*_head_values(row.head), row.checksum, row.hashes, row.body))


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
            if tuple(map(type, values)) != _WHOLE:  # quick, unlike `convert`, which tells why
                with checked():
                    msgspec.convert(values, _RowValues)
            *head, checksum, hashes, body = values
            yield Row(Head(*head), hashes, checksum, body)


def open_rows(
    connection: sqlite3.Connection, which: str, parameters: Sequence[object]
) -> Generator[AnyRow, None, None]:
    """As `read_rows`, but large blocks are opened: most of a body isn't what a search is for."""
    statement = f"{_SELECT_SMALL} {which}"
    values_of = (_SMALL, _SMALL, *parameters)
    with translated(), closing(connection.execute(statement, values_of)) as cursor:
        for values in cursor:
            if tuple(map(type, values)) not in (_WHOLE, _NOT_READ):
                with checked():
                    msgspec.convert(values, _SmallRowValues)
            *numbers, checksum, hashes, body = values
            head = Head(*numbers)
            if body is not None and hashes is not None:
                yield Row(head, hashes, checksum, body)
                continue
            with ExitStack() as opened:
                row = _open(connection, head, opened)
                if row is not None:
                    yield row
                    continue
            yield from read_rows(connection, "WHERE first = ?", (head.first,))


def _open(connection: sqlite3.Connection, head: Head, opened: ExitStack) -> OpenRow | None:
    """Open a block; None if it has to be read as a whole, as one of a former version."""
    try:
        blob = connection.blobopen("block", "body", head.first, readonly=True)
    except sqlite3.OperationalError:  # it is no blob: of that, reading all of the row tells
        return None
    opened.enter_context(blob)
    prefix = blob.read(PREFIX)
    size = index_size(prefix)
    if size is None:
        return None
    begin = PREFIX + min(size, len(blob))  # it may be damaged

    def read(start: int, end: int) -> bytes:
        try:
            with translated():
                blob.seek(min(begin + start, len(blob)))
                return blob.read(end - start)
        except HistoryDamaged as error:
            raise head.damaged(error.reason) from error

    return OpenRow(head, prefix + blob.read(begin - PREFIX), read)


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
