"""Erasure in one Parquet file: it is scanned, and rewritten beside the old one."""

import hashlib
import os
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mist.history.erasing import Erasure
from mist.pipeline.erasure.rows import columns_for, doomed

__all__ = ["Rewritten", "count_doomed", "digest", "rewrite_parquet"]

BATCH: Final = 65_536  # rows looked at together
GROUP: Final = 100_000  # rows of a row group of a file that is written anew


@attrs.frozen
class Rewritten:
    """What became of a file; plain values, since it travels between processes.

    Attributes:
        removed: SHA-256 of what it was, in hex.
        erased, kept: rows.
        written: SHA-256 of what it is; empty where no row was left and it is gone.
    """

    file: str
    removed: str
    erased: int
    kept: int
    written: str


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def count_doomed(path: Path, erasure: Erasure) -> int:
    """How many rows of a Parquet file are to go. Reads only the columns that tell.

    Raises:
        OSError, pa.ArrowException: it can't be read.
        KeyError: it has no column that would tell.
    """
    with pq.ParquetFile(path, memory_map=True) as file:
        columns = columns_for(erasure, file.schema_arrow.names)
        batches = file.iter_batches(BATCH, columns=columns)
        return sum(int(np.count_nonzero(doomed(erasure, batch))) for batch in batches)


def rewrite_parquet(path: Path, erasure: Erasure) -> Rewritten:
    """Write a Parquet file anew without what is to go, in the place of the old one.

    Its name, schema and order stay. Durable on return; where no row is left the file goes.
    """
    removed = digest(path)
    temporary = path.with_name(f".{path.name}.tmp")
    erased = kept = 0
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            columns = columns_for(erasure, schema.names)
            codec = file.metadata.row_group(0).column(0).compression.lower()
            with pq.ParquetWriter(
                temporary, schema, compression="none" if codec == "uncompressed" else codec
            ) as writer:
                for batch in file.iter_batches(BATCH):
                    gone = doomed(erasure, batch.select(columns))
                    rest = batch.filter(pa.array(~gone))
                    erased += len(batch) - len(rest)
                    kept += len(rest)
                    if len(rest):
                        writer.write_batch(rest, row_group_size=GROUP)
        return put_in_place(path, temporary, removed, erased, kept)
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(path: Path, temporary: Path, removed: str, erased: int, kept: int) -> Rewritten:
    """Have a new file take the place of the old one, or nothing, where nothing is kept."""
    checksum = path.with_name(f".{path.name}.crc")  # Hadoop's, of the old one
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
