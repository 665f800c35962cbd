"""The segment that is being filled: pages of a log go in, row groups go to the disk.

All of this is a worker thread's, and each call is a piece of work of some milliseconds; what
takes longer (compressing a row group, waiting for the disk) lets go of the interpreter.
"""

from datetime import date
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from mist.archive.manifest import Segment, Table
from mist.archive.rows import parts_to_batch
from mist.archive.schema import MESSAGES, ROW_GROUP
from mist.archive.segments import SegmentWriter, day_of
from mist.history import ColumnPage

__all__ = ["Filling", "Piece", "SealPolicy", "cut"]

_HELD: Final = 16 << 20  # bytes of rows that wait to be a row group
_DAY: Final = 86_400_000_000  # microseconds

Range = tuple[int, int]
"""First and last id."""


@attrs.frozen
class SealPolicy:
    """When a segment is finished: whichever comes first.

    Attributes:
        rows: it has as many, and never more.
        bytes: its file has as many.
        unsealed: so many bytes of messages have gone into it. Far fewer than the log keeps, or
            they leave the log before they are sealed.
        seconds: its oldest message has waited as long.
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
    """A page as rows, day by day, and which ids are missing from it.

    Args:
        page: of all messages behind `after`.
        expired: the highest id that retention has taken. Ids that aren't there up to this one
            are missing; beyond it they have been erased, or were never given.
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
    """What is missing of `(after, end]`, as far as `expired`."""
    if expired <= after:
        return []
    bounded = np.concatenate([[after], ids, [end + 1]])
    places = np.flatnonzero(np.diff(bounded) > 1)
    gaps = [(int(bounded[n]) + 1, min(int(bounded[n + 1]) - 1, expired)) for n in places]
    return [(first, last) for first, last in gaps if first <= last]


class Filling:
    """A segment that is open. See the module.

    Args:
        table: what it is to belong to.
        policy: when it is full.
        first: id of the first row to come.
        since: when that was read, on trio's clock.

    Attributes:
        day, first, since: as given.
        last: id of the last row that was taken.
        full: whether it is to be finished.
    """

    def __init__(
        self, table: Table, policy: SealPolicy, day: date, first: int, since: float
    ) -> None:
        self.day = day
        self.first = first
        self.last = first - 1
        self.since = since
        self.full = False
        self._policy = policy
        self._writer = SegmentWriter(table, MESSAGES, day)
        self._rows = 0
        self._taken = 0  # bytes of all rows
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> int:
        """Take rows, as many as there is room for; at least one.

        Returns:
            How many.

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
        """Close it and have it survive a power cut.

        Raises:
            ArchiveError: it can't be written.
        """
        if self._held:
            self._write(rest=True)
        return self._writer.finish(self.first, self.last)

    def abandon(self) -> None:
        """Delete what there is of it. What went in is still in the log."""
        self._held.clear()
        self._writer.abandon()

    def _write(self, *, rest: bool = False) -> None:
        held = pa.Table.from_batches(self._held)
        # Whole row groups: what is left over begins the next one.
        rows = held.num_rows
        if not rest and self._held_bytes < _HELD:
            rows -= rows % ROW_GROUP
        self._writer.write(held.slice(0, rows))
        self._held = held.slice(rows).to_batches()
        self._held_rows = held.num_rows - rows
        self._held_bytes = sum(batch.nbytes for batch in self._held)
