"""Erasure in one Parquet file: which rows match, and the rewrite of the file without them.

A file is scanned for matching rows, reading only the columns of the predicate. If it has any, a new
file is written beside it and takes its place by a rename.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mist.archive.matching import carrying
from mist.history.erasure import Erasure

__all__ = [
    "Rewritten",
    "count_matches",
    "digest",
    "matching_rows",
    "predicate_columns",
    "put_in_place",
    "rewrite_parquet",
]

BATCH: Final = 65_536  # rows of a batch
GROUP: Final = 100_000  # rows of a row group of a rewritten file

_SINGLE_TOPIC: Final = "(^|,)=/"


@attrs.frozen
class Rewritten:
    """A rewritten file. Plain values, since it is sent between processes.

    Attributes:
        removed: SHA-256 of the old file, in hex.
        erased, kept: numbers of rows.
        written: SHA-256 of the new file; empty where no row was left and it was deleted.
    """

    file: str
    removed: str
    erased: int
    kept: int
    written: str


def predicate_columns(erasure: Erasure, names: Sequence[str]) -> list[str]:
    """The columns of a table that the predicate of an erasure reads.

    Of messages (with a column `data`) these are `tags` and `publisher`. Of usage accounting:
    `subscription`, which has to have all the tags, and `token`, that of the publisher. Tags are
    compared as published: erasing `/foo` erases messages of that topic, not of topics below it.

    Args:
        names: of all columns.

    Raises:
        KeyError: a required column is missing.
    """
    messages = "data" in names
    wanted = []
    if erasure.tags is not None:
        wanted.append("tags" if messages else "subscription")
    if erasure.publisher is not None:
        wanted.append("publisher" if messages else "token")
    for name in wanted:
        if name not in names:
            raise KeyError(name)
    return wanted


def matching_rows(erasure: Erasure, batch: pa.RecordBatch) -> Any:
    """The rows of a batch to erase, as a numpy array of bool.

    Args:
        batch: with exactly the columns of `predicate_columns`.
    """
    found = np.ones(len(batch), bool)
    for name in batch.schema.names:
        found &= _column_matches(erasure, name, batch.column(name))
    return found


def _column_matches(erasure: Erasure, name: str, column: pa.Array) -> Any:
    if name == "tags":
        assert erasure.tags is not None
        return carrying(column, (erasure.tags,))
    if name == "subscription":
        assert erasure.tags is not None
        # A topic may be subscribed to with topics below it, or alone: both match.
        asked = pc.replace_substring_regex(column, _SINGLE_TOPIC, r"\1/")
        return carrying(pc.split_pattern(asked, ","), (erasure.tags,))
    same = pc.fill_null(pc.equal(column, erasure.publisher), False)
    return same.to_numpy(zero_copy_only=False)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def count_matches(path: Path, erasure: Erasure) -> int:
    """The number of rows of a Parquet file to erase. Reads only the predicate's columns.

    Raises:
        OSError, pa.ArrowException: the file can't be read.
        KeyError: a column of the predicate is missing.
    """
    with pq.ParquetFile(path, memory_map=True) as file:
        columns = predicate_columns(erasure, file.schema_arrow.names)
        batches = file.iter_batches(BATCH, columns=columns)
        return sum(int(np.count_nonzero(matching_rows(erasure, batch))) for batch in batches)


def rewrite_parquet(path: Path, erasure: Erasure) -> Rewritten:
    """Rewrite a Parquet file in place without the rows to erase.

    Its name, schema and order stay. Durable on return. Without any rows left it is deleted.
    """
    removed = digest(path)
    temporary = path.with_name(f".{path.name}.tmp")
    erased = kept = 0
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            columns = predicate_columns(erasure, schema.names)
            codec = file.metadata.row_group(0).column(0).compression.lower()
            with pq.ParquetWriter(
                temporary, schema, compression="none" if codec == "uncompressed" else codec
            ) as writer:
                for batch in file.iter_batches(BATCH):
                    gone = matching_rows(erasure, batch.select(columns))
                    rest = batch.filter(pa.array(~gone))
                    erased += len(batch) - len(rest)
                    kept += len(rest)
                    if len(rest):
                        writer.write_batch(rest, row_group_size=GROUP)
        return put_in_place(path, temporary, removed, erased, kept)
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(path: Path, temporary: Path, removed: str, erased: int, kept: int) -> Rewritten:
    """Replace a file by its new version, or delete it if no row is kept."""
    checksum = path.with_name(f".{path.name}.crc")  # of the old file, written by Hadoop
    if not kept:
        path.unlink()
        checksum.unlink(missing_ok=True)
        return Rewritten(path.name, removed, erased, 0, "")
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    written = digest(temporary)
    checksum.unlink(missing_ok=True)
    temporary.rename(path)
    return Rewritten(path.name, removed, erased, kept, written)
