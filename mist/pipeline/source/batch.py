"""Batch reads, `spark.read.format("mist")`: a range of the log, in partitions.

Where it begins and ends is fixed when the query is planned, and so is the epoch; partitions are
ranges of ids, so a task that is tried again reads the same messages, whatever has been
published, sealed or compacted meanwhile.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mist.pipeline.source.options import EARLIEST, Place, ReadOptions
from mist.pipeline.source.origins import LogPosition, Losses, Origin
from mist.pipeline.source.origins.opening import open_origin
from mist.pipeline.source.shaping import Shape, columns_of
from mist.pipeline.source.splitting import Stretch, split

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Part", "Reader", "Reading", "known_gone", "place_of"]


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)
        self.stretch = stretch


class Reading:
    """What the readers of batches and of streams share: planning and reading of a stretch."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self.options = options
        self.origin: Origin = open_origin(options)
        self.losses = Losses(options.fail_on_loss)
        columns_of(schema)
        self._schema = schema

    def parts(self, stretch: Stretch) -> list[Part]:
        """A task each."""
        pieces = split(
            stretch,
            self.options.partitions,
            asked=self.options.min_partitions is not None,
            segments=self.origin.segments(stretch),
        )
        return [Part(piece) for piece in pieces]

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The messages of a part, in Spark's shape."""
        shape = Shape.of(self._schema)
        batches = self.origin.read(
            part.stretch,
            self.options.alternatives,
            shape.columns,
            self.options.batch_size,
            self.losses,
        )
        for batch in batches:
            # An empty one costs a round through the JVM.
            if len(batch):
                yield shape.fit(batch)


class Reader(DataSourceReader):
    """A batch."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._reading = Reading(options, schema)

    # A list, although the contract says a sequence: Spark refuses anything else.
    def partitions(self) -> list[InputPartition]:
        """The whole of what was asked for, cut."""
        reading = self._reading
        options = reading.options
        position = reading.origin.position(retry=False)
        start = options.start or EARLIEST
        after = place_of(start, position, reading.origin)
        upto = place_of(options.end, position, reading.origin)
        if start.kind == "id" and after < upto:
            after = _had(after, position, reading.losses)
        upto, known = min(upto, position.newest), known_gone(start, position)
        found = reading.parts(Stretch(position.epoch, after, upto, known))
        # Spark makes one partition of none; it is one with nothing in it.
        return [*found] or [Part(Stretch(position.epoch, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's messages."""
        assert isinstance(partition, Part)
        return self._reading.read(partition)


def place_of(place: Place, position: LogPosition, origin: Origin) -> int:
    """The id after which a reader begins there; or, which is the same, the last one before it
    that a reader gets who ends there."""
    match place.kind:
        case "earliest":
            return position.first - 1
        case "latest":
            return position.newest
        case "id":
            return place.value - 1
        case "time":
            found = origin.position(moment=place.value, retry=False).after
            # Nothing is older: what there is begins after it.
            return position.first - 1 if found is None else found


def known_gone(start: Place, position: LogPosition) -> int:
    """Up to where messages may be missing without a word: who names an id asks for all behind it,
    and everybody else for what there is."""
    return 0 if start.kind == "id" else position.gone


def _had(after: int, position: LogPosition, losses: Losses) -> int:
    # An id named by a person that is gone already; `earliest` asks for what there is.
    lowest = position.first - 1
    if after >= lowest:
        return after
    losses.found(f"messages {after + 1} to {lowest} are no longer available")
    return lowest
