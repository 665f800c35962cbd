"""Batches of a stream into a lake, planned, run and committed in this process: no Spark."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from mist.archive.segments import read_segment
from mist.pipeline.ingestion.commit import Committed, commit
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.ingestion.source import IngestionReader
from mist.pipeline.ingestion.tasks import TaskOutput
from mist.pipeline.source.options import ReadOptions
from tests.pipeline.source.fake import Fake, at

__all__ = ["at", "files", "reader", "rows_of", "run_tasks", "take"]


def reader(fake: Fake, lake: Lake, **options: str) -> IngestionReader:
    given = {"url": fake.url, "startingOffsets": "earliest", **options}
    return IngestionReader(ReadOptions.parse(given, stream=True), lake)


def run_tasks(
    made: IngestionReader, start: dict[str, Any], end: dict[str, Any]
) -> list[TaskOutput]:
    """The outputs of the tasks of a batch."""
    return [
        msgspec.json.decode(word, type=TaskOutput)
        for part in made.partitions(start, end)
        for batch in made.read(part)
        for word in batch.column("output").to_pylist()
    ]


def take(
    fake: Fake, lake: Lake, start: dict[str, Any], end: dict[str, Any], **options: str
) -> Committed:
    """A batch, from the plan to the manifest."""
    return commit(lake, run_tasks(reader(fake, lake, **options), start, end))


def rows_of(lake: Lake) -> pa.Table:
    """All that readers of the manifest get."""
    table = lake.table
    found = [read_segment(table, segment) for segment in table.current().segments]
    return pa.concat_tables(found)


def files(folder: Path) -> list[str]:
    """Every Parquet file, finished or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet*"))
