"""Staging of rows: validated and split into parts.

A part is one Arrow stream and the body of one request. It is filled up to `MOST` bytes, since a
request for each of Spark's small batches would cost more than their rows.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from mist.pipeline.source.errors import UnfitRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["MOST", "check_columns", "parts"]

MOST: Final = 2 << 20  # bytes of a part; one row that is larger by itself makes a larger one
_FRAME: Final = 4096  # bytes of a stream beside its batches' own

# Columns that a message is made of, and what each may be.
_TAKEN: Final = {
    "tags": ("array<string>",),
    "data": ("binary", "string"),
    "audience": ("string",),
    "meta": ("map<string,binary>",),
}
# What the server decides. They stand in what was read from another one, and are left out.
_ITS_OWN: Final = ("id", "time", "publisher")
_NEEDED: Final = ("tags", "data")

_STAGED: Final = {
    "tags": pa.list_(pa.string()),
    "data": pa.binary(),
    "audience": pa.string(),
    "meta": pa.map_(pa.string(), pa.binary()),
}


def check_columns(schema: "StructType") -> tuple[str, ...]:
    """The columns to be staged.

    Raises:
        UnfitRows: one is missing, of another type, or means nothing to a message.
    """
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in _NEEDED:
        if name not in found:
            raise UnfitRows(f"no column {name}: a message has tags array<string>, data binary")
    for name, kind in found.items():
        if name in _ITS_OWN:
            continue
        if name not in _TAKEN:
            raise UnfitRows(f"column {name} is no part of a message; there are {', '.join(_TAKEN)}")
        if kind not in _TAKEN[name]:
            raise UnfitRows(f"column {name} is {' or '.join(_TAKEN[name])}, not {kind}")
    return tuple(name for name in _TAKEN if name in found)


def parts(
    batches: Iterable[pa.RecordBatch], columns: tuple[str, ...], most: int = MOST
) -> Iterator[bytes]:
    """Arrow streams of all rows, in order.

    Args:
        columns: what `check_columns` found.
        most: bytes of a part.
    """
    schema = pa.schema([(name, _STAGED[name]) for name in columns])
    waiting: list[pa.RecordBatch] = []
    size = _FRAME
    for batch in batches:
        for piece in _pieces(_staged(batch, schema), most - _FRAME):
            added = pa.ipc.get_record_batch_size(piece)
            if waiting and size + added > most:
                yield _stream(waiting, schema)
                waiting, size = [], _FRAME
            waiting.append(piece)
            size += added
    if waiting:
        yield _stream(waiting, schema)


def _staged(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    # Halved until it fits: rows may be of any size, and one large one needs a part of its own.
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
