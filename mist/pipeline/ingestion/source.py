"""The streaming source of `mist pipeline stream`: its tasks write what they read.

Offsets, admission control, what is done about losses: all as in `readStream.format("mist")`.
Not for others, hence no public name: what it gives are rows about files, and somebody has to
enter these (`entering`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.ingestion.lineage import goes_on
from mist.pipeline.ingestion.tasks import Landed, land
from mist.pipeline.source.batch import Part
from mist.pipeline.source.errors import DataLoss
from mist.pipeline.source.options import ReadOptions
from mist.pipeline.source.origins import LogPosition
from mist.pipeline.source.shaping import messages_schema
from mist.pipeline.source.stream import Offset, StreamReader, offset

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["IngestionSource", "read_landed"]

NAME: Final = "mist-landing"
_SCHEMA: Final = "landed binary"


class IngestionSource(DataSource):
    """Options are those of `format("mist")`, and `lake`: the folder, claimed by who asks."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return NAME

    def schema(self) -> str:
        """One row for each task."""
        return _SCHEMA

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        """`spark.readStream`."""
        options = dict(self.options)
        lake = Lake(Path(options.pop("lake")))
        return IngestionReader(ReadOptions.parse(options, stream=True), lake)


class IngestionReader(StreamReader):
    """Knows, beside what a reader of the stream knows, where the lake is."""

    def __init__(self, options: ReadOptions, lake: Lake) -> None:
        super().__init__(options, messages_schema())
        self._lake = lake

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where the lake ends: it is its own checkpoint, should Spark's have gone."""
        manifest = self._lake.table.current()
        if manifest.epoch:
            return offset(manifest.epoch, manifest.sealed)
        return super().initialOffset()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write one partition's messages, and tell of it."""
        assert isinstance(partition, Part)
        reading = self._reading
        landed = land(
            self._lake,
            reading.origin,
            partition.stretch,
            reading.options.alternatives,
            reading.losses,
        )
        word = msgspec.json.encode(landed)
        yield pa.record_batch({"landed": pa.array([word], pa.binary())})

    def _tell_epoch(self, former: str, position: LogPosition) -> None:
        super()._tell_epoch(former, position)
        table, reading = self._lake.table, self._reading
        wanted = reading.options.alternatives
        # Where Trigger.AvailableNow stays in its epoch, nothing was started anew.
        if former == position.epoch:
            return
        if not goes_on(table, table.current(), reading.origin, position, wanted):
            raise DataLoss(
                f"the server has a new log, whose ids mean other messages than those in"
                f" {self._lake.folder}; --to another folder takes it"
            )

    def _tell_shorter(self, after: int, position: LogPosition) -> Offset:
        raise DataLoss(
            f"the server's log ends at {position.newest}, before {after} that is in"
            f" {self._lake.folder}: it will give these ids out again; --to another folder takes it"
        )

    def _begins(self, after: int) -> int:
        # Checked by `_tell_epoch`; and a lake without a message means nothing yet.
        return after if self._lake.table.current().segments else 0


def read_landed(rows: list[Any]) -> list[Landed]:
    """What the tasks of a batch said, of its collected rows."""
    return [msgspec.json.decode(bytes(row["landed"]), type=Landed) for row in rows]
