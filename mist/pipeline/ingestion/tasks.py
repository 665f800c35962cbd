"""Tasks of lake ingestion: each reads a range of ids and writes it as segments.

Memory holds one row group at a time, and a segment never spans two days, as in every archive. Each
attempt of a task, retried or speculative, writes to a folder of its own.
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
from mist.pipeline.source.splitting import OffsetRange

__all__ = ["TaskOutput", "write_range"]

_DAY: Final = 86_400_000_000  # microseconds
_ROWS: Final = 100_000  # rows of a batch, at most


class TaskOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The output of a task: the selected messages with ids in `(after, upto]`.

    Attributes:
        folder: of the files, relative to the lake.
        segments: by id; their files are relative to `folder`.
        lost: ranges of ids that were no longer available.
        fence_token: the lake's token when the task began to read (`Lake.fence_token`).
    """

    epoch: str
    after: int
    upto: int
    folder: str
    segments: tuple[Segment, ...]
    lost: tuple[tuple[int, int], ...]
    fence_token: str

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(segment.rows for segment in self.segments)


@attrs.frozen
class _RecordedLosses(Losses):
    """Records the losses, for the manifest."""

    ranges: list[tuple[int, int]] = attrs.field(factory=list)

    def gone(self, first: int, last: int, why: str = "") -> None:
        super().gone(first, last, why)
        self.ranges.append((first, last))


def write_range(
    lake: Lake, origin: Origin, offsets: OffsetRange, alternatives: Alternatives, losses: Losses
) -> TaskOutput:
    """Write a range of ids below `Lake.landing`, durably on return.

    Raises:
        SourceError: not all of it can be read.
        ArchiveError: it can't be written. No file is left behind then.
    """
    folder = lake.landing / secrets.token_hex(8)
    # In this order: an erasure waits for folders that exist when it has replaced the token, and
    # whatever is read under a token reflects all erasures before it.
    folder.mkdir(mode=0o700, parents=True)
    fence_token = lake.fence_token()
    recorded = _RecordedLosses(losses.fatal)
    writer = _SegmentWriter(folder)
    try:
        batches = origin.read(offsets, alternatives, MESSAGES.names, _ROWS, recorded)
        for batch in batches:
            writer.add(batch)
        segments = writer.finish()
    except BaseException:
        writer.abandon()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return TaskOutput(
        offsets.epoch,
        offsets.after,
        offsets.upto,
        str(folder.relative_to(lake.folder)),
        segments,
        tuple(recorded.ranges),
        fence_token,
    )


class _SegmentWriter:
    """Writes segments, one after the other."""

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
    """Split a batch by day (UTC). The times of a log are monotonic."""
    days = batch.column("time").cast(pa.int64()).to_numpy() // _DAY
    if days[0] == days[-1]:
        return [(day_of(int(days[0]) * _DAY), batch)]
    starts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(batch)]
    return [
        (day_of(int(days[start]) * _DAY), batch.slice(start, end - start))
        for start, end in pairwise(starts)
    ]
