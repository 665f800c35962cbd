"""Streaming reads, `spark.readStream.format("mist")`: the log in micro-batches.

An offset is `{"epoch": …, "id": …}`: everything up to this id of this log has been read. The end
offset of a batch also has the id after which the batch began (`began`). Spark has that in its
checkpoint, except for the first batch: after a crash in the middle of it, Spark asks for the
initial offset again, and `latest` has moved by then.

Ids are consecutive, so `maxOffsetsPerTrigger` limits a batch by arithmetic, without reading the
log; with `subscribe` a batch has fewer rows than ids. A query that began with the messages that
existed (`earliest`) carries `known` in its offsets: up to this id, gaps that retention rules had
left are expected.

Spark asks for the end offset of a batch, writes it to its checkpoint (a write-ahead log), and
only then reads the batch; after a crash it reads the same range again. It compares offsets as
texts, so without new messages the given offset is returned unchanged.

When the server begins a new log, the next batch ends in the new epoch. The loss of what was
unread in the former log is reported first (`failOnDataLoss`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mist.pipeline.source.batch import LogPartition, LogScan, known_gaps_upto, resolve_offset
from mist.pipeline.source.errors import InvalidOption, SourceError
from mist.pipeline.source.options import LATEST, ReadOptions
from mist.pipeline.source.origins import LogPosition
from mist.pipeline.source.splitting import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Offset", "StreamReader", "offset"]

Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. It lives in a process of the driver as long as the query runs."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._scan = LogScan(options, schema)
        self._target: tuple[str, int] | None = None  # Trigger.AvailableNow ends here
        self._newest_seen: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """The offset at which a query without a checkpoint begins."""
        scan = self._scan
        position = scan.origin.position(retry=False)
        start = scan.options.start or LATEST
        after = resolve_offset(start, position, scan.origin)
        if after > position.newest:
            # The query would wait silently for an id that was most likely mistyped.
            raise InvalidOption(
                f"startingOffsets: the log ends at {position.newest}; latest begins behind it"
            )
        return offset(position.epoch, after, known_gaps_upto(start, position))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger`."""
        most = self._scan.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the log: later messages are for another run."""
        position = self._scan.origin.position()
        self._target = position.epoch, self._last(position)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next batch; `start` itself where nothing is new."""
        epoch, after = _read_offset(start)
        position = self._scan.origin.position()
        self._newest_seen = offset(position.epoch, position.newest)
        last = self._last(position)
        if self._target is not None:
            if self._target[0] != position.epoch:
                # The log of the target is gone; the new log began after the run did.
                self._report_new_epoch(epoch, position)
                return start
            last = min(last, self._target[1])
        if epoch != position.epoch:
            self._report_new_epoch(epoch, position)
            after = self._resume_after(after)
        elif position.newest < after:
            return self._report_truncated(after, position)
        end = min(last, after + limit.max_rows) if isinstance(limit, ReadMaxRows) else last
        if epoch == position.epoch and end <= after:
            return start
        gaps_upto = _gaps_upto(start) if epoch == position.epoch else 0
        return offset(position.epoch, end, gaps_upto) | {"began": after}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The newest offset seen, for the progress report of the query."""
        return self._newest_seen

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The partitions of a batch."""
        former, after = _read_offset(start)
        epoch, upto = _read_offset(end)
        gaps_upto = _gaps_upto(start) if former == epoch else 0
        if (begin := end.get("began")) is None:
            # The log was truncated, or the checkpoint was written by an earlier version.
            begin = after if former == epoch else self._resume_after(after)
        return [*self._scan.partitions(OffsetRange(epoch, begin, upto, gaps_upto))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's messages."""
        assert isinstance(partition, LogPartition)
        return self._scan.read(partition)

    def _last(self, position: LogPosition) -> int:
        end = self._scan.options.end
        if end == LATEST:
            return position.newest
        return min(resolve_offset(end, position, self._scan.origin), position.newest)

    def _resume_after(self, after: int) -> int:
        """The id after which reading begins in the log that replaced the one read up to `after`."""
        return 0

    def _report_truncated(self, after: int, position: LogPosition) -> Offset:
        # A log only grows within its epoch, unless its folder was restored from a backup.
        self._scan.losses.found(f"the log ends at {position.newest}, before {after} that was read")
        return offset(position.epoch, position.newest)

    def _report_new_epoch(self, former: str, position: LogPosition) -> None:
        # An archive has no epoch before its first segment, so nothing was missed.
        if former not in ("", position.epoch):
            self._scan.losses.found(
                f"the log was started anew ({former} is now {position.epoch}), and what was not"
                " read of the former is no longer available"
            )


def offset(epoch: str, after: int, gaps_upto: int = 0) -> Offset:
    """The offset after an id of a log.

    Args:
        gaps_upto: see `OffsetRange`; left out once `after` has reached it.
    """
    return {"epoch": epoch, "id": after} | ({"known": gaps_upto} if gaps_upto > after else {})


def _gaps_upto(offset: Offset) -> int:
    return int(offset.get("known", 0))


def _read_offset(offset: Offset) -> tuple[str, int]:
    match offset:
        case {"epoch": str(epoch), "id": int(after)} if after >= 0:
            return epoch, after
    raise SourceError("the checkpoint holds no offsets of mist's: is it of another query?")
