"""Tasks of lake ingestion: each reads a range of ids and writes it as segments.

One message stays in memory for as long as a row group takes to fill, and a segment never spans
two days, as in every archive. A task that is tried again, or that runs twice, writes into a
folder of its own each time.
"""

import secrets
import shutil
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from mist.archive.manifest import Segment
from mist.archive.open_segment import OpenSegment, SealPolicy
from mist.archive.schema import MESSAGES
from mist.archive.segments import day_of
from mist.archive.table import Table
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.selection import Alternatives
from mist.pipeline.source.origins import Losses, Origin
from mist.pipeline.source.splitting import Stretch

__all__ = ["Landed", "land"]

_DAY: Final = 86_400_000_000  # microseconds
_ROWS: Final = 100_000  # of what is handed on at a time, at most


class Landed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a task has written: of the ids in `(after, upto]` all that was wanted.

    Attributes:
        folder: with the files, relative to the lake.
        segments: by id; their files are relative to `folder`.
        lost: ranges of ids that the server hadn't any more.
        mark: of the lake when the task began to read (`Lake.mark`).
    """

    epoch: str
    after: int
    upto: int
    folder: str
    segments: tuple[Segment, ...]
    lost: tuple[tuple[int, int], ...]
    mark: str

    @property
    def rows(self) -> int:
        """Messages in it."""
        return sum(segment.rows for segment in self.segments)


@attrs.frozen
class _Noted(Losses):
    """Keeps in mind what is gone, for the manifest."""

    ranges: list[tuple[int, int]] = attrs.field(factory=list)

    def gone(self, first: int, last: int, why: str = "") -> None:
        super().gone(first, last, why)
        self.ranges.append((first, last))


def land(
    lake: Lake, origin: Origin, stretch: Stretch, alternatives: Alternatives, losses: Losses
) -> Landed:
    """Write a stretch below `Lake.landing`, durably on return.

    Raises:
        SourceError: it can't be read, or not all of it.
        ArchiveError: it can't be written. Nothing is left of it then.
    """
    folder = lake.landing / secrets.token_hex(8)
    folder.mkdir(mode=0o700, parents=True)  # so that an erasure from now on waits for us
    mark = lake.mark()  # and what is read from now on knows of each one before
    noted = _Noted(losses.fatal)
    writing = _Writing(folder)
    try:
        batches = origin.read(stretch, alternatives, MESSAGES.names, _ROWS, noted)
        for batch in batches:
            writing.add(batch)
        segments = writing.finish()
    except BaseException:
        writing.abandon()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Landed(
        stretch.epoch,
        stretch.after,
        stretch.upto,
        str(folder.relative_to(lake.folder)),
        segments,
        tuple(noted.ranges),
        mark,
    )


class _Writing:
    """Segments that are being written, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._table = Table(folder)
        self._open: OpenSegment | None = None
        self._done: list[Segment] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if not len(batch):
            return
        for day, piece in _by_day(batch):
            if self._open is not None and self._open.day != day:
                self._close()
            rest = piece
            while len(rest):
                if self._open is None:
                    first = rest.column("id")[0].as_py()
                    self._open = OpenSegment(self._table, SealPolicy(), day, first, since=0.0)
                rest = rest.slice(self._open.add(rest))
                if self._open.full:
                    self._close()

    def finish(self) -> tuple[Segment, ...]:
        self._close()
        return tuple(self._done)

    def abandon(self) -> None:
        if self._open is not None:
            self._open.abandon()

    def _close(self) -> None:
        if self._open is not None:
            self._done.append(self._open.finish())
            self._open = None


def _by_day(batch: pa.RecordBatch) -> Sequence[tuple[date, pa.RecordBatch]]:
    """Its rows, day by day (UTC). The times of a log never go back."""
    days = batch.column("time").cast(pa.int64()).to_numpy() // _DAY
    if days[0] == days[-1]:
        return [(day_of(int(days[0]) * _DAY), batch)]
    starts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(batch)]
    return [
        (day_of(int(days[start]) * _DAY), batch.slice(start, end - start))
        for start, end in pairwise(starts)
    ]
