"""Segments: one Parquet file of a table, written atomically."""

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mist.archive.generations import sync_directory
from mist.archive.manifest import ArchiveDamaged, ArchiveError, Segment
from mist.archive.schema import ROW_GROUP, TIME, writer_options
from mist.archive.table import Table

__all__ = [
    "SegmentWriter",
    "day_of",
    "iter_batches",
    "older_than",
    "read_segment",
    "write_segment",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def day_of(microseconds: int) -> date:
    """The day (UTC) of a time since 1970."""
    return (_EPOCH + timedelta(microseconds=microseconds)).date()


class SegmentWriter:
    """A segment that is being written, batch by batch, each small enough for memory.

    It is durable when `finish` returns, and not yet listed in the manifest. One that isn't
    finished leaves an unused file; `abandon` deletes it.

    Args:
        table: the table it will belong to.
        schema: of the table.
        day: of every row (UTC).
        part: distinguishes two files of the same ids, as when one is rewritten.

    Attributes:
        day: as given.
        rows: written so far.
    """

    def __init__(self, table: Table, schema: pa.Schema, day: date, part: str = "") -> None:
        self._table = table
        self._schema = schema
        self._part = part
        self.day = day
        self._folder = table.folder / f"date={day.isoformat()}"
        self._time = next(field.name for field in schema if field.type == TIME)
        self._oldest: int | None = None
        self._newest = 0
        self._path: Path | None = None
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    @property
    def bytes(self) -> int:
        """Bytes written so far, without the open row group."""
        if self._path is None:
            return 0
        return self._path.stat().st_size

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows, as one row group or several.

        Raises:
            ArchiveError: the disk is full, the directory is gone.
        """
        if not rows.num_rows:
            return
        try:
            if self._writer is None:
                self._writer = self._begin()
            table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
            self._writer.write_table(table, row_group_size=ROW_GROUP)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        bounds = pc.min_max(rows.column(self._time).cast(pa.int64())).as_py()
        oldest = bounds["min"]
        self._oldest = oldest if self._oldest is None else min(self._oldest, oldest)
        self._newest = max(self._newest, bounds["max"])
        self.rows += rows.num_rows

    def finish(self, first: int, last: int) -> Segment:
        """Close the file, durably.

        Args:
            first, last: see `Segment`.

        Raises:
            ArchiveError: the disk is full, the directory is gone.
            ValueError: it has no row.
        """
        if self._writer is None or self._path is None or self._oldest is None:
            raise ValueError("a segment needs a row")
        name = f"{first:020}-{last:020}{self._part}.parquet"
        try:
            self._writer.close()
            with open(self._path, "rb+") as file:
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            os.rename(self._path, self._folder / name)
            sync_directory(self._folder)
            sync_directory(self._table.folder)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        return Segment(
            f"{self._folder.name}/{name}", first, last, self.rows, size, self._oldest, self._newest
        )

    def abandon(self) -> None:
        """Delete the file."""
        if self._writer is not None and self._path is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._path.unlink(missing_ok=True)

    def _begin(self) -> pq.ParquetWriter:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Hidden from Spark; unique, since two processes may write the same segment, at two machines
        # perhaps. The process is named for those that look whether it is alive.
        name = f".{os.getpid()}-{secrets.token_hex(8)}.parquet.tmp"
        self._path = self._folder / name
        return pq.ParquetWriter(self._path, self._schema, **writer_options(self._schema))

    def _failed(self, error: Exception) -> ArchiveError:
        reason = getattr(error, "strerror", None) or str(error)
        return ArchiveError(f"archive {self._table.folder}: {reason.splitlines()[0]}")


def write_segment(
    table: Table,
    rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
    schema: pa.Schema,
    first: int,
    last: int,
    *,
    day: date | None = None,
    part: str = "",
) -> Segment:
    """Write a segment of rows that are all of one day. See `SegmentWriter`.

    Args:
        day: None takes that of the first row; then `rows` must be a table or a batch.
    """
    batches = [rows] if isinstance(rows, pa.Table | pa.RecordBatch) else rows
    if day is None:
        assert isinstance(rows, pa.Table | pa.RecordBatch)
        time = next(field.name for field in schema if field.type == TIME)
        day = day_of(rows.column(time)[0].cast(pa.int64()).as_py())
    writer = SegmentWriter(table, schema, day, part)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.finish(first, last)
    except BaseException:
        writer.abandon()
        raise


def read_segment(table: Table, segment: Segment, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a segment.

    Raises:
        ArchiveDamaged: it can't be read.
    """
    batches = list(iter_batches(table, segment, columns))
    if batches:
        return pa.Table.from_batches(batches)
    schema = pq.read_schema(table.path(segment))
    return (
        schema if columns is None else pa.schema([schema.field(name) for name in columns])
    ).empty_table()


def iter_batches(
    table: Table,
    segment: Segment,
    columns: Sequence[str] | None = None,
    batch_size: int = 20_000,
    *,
    within: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """A segment's rows, a batch at a time.

    Args:
        within: first and last id of a range: row groups that can't hold any of these are
            skipped. None reads all.

    Raises:
        ArchiveDamaged: it can't be read, or isn't there.
    """
    path = table.path(segment)
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            groups = None if within is None else _groups(file.metadata, *within)
            yield from file.iter_batches(batch_size, groups, columns)
    except (OSError, pa.ArrowException) as error:
        raise ArchiveDamaged(f"archive {path}: {str(error).splitlines()[0]}") from error


def _groups(metadata: pq.FileMetaData, first: int, last: int) -> list[int]:
    """Row groups in which ids of a range may be, by their statistics."""
    place = metadata.schema.names.index("id")

    def may_hold(number: int) -> bool:
        known = metadata.row_group(number).column(place).statistics
        return known is None or not known.has_min_max or (known.max >= first and known.min <= last)

    return [number for number in range(metadata.num_row_groups) if may_hold(number)]


def older_than(table: Table, segment: Segment, moment: int) -> int:
    """The highest id of a segment that is older than a moment; the one before its first if none is.

    Args:
        moment: microseconds since 1970.

    Raises:
        ArchiveDamaged: it can't be read.
    """
    if segment.oldest >= moment:
        return segment.first - 1
    rows = read_segment(table, segment, ["id", "time"])
    times = rows.column("time").cast(pa.int64()).to_numpy()
    place = int(np.searchsorted(times, moment, "left"))
    return int(rows.column("id")[place - 1].as_py()) if place else segment.first - 1
