"""Staging of rows: validation, and encoding in parts.

A part is one Arrow stream, sent as the body of one request. It is filled up to `MAX_PART` bytes: a
request for each of Spark's small batches would cost more than its rows.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from mist.pipeline.source.errors import UnfitRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["MAX_PART", "check_columns", "parts"]

MAX_PART: Final = 2 << 20  # bytes of a part; a single larger row makes a larger part
_STREAM_OVERHEAD: Final = 4096  # bytes of a stream in addition to its batches

# The columns of a message, and the types that each may have.
_COLUMN_TYPES: Final = {
    "tags": ("array<string>",),
    "data": ("binary", "string"),
    "audience": ("string",),
    "meta": ("map<string,binary>",),
}
# Assigned by the server. Rows read from another server have these columns; they are ignored.
_SERVER_COLUMNS: Final = ("id", "time", "publisher")
_REQUIRED: Final = ("tags", "data")

_ARROW_TYPES: Final = {
    "tags": pa.list_(pa.string()),
    "data": pa.binary(),
    "audience": pa.string(),
    "meta": pa.map_(pa.string(), pa.binary()),
}


def check_columns(schema: "StructType") -> tuple[str, ...]:
    """Validate the schema; the columns to stage.

    Raises:
        UnfitRows: a column is missing, has another type, or is no column of a message.
    """
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in _REQUIRED:
        if name not in found:
            raise UnfitRows(f"no column {name}: a message has tags array<string>, data binary")
    for name, kind in found.items():
        if name in _SERVER_COLUMNS:
            continue
        if name not in _COLUMN_TYPES:
            raise UnfitRows(
                f"column {name} is no part of a message; there are {', '.join(_COLUMN_TYPES)}"
            )
        if kind not in _COLUMN_TYPES[name]:
            raise UnfitRows(f"column {name} is {' or '.join(_COLUMN_TYPES[name])}, not {kind}")
    return tuple(name for name in _COLUMN_TYPES if name in found)


def parts(
    batches: Iterable[pa.RecordBatch], columns: tuple[str, ...], most: int = MAX_PART
) -> Iterator[bytes]:
    """Arrow streams of all rows, in order.

    Args:
        columns: from `check_columns`.
        most: bytes of a part.
    """
    schema = pa.schema([(name, _ARROW_TYPES[name]) for name in columns])
    buffered: list[pa.RecordBatch] = []
    size = _STREAM_OVERHEAD
    for batch in batches:
        for piece in _pieces(_cast(batch, schema), most - _STREAM_OVERHEAD):
            added = pa.ipc.get_record_batch_size(piece)
            if buffered and size + added > most:
                yield _stream(buffered, schema)
                buffered, size = [], _STREAM_OVERHEAD
            buffered.append(piece)
            size += added
    if buffered:
        yield _stream(buffered, schema)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    # Halved until it fits. Rows may have any size; a large one gets a part of its own.
    if not len(batch):
        return
    if len(batch) == 1 or pa.ipc.get_record_batch_size(batch) <= most:
        yield batch
        return
    half = len(batch) // 2
    yield from _pieces(batch.slice(0, half), most)
    yield from _pieces(batch.slice(half), most)


def _stream(batches: list[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
