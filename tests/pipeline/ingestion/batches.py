"""Batches of a stream into a lake, planned, run and entered in this process: no Spark."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from mist.archive.segments import read_segment
from mist.pipeline.ingestion.entering import Entered, enter
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.ingestion.source import IngestionReader
from mist.pipeline.ingestion.tasks import Landed
from mist.pipeline.source.options import ReadOptions
from tests.pipeline.source.fake import Fake, at

__all__ = ["at", "files", "landed", "reader", "rows_of", "take"]


def reader(fake: Fake, lake: Lake, **options: str) -> IngestionReader:
    given = {"url": fake.url, "startingOffsets": "earliest", **options}
    return IngestionReader(ReadOptions.parse(given, stream=True), lake)


def landed(made: IngestionReader, start: dict[str, Any], end: dict[str, Any]) -> list[Landed]:
    """What the tasks of a batch say when they have written."""
    return [
        msgspec.json.decode(word, type=Landed)
        for part in made.partitions(start, end)
        for batch in made.read(part)
        for word in batch.column("landed").to_pylist()
    ]


def take(
    fake: Fake, lake: Lake, start: dict[str, Any], end: dict[str, Any], **options: str
) -> Entered:
    """A batch, from the plan to the manifest."""
    return enter(lake, landed(reader(fake, lake, **options), start, end))


def rows_of(lake: Lake) -> pa.Table:
    """All that readers of the manifest get."""
    table = lake.table
    found = [read_segment(table, segment) for segment in table.current().segments]
    return pa.concat_tables(found)


def files(folder: Path) -> list[str]:
    """Every Parquet file, finished or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet*"))
