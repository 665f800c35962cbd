"""An archive's folder, read through its manifest.

A task holds a range of ids, not names of files, and looks them up when it begins: compaction
and erasure may have written a generation since the query was planned. Should one do so while
the task reads, a file is gone at worst after its grace; then the manifest is looked at again,
and the task goes on in the generation that there is.

Ids below the first segment were in no archive, or have been retained or erased away.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mist.archive.manifest import Archive, Manifest, Segment, Table
from mist.pipeline.selection import Alternatives, Bounds, Range, Selection
from mist.pipeline.source.errors import DataLoss
from mist.pipeline.source.origins import Losses, Origin, Standing
from mist.pipeline.source.splitting import Stretch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ArchiveOrigin"]

ATTEMPTS = 5  # generations that may pass while one segment is being opened


@attrs.frozen
class ArchiveOrigin(Origin):
    """The archive in the folder `path`."""

    path: str

    def stands(self, *, moment: int | None = None, patient: bool = True) -> Standing:
        table = self._table()
        manifest = table.current()
        segments = manifest.segments
        first = segments[0].first if segments else manifest.sealed + 1
        after = None
        if moment is not None and segments:
            after = Range(until=moment).resolve(segments, _edge(table)).upto
        return Standing(manifest.epoch, first, manifest.sealed, after)

    def segments(self, stretch: Stretch) -> Sequence[Bounds]:
        return [
            segment
            for segment in self._table().current().segments
            if segment.last > stretch.after and segment.first <= stretch.upto
        ]

    def read(
        self,
        stretch: Stretch,
        alternatives: Alternatives,
        columns: Sequence[str],
        batch_size: int,
        losses: Losses,
    ) -> Iterator[pa.RecordBatch]:
        table = self._table()
        manifest = table.current()
        if manifest.epoch != stretch.epoch:
            losses.found(
                f"{self.path} has become another log's archive: messages"
                f" {stretch.after + 1} to {stretch.upto} of the former can't be had any more"
            )
            return
        _tell_lost(manifest, stretch, losses)
        wanted = sorted({"id", "tags", *columns} if alternatives else {"id", *columns})
        at = stretch.after
        failed = 0
        while (segment := _next(manifest, at, stretch.upto)) is not None:
            selection = Selection(Range(at, stretch.upto), alternatives)
            try:
                yield from _rows(table.path(segment), selection, wanted, batch_size)
            except FileNotFoundError:
                # It is opened once, and an open file stays readable: none of it was given yet.
                failed += 1
                manifest = table.current()
                if failed == ATTEMPTS or manifest.epoch != stretch.epoch:
                    raise DataLoss(
                        f"{self.path}: {segment.file} is in the manifest and not there"
                    ) from None
                continue
            except (OSError, pa.ArrowException) as error:
                losses.found(
                    f"{self.path}: {segment.file} can't be read: {str(error).splitlines()[0]}"
                )
            failed = 0
            at = segment.last

    def _table(self) -> Table:
        return Archive.open(Path(self.path)).messages


def _next(manifest: Manifest, after: int, upto: int) -> Segment | None:
    for segment in manifest.segments:
        if segment.last > after and segment.first <= upto:
            return segment
    return None


def _tell_lost(manifest: Manifest, stretch: Stretch, losses: Losses) -> None:
    first = manifest.segments[0].first if manifest.segments else manifest.sealed + 1
    gone = [(stretch.after + 1, min(stretch.upto, first - 1)), *manifest.lost]
    for low, high in gone:
        low, high = max(low, stretch.after + 1), min(high, stretch.upto)
        if low <= high:
            losses.found(f"messages {low} to {high} can't be had any more")


def _rows(
    path: Path, selection: Selection, columns: list[str], batch_size: int
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        groups = _groups(file.metadata, selection.range)
        for batch in file.iter_batches(batch_size, groups, columns):
            yield selection.filter(batch)


def _groups(metadata: Any, wanted: Range) -> list[int]:
    # Row groups in which ids of the range may be, by their statistics.
    column = metadata.schema.names.index("id")

    def touched(n: int) -> bool:
        known = metadata.row_group(n).column(column).statistics
        if known is None or not known.has_min_max:
            return True
        return known.max > wanted.after and (wanted.upto is None or known.min <= wanted.upto)

    return [n for n in range(metadata.num_row_groups) if touched(n)]


def _edge(table: Table) -> "Callable[[Segment, int], int]":
    def edge(segment: Segment, moment: int) -> int:
        rows = pq.read_table(table.path(segment), columns=["id", "time"])
        times = rows.column("time").cast(pa.int64()).to_numpy()
        older = int(np.searchsorted(times, moment, side="left"))
        return int(rows.column("id")[older - 1].as_py()) if older else segment.first - 1

    return edge
