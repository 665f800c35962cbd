"""An archive's directory, read through its manifest.

A task holds a range of ids, not names of files, and looks the files up when it begins:
compaction and erasure may have written a generation since the query was planned. Should one do
so while the task reads, a file may be removed after its grace period; then the manifest is read
again, and the task goes on in the current generation.

Ids below the first segment were never archived, or retention or an erasure removed them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from mist.archive.segments import older_than
from mist.archive.table import Archive, Table
from mist.pipeline.selection import Alternatives, Bounds, Range, Selection
from mist.pipeline.source.errors import DataLoss
from mist.pipeline.source.origins import LogPosition, Losses, Origin
from mist.pipeline.source.splitting import OffsetRange

__all__ = ["ArchiveOrigin"]

ATTEMPTS = 5  # generations that may pass while one segment is being opened


@attrs.frozen
class ArchiveOrigin(Origin):
    """The archive in the directory `path`."""

    path: str

    def position(self, *, moment: int | None = None, retry: bool = True) -> LogPosition:
        table = self._table()
        manifest = table.current()
        segments = manifest.segments
        after = None
        if moment is not None and segments:
            after = Range(until=moment).resolve(segments, partial(older_than, table)).upto
        return LogPosition(manifest.epoch, manifest.first, manifest.sealed, after)

    def segments(self, offsets: OffsetRange) -> Sequence[Bounds]:
        return [
            segment
            for segment in self._table().current().segments
            if segment.last > offsets.after and segment.first <= offsets.upto
        ]

    def read(
        self,
        offsets: OffsetRange,
        alternatives: Alternatives,
        columns: Sequence[str],
        batch_size: int,
        losses: Losses,
    ) -> Iterator[pa.RecordBatch]:
        table = self._table()
        manifest = table.current()
        if manifest.epoch != offsets.epoch:
            why = f"{self.path} has become another log's archive"
            losses.gone(offsets.after + 1, offsets.upto, why)
            return
        for first, last in manifest.gone(offsets.after, offsets.upto):
            losses.gone(first, last)
        wanted = sorted({"id", "tags", *columns} if alternatives else {"id", *columns})
        at = offsets.after
        failed = 0
        while (segment := manifest.following(at, offsets.upto)) is not None:
            selection = Selection(Range(at, offsets.upto), alternatives)
            try:
                yield from _rows(table.path(segment), selection, wanted, batch_size)
            except FileNotFoundError:
                # An open file stays readable, so no row of this segment was yielded yet.
                failed += 1
                known = max(at, manifest.first - 1)  # up to here it has been told what is gone
                manifest = table.current()
                if failed == ATTEMPTS or manifest.epoch != offsets.epoch:
                    raise DataLoss(
                        f"{self.path}: {segment.file} is in the manifest and not there"
                    ) from None
                first, last = known + 1, min(manifest.first - 1, offsets.upto)
                if first <= last:  # retention has removed the oldest segments meanwhile
                    losses.gone(first, last)
                continue
            except (OSError, pa.ArrowException) as error:
                losses.found(
                    f"{self.path}: {segment.file} can't be read: {str(error).splitlines()[0]}"
                )
            failed = 0
            at = segment.last

    def _table(self) -> Table:
        return Archive.open(Path(self.path)).messages


def _rows(
    path: Path, selection: Selection, columns: list[str], batch_size: int
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        groups = _groups(file.metadata, selection.range)
        for batch in file.iter_batches(batch_size, groups, columns):
            yield selection.filter(batch)


def _groups(metadata: Any, wanted: Range) -> list[int]:
    # Row groups that may contain ids of the range, by their statistics.
    column = metadata.schema.names.index("id")

    def touched(n: int) -> bool:
        known = metadata.row_group(n).column(column).statistics
        if known is None or not known.has_min_max:
            return True
        return known.max > wanted.after and (wanted.upto is None or known.min <= wanted.upto)

    return [n for n in range(metadata.num_row_groups) if touched(n)]
