"""The open segment: takes pages of a log, and writes row groups to the disk.

All of this runs in a worker thread, each call for some milliseconds; what takes longer
(compressing a row group, waiting for the disk) releases the interpreter lock.
"""

from datetime import date
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from mist.archive.manifest import Segment
from mist.archive.rows import parts_to_batch
from mist.archive.schema import MESSAGES, ROW_GROUP
from mist.archive.segments import SegmentWriter, day_of
from mist.archive.table import Table
from mist.history import ColumnPage

__all__ = ["OpenSegment", "Piece", "SealPolicy", "cut"]

_HELD: Final = 16 << 20  # bytes of rows buffered for a row group
_DAY: Final = 86_400_000_000  # microseconds

Range = tuple[int, int]
"""First and last id."""


@attrs.frozen
class SealPolicy:
    """When a segment is finished: at the first of these limits.

    Attributes:
        rows: of the segment; never exceeded.
        bytes: of its file.
        unsealed: bytes of messages in it. Far fewer than the log keeps, or they would be
            removed from the log before they are sealed.
        seconds: age of its oldest message.
    """

    rows: int = 500_000
    bytes: int = 64 << 20
    unsealed: int = 256 << 20
    seconds: float = 600.0


@attrs.frozen
class Piece:
    """Rows of one day.

    Attributes:
        batch: of `MESSAGES`, at least one row.
        day: of all of them (UTC).
    """

    batch: pa.RecordBatch
    day: date


def cut(page: ColumnPage, after: int, expired: int) -> tuple[list[Piece], list[Range]]:
    """Split a page into rows of one day each, and find which ids are missing from it.

    Args:
        page: of all messages after `after`.
        expired: the highest id that retention has removed. Ids absent up to this one are
            missing; above it they were erased, or never given.
    """
    batch = parts_to_batch(page.parts)
    if not batch.num_rows:
        return [], _gaps(np.empty(0, np.int64), after, page.after, expired)
    days = batch.column("time").cast(pa.int64()).to_numpy() // _DAY
    starts = [0, *(int(place) + 1 for place in np.flatnonzero(np.diff(days)))]
    ends = [*starts[1:], batch.num_rows]
    pieces = [
        Piece(batch.slice(start, end - start), day_of(int(days[start]) * _DAY))
        for start, end in zip(starts, ends, strict=True)
    ]
    return pieces, _gaps(batch.column("id").to_numpy(), after, page.after, expired)


def _gaps(ids: np.ndarray, after: int, end: int, expired: int) -> list[Range]:
    """The ids missing in `(after, end]`, up to `expired`."""
    if expired <= after:
        return []
    bounded = np.concatenate([[after], ids, [end + 1]])
    places = np.flatnonzero(np.diff(bounded) > 1)
    gaps = [(int(bounded[n]) + 1, min(int(bounded[n + 1]) - 1, expired)) for n in places]
    return [(first, last) for first, last in gaps if first <= last]


class OpenSegment:
    """A segment that is being written. See the module.

    Args:
        table: the table it will belong to.
        policy: when it is full.
        first: id of the first row to come.
        since: when that was read, by trio's clock.
        part: see `SegmentWriter`.

    Attributes:
        day, first, since: as given.
        last: id of the last row added.
        full: whether a limit is reached.
    """

    def __init__(
        self,
        table: Table,
        policy: SealPolicy,
        day: date,
        first: int,
        since: float,
        part: str = "",
    ) -> None:
        self.day = day
        self.first = first
        self.last = first - 1
        self.since = since
        self.full = False
        self._policy = policy
        self._writer = SegmentWriter(table, MESSAGES, day, part)
        self._rows = 0
        self._taken = 0  # bytes of all rows
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> int:
        """Add rows, as many as fit; at least one.

        Returns:
            How many were added.

        Raises:
            ArchiveError: they can't be written.
        """
        batch = batch.slice(0, self._policy.rows - self._rows)
        self._held.append(batch)
        self._rows += batch.num_rows
        self._taken += batch.nbytes
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self.last = batch.column("id")[-1].as_py()
        if self._held_rows >= ROW_GROUP or self._held_bytes >= _HELD:
            self._write()
        policy = self._policy
        self.full = (
            self._rows >= policy.rows
            or self._taken >= policy.unsealed
            or self._writer.bytes >= policy.bytes
        )
        return int(batch.num_rows)

    def finish(self) -> Segment:
        """Close the file, durably.

        Raises:
            ArchiveError: it can't be written.
        """
        if self._held:
            self._write(rest=True)
        return self._writer.finish(self.first, self.last)

    def abandon(self) -> None:
        """Delete the file. Its messages are still in the log."""
        self._held.clear()
        self._writer.abandon()

    def _write(self, *, rest: bool = False) -> None:
        held = pa.Table.from_batches(self._held)
        # Whole row groups: the rest begins the next one.
        rows = held.num_rows
        if not rest and self._held_bytes < _HELD:
            rows -= rows % ROW_GROUP
        self._writer.write(held.slice(0, rows))
        self._held = held.slice(rows).to_batches()
        self._held_rows = held.num_rows - rows
        self._held_bytes = sum(batch.nbytes for batch in self._held)
