"""Batch reads, `spark.read.format("mist")`: a range of the log, in partitions.

The start, the end and the epoch are fixed when the query is planned. Partitions are ranges of
ids, so a retried task reads the same messages, even if others have been published, sealed or
compacted in the meantime.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mist.pipeline.source.options import EARLIEST, OffsetSpec, ReadOptions
from mist.pipeline.source.origins import LogPosition, Losses, Origin
from mist.pipeline.source.origins.opening import open_origin
from mist.pipeline.source.schema import ReadSchema, columns_of
from mist.pipeline.source.splitting import OffsetRange, split

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "LogPartition", "LogScan", "known_gaps_upto", "resolve_offset"]


class LogPartition(InputPartition):
    """The partition of one task: a range of ids."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(offsets)
        self.offsets = offsets


class LogScan:
    """A scan of the log: planning and reading, for batches and for streams."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self.options = options
        self.origin: Origin = open_origin(options)
        self.losses = Losses(options.fail_on_loss)
        columns_of(schema)
        self._schema = schema

    def partitions(self, offsets: OffsetRange) -> list[LogPartition]:
        """Split a range of ids into partitions, one for each task."""
        pieces = split(
            offsets,
            self.options.partitions,
            asked=self.options.min_partitions is not None,
            segments=self.origin.segments(offsets),
        )
        return [LogPartition(piece) for piece in pieces]

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition, in the declared schema."""
        declared = ReadSchema.of(self._schema)
        batches = self.origin.read(
            partition.offsets,
            self.options.alternatives,
            declared.columns,
            self.options.batch_size,
            self.losses,
        )
        for batch in batches:
            # An empty batch would still cost a round trip through the JVM.
            if len(batch):
                yield declared.conform(batch)


class BatchReader(DataSourceReader):
    """The reader of `spark.read`."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._scan = LogScan(options, schema)

    # A list: Spark refuses any other sequence, although the contract allows it.
    def partitions(self) -> list[InputPartition]:
        """The partitions of the requested range."""
        scan = self._scan
        options = scan.options
        position = scan.origin.position(retry=False)
        start = options.start or EARLIEST
        after = resolve_offset(start, position, scan.origin)
        upto = resolve_offset(options.end, position, scan.origin)
        if start.kind == "id" and after < upto:
            after = _skip_to_available(after, position, scan.losses)
        upto, gaps_upto = min(upto, position.newest), known_gaps_upto(start, position)
        found = scan.partitions(OffsetRange(position.epoch, after, upto, gaps_upto))
        # For no partitions Spark makes up one of its own, so an empty one is given.
        return [*found] or [LogPartition(OffsetRange(position.epoch, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's messages."""
        assert isinstance(partition, LogPartition)
        return self._scan.read(partition)


def resolve_offset(spec: OffsetSpec, position: LogPosition, origin: Origin) -> int:
    """Resolve an offset to the id before it.

    A reader that starts at the offset reads the ids above this one; a reader that ends there
    reads the ids up to this one.
    """
    match spec.kind:
        case "earliest":
            return position.first - 1
        case "latest":
            return position.newest
        case "id":
            return spec.value - 1
        case "time":
            found = origin.position(moment=spec.value, retry=False).after
            # No message is older: reading begins with the first.
            return position.first - 1 if found is None else found


def known_gaps_upto(start: OffsetSpec, position: LogPosition) -> int:
    """The id up to which gaps are expected, and not reported as data loss.

    A start given as an id requests every message from there on; any other start requests the
    messages that exist.
    """
    return 0 if start.kind == "id" else position.gone


def _skip_to_available(after: int, position: LogPosition, losses: Losses) -> int:
    # The start was given as an id, and messages from there on are no longer available.
    lowest = position.first - 1
    if after >= lowest:
        return after
    losses.found(f"messages {after + 1} to {lowest} are no longer available")
    return lowest
