"""Validation of staged parts: an Arrow stream is checked, and encoded as blocks of a log.

Rows are validated here, before any of them is stored; a commit only copies them. The sender of an
Arrow stream chooses offsets, lengths and types, so nothing is trusted: types that can expand to
more than was sent (dictionaries, views, run-length encoding) and compression are refused before a
batch is read, and every batch is validated in full. The result can't be larger than the body.

Needs pyarrow, and must be imported and called in a thread.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from mist.archive.publishing import InvalidRow, to_publications
from mist.errors import CommandError
from mist.history import Publication
from mist.history.commits import make_blocks, pack_blocks
from mist.http.problems import Problem
from mist.http.staging_store import Part
from mist.message import Limits

__all__ = ["make_part"]

_MOST_ROWS: Final = 250_000
_AT_ONCE: Final = 250  # rows: pyarrow converts them at once, holding the interpreter lock

_BATCH: Final = 3  # a message's header type: `RecordBatch` of Arrow's Message.fbs
_TAGS: Final = pa.list_(pa.string())
_META: Final = pa.map_(pa.string(), pa.binary())

_TEXTS: Final = (pa.string(), pa.large_string())
_LISTS: Final = tuple(kind(each) for kind in (pa.list_, pa.large_list) for each in _TEXTS)
_TAKEN: Final = {
    "tags": _LISTS,
    "data": (pa.binary(), pa.large_binary(), *_TEXTS),
    "audience": _TEXTS,
    "meta": (_META,),
}
_CAST: Final = {"tags": _TAGS, "data": pa.binary(), "audience": pa.string(), "meta": _META}
_OF_SERVICES: Final = ("audience", "meta")


def make_part(
    body: bytes, limits: Limits, publisher: str, *, is_service: bool, site: str = ""
) -> tuple[int, tuple[bytes, ...], bytes]:
    """Validate a part and encode it for `mist.http.staging_store`.

    Returns its number of rows, its distinct tag lists where the grant has to be checked, and its
    bytes.

    Args:
        body: an Arrow IPC stream.
        limits: of tags and data.
        publisher: of the messages.
        is_service: whether the caller may set all columns.
        site: that they are restricted to, see `to_publications`.

    Raises:
        Problem: it is no valid stream, or has another schema (400), too many rows (413), or an
            invalid row (422).
    """
    try:
        batches = list(_read(body, is_service=is_service))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        text = str(error).partition("\n")[0][:200]
        raise Problem(400, "invalid_body", f"the body is no such Arrow stream: {text}") from None
    rows = sum(len(batch) for batch in batches)
    if rows > _MOST_ROWS:
        raise Problem(413, "payload_too_large", f"a part has at most {_MOST_ROWS} rows")
    lists: set[bytes] = set()
    try:
        blocks = make_blocks(_noting(_publications(batches, publisher, limits, site), lists))
    except InvalidRow as error:
        raise _invalid_row(error.row, str(error.error)) from None
    kept = () if is_service else tuple(sorted(lists))
    return rows, kept, Part(rows, kept, pack_blocks(blocks), site).encoded


def _read(body: bytes, *, is_service: bool) -> Iterator[pa.RecordBatch]:
    _refuse_compression(body)
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        _check_schema(stream.schema, is_service=is_service)
        for batch in stream:
            batch.validate(full=True)
            yield pa.record_batch(
                [batch.column(name).cast(_CAST[name]) for name in batch.schema.names],
                names=batch.schema.names,
            )


def _check_schema(schema: pa.Schema, *, is_service: bool) -> None:
    names = schema.names
    for name in ("tags", "data"):
        if name not in names:
            raise _wrong_schema(f"there is no column {name}")
    for field in schema:
        if names.count(field.name) > 1 or field.name not in _TAKEN:
            raise _wrong_schema(f"the columns are {', '.join(_TAKEN)}, each once at most")
        if not any(_same(field.type, each) for each in _TAKEN[field.name]):
            raise _wrong_schema(f"{field.name} is {_CAST[field.name]}")
        if field.name in _OF_SERVICES and not is_service:
            raise _wrong_schema(f"{field.name} is for services, not for tokens")


def _same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types are equal except for names and nullability of nested fields."""
    if pa.types.is_map(wanted):
        return bool(
            pa.types.is_map(found)
            and found.key_type == wanted.key_type
            and found.item_type == wanted.item_type
        )
    if pa.types.is_nested(wanted):
        return bool(found.id == wanted.id and found.value_type == wanted.value_type)
    return bool(found == wanted)


