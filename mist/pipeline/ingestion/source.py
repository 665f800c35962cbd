"""The streaming source of `mist pipeline stream`: its tasks write what they read.

Offsets, admission control and the handling of losses are those of `readStream.format("mist")`.
It is internal: its rows describe files, which the query has to commit (`commit`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.ingestion.lineage import continues_lake
from mist.pipeline.ingestion.tasks import TaskOutput, write_range
from mist.pipeline.source.batch import LogPartition
from mist.pipeline.source.errors import DataLoss
from mist.pipeline.source.options import ReadOptions
from mist.pipeline.source.origins import LogPosition
from mist.pipeline.source.schema import messages_schema
from mist.pipeline.source.stream import Offset, StreamReader, offset

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["IngestionSource", "decode_outputs"]

NAME: Final = "mist-landing"
_SCHEMA: Final = "output binary"


class IngestionSource(DataSource):
    """Options: those of `format("mist")`, and `lake`, the folder, which the caller has locked."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
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
    """The reader of a stream whose tasks write to a lake."""

    def __init__(self, options: ReadOptions, lake: Lake) -> None:
        super().__init__(options, messages_schema())
        self._lake = lake

    def initialOffset(self) -> Offset:  # noqa: N802
        """The end of the lake, which serves as a checkpoint where Spark's is lost."""
        manifest = self._lake.table.current()
        if manifest.epoch:
            return offset(manifest.epoch, manifest.sealed)
        return super().initialOffset()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the messages of one partition; a single row describes the files."""
        assert isinstance(partition, LogPartition)
        scan = self._scan
        output = write_range(
            self._lake,
            scan.origin,
            partition.offsets,
            scan.options.alternatives,
            scan.losses,
        )
        encoded = msgspec.json.encode(output)
        yield pa.record_batch({"output": pa.array([encoded], pa.binary())})

    def _report_new_epoch(self, former: str, position: LogPosition) -> None:
        super()._report_new_epoch(former, position)
        table, scan = self._lake.table, self._scan
        wanted = scan.options.alternatives
        # With Trigger.AvailableNow this is also called for an unchanged epoch.
        if former == position.epoch:
            return
        if not continues_lake(table, table.current(), scan.origin, position, wanted):
            raise DataLoss(
                f"the server has a new log, whose ids mean other messages than those in"
                f" {self._lake.folder}; --to another folder takes it"
            )

    def _report_truncated(self, after: int, position: LogPosition) -> Offset:
        raise DataLoss(
            f"the server's log ends at {position.newest}, before {after} that is in"
            f" {self._lake.folder}: it will give these ids out again; --to another folder takes it"
        )

    def _resume_after(self, after: int) -> int:
        # `_report_new_epoch` has checked the lineage; an empty lake has none.
        return after if self._lake.table.current().segments else 0


def decode_outputs(rows: list[Any]) -> list[TaskOutput]:
    """The outputs of a batch's tasks, from its collected rows."""
    return [msgspec.json.decode(bytes(row["output"]), type=TaskOutput) for row in rows]
