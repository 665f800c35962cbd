"""Streaming reads, `spark.readStream.format("mist")`: the log in micro-batches.

An offset is `{"epoch": …, "id": …}`: everything up to this id of this log has been read. Of a
batch's end it says, too, behind which id the batch began (`began`): Spark knows that from its
checkpoint, but for the first batch. After a crash in the middle of that one it asks anew where to
begin, and by then `latest` is somewhere else.

Ids are consecutive, so `maxOffsetsPerTrigger` bounds a batch by counting, without looking at the
log; with `subscribe` a batch has fewer rows than ids. While a query that began with what there
was (`earliest`) is still among messages that rules of retention have kept of many, `known` says
up to where the others were gone by then.

Spark asks for the end of a batch, writes it into its checkpoint, and only then has it read; and
after a crash has the same stretch read again. It compares offsets as texts, so where nothing is
new the very offset that was given is returned.

When the server begins a new log, a batch ends in the new epoch: it is what is new there. That
what was unread of the former is gone is said first (`failOnDataLoss`).
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

from mist.pipeline.source.batch import Part, Reading, known_gone, place_of
from mist.pipeline.source.errors import InvalidOption, SourceError
from mist.pipeline.source.options import LATEST, ReadOptions
from mist.pipeline.source.origins import LogPosition
from mist.pipeline.source.splitting import Stretch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Offset", "StreamReader", "offset"]

Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Lives in a process of the driver's for as long as the query runs."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._reading = Reading(options, schema)
        self._target: tuple[str, int] | None = None  # Trigger.AvailableNow ends here
        self._seen: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins; one with a checkpoint goes on from there instead."""
        reading = self._reading
        position = reading.origin.position(retry=False)
        start = reading.options.start or LATEST
        after = place_of(start, position, reading.origin)
        if after > position.newest:
            # It would wait in silence for an id that was most likely mistyped.
            raise InvalidOption(
                f"startingOffsets: the log ends at {position.newest}; latest begins behind it"
            )
        return offset(position.epoch, after, known_gone(start, position))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger`."""
        most = self._reading.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the log stands: what comes later is for another run."""
        position = self._reading.origin.position()
        self._target = position.epoch, self._last(position)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next batch; `start` itself where there is nothing for one."""
        epoch, after = _read_offset(start)
        position = self._reading.origin.position()
        self._seen = offset(position.epoch, position.newest)
        last = self._last(position)
        if self._target is not None:
            if self._target[0] != position.epoch:
                # What was to be read is gone; what is new came after the run began.
                self._tell_epoch(epoch, position)
                return start
            last = min(last, self._target[1])
        if epoch != position.epoch:
            self._tell_epoch(epoch, position)
            after = self._begins(after)
        elif position.newest < after:
            return self._tell_shorter(after, position)
        end = min(last, after + limit.max_rows) if isinstance(limit, ReadMaxRows) else last
        if epoch == position.epoch and end <= after:
            return start
        known = _known(start) if epoch == position.epoch else 0
        return offset(position.epoch, end, known) | {"began": after}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """For the query's progress: where the log stood when it was last looked at."""
        return self._seen

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """A batch, cut."""
        former, after = _read_offset(start)
        epoch, upto = _read_offset(end)
        known = _known(start) if former == epoch else 0
        if (begin := end.get("began")) is None:  # a log that went back, or an earlier mist's
            begin = after if former == epoch else self._begins(after)
        return [*self._reading.parts(Stretch(epoch, begin, upto, known))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's messages."""
        assert isinstance(partition, Part)
        return self._reading.read(partition)

    def _last(self, position: LogPosition) -> int:
        end = self._reading.options.end
        if end == LATEST:
            return position.newest
        return min(place_of(end, position, self._reading.origin), position.newest)

    def _begins(self, after: int) -> int:
        """Behind which id reading begins in a log that came after the one read up to `after`."""
        return 0

    def _tell_shorter(self, after: int, position: LogPosition) -> Offset:
        # A log only grows within its epoch: a folder put back from a backup doesn't.
        self._reading.losses.found(
            f"the log ends at {position.newest}, before {after} that was read"
        )
        return offset(position.epoch, position.newest)

    def _tell_epoch(self, former: str, position: LogPosition) -> None:
        # An archive has no epoch before its first segment: nothing of one was missed.
        if former not in ("", position.epoch):
            self._reading.losses.found(
                f"the log was started anew ({former} is now {position.epoch}), and what was not"
                " read of the former is no longer available"
            )


def offset(epoch: str, after: int, known: int = 0) -> Offset:
    """Everything up to an id of a log.

    Args:
        known: see `Stretch`; it matters for as long as it lies ahead.
    """
    return {"epoch": epoch, "id": after} | ({"known": known} if known > after else {})


def _known(offset: Offset) -> int:
    return int(offset.get("known", 0))


def _read_offset(offset: Offset) -> tuple[str, int]:
    match offset:
        case {"epoch": str(epoch), "id": int(after)} if after >= 0:
            return epoch, after
    raise SourceError("the checkpoint holds no offsets of mist's: is it of another query?")