def _wrong_schema(detail: str) -> Problem:
    return Problem(400, "invalid_schema", detail)


def _invalid_row(row: int, reason: str) -> Problem:
    return Problem(422, "invalid_row", f"row {row}: {reason}")


# rows


def _publications(
    batches: Iterable[pa.RecordBatch], publisher: str, limits: Limits, site: str
) -> Iterator[Publication]:
    start = 0
    known: dict[tuple[str, ...], bytes] = {}
    for batch in batches:
        _refuse_nulls(batch, start)
        for at in range(0, len(batch), _AT_ONCE):
            piece = batch.slice(at, _AT_ONCE)
            try:
                yield from to_publications(piece, 0.0, publisher, limits, known, site)
            except InvalidRow as error:
                raise InvalidRow(start + at + error.row, error.error) from None
        start += len(batch)


def _noting(publications: Iterable[Publication], lists: set[bytes]) -> Iterator[Publication]:
    for publication in publications:
        lists.update(publication.batch.tag_lists)
        yield publication


class _Null(CommandError):
    code = "null"
    message = "a null in it"


def _refuse_nulls(batch: pa.RecordBatch, start: int) -> None:
    for name in ("tags", "data"):
        column = batch.column(name)
        if column.null_count:
            raise InvalidRow(start + _first(pc.is_null(column)), _Null(f"{name} is null"))
    tags = batch.column("tags")
    if tags.flatten().null_count:
        inside = pc.list_parent_indices(tags).filter(pc.is_null(tags.flatten()))
        raise InvalidRow(start + inside[0].as_py(), _Null("a tag is null"))
    if "meta" in batch.schema.names:
        meta = batch.column("meta")
        for row in range(len(meta)) if _has_null_item(meta) else ():
            if any(value is None for _, value in meta[row].as_py() or ()):
                raise InvalidRow(start + row, _Null("a value in meta is null"))


def _has_null_item(meta: pa.MapArray) -> bool:
    return bool(meta.items.null_count)


def _first(mask: pa.BooleanArray) -> int:
    return int(pc.index(mask, True).as_py())


# compression: each buffer declares its size, and pyarrow allocates that much


def _refuse_compression(body: bytes) -> None:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    while (message := _next(messages)) is not None:
        try:
            compressed = _is_compressed(bytes(message.metadata))
        except (struct.error, IndexError):
            raise Problem(400, "invalid_body", "a message's head can't be read") from None
        if compressed:
            raise Problem(400, "compressed", "compressed Arrow isn't accepted")


def _next(messages: pa.ipc.MessageReader) -> pa.ipc.Message | None:
    try:
        return messages.read_next_message()
    except StopIteration:
        return None


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message is a record batch with compressed buffers (Arrow's Message.fbs).

    pyarrow has verified the flatbuffer, and doesn't show this field of it.
    """
    message = struct.unpack_from("<I", metadata)[0]
    kind = _field(metadata, message, 1)
    header = _field(metadata, message, 2)
    if kind is None or header is None or metadata[kind] != _BATCH:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, batch, 3) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table is; None where it has its default."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    size = struct.unpack_from("<H", metadata, vtable)[0]
    slot = 4 + 2 * number
    if slot >= size:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0]
    return table + offset if offset else None
