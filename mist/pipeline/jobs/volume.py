"""Roll-up of messages by hour and tag.

A DataFrame: `hour timestamp, tag string, messages bigint, bytes bigint` (of data; null
unless counted), in no order. A message counts for each of its tags, so the hours' own
totals, with each message once, are in the summary.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from mist.pipeline.jobs.result import LargeResult, write_frame
from mist.pipeline.jobs.sums import sum_by
from mist.pipeline.kernels.rollup import HourlyCounts
from mist.pipeline.progress import Progress, silent
from mist.pipeline.reading import Messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

_SCHEMA: Final = "hour bigint, tag string, messages bigint, bytes bigint"


def run(
    spark: "SparkSession",
    messages: Messages,
    *,
    sizes: bool = False,
    out: Path | None = None,
    progress: Progress = silent,
) -> LargeResult:
    """Roll up messages.

    Args:
        sizes: count the bytes of data as well, which requires reading all of it.

    Raises:
        BadInput: `out` is there already, or a segment can't be read.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its conventional name

    progress("adding up by hour and tag")
    columns = ["time", "tags", *(["data"] if sizes else [])]
    counted = messages.run(spark, partial(count, sizes), columns, _SCHEMA)
    summed = sum_by(counted, "hour", "tag", of=["messages", "bytes"]).persist()
    totals = summed.where(F.col("tag").isNull()).orderBy("hour").toArrow().to_pylist()
    rows = summed.where(F.col("tag").isNotNull()).select(
        F.timestamp_seconds(F.col("hour") * 3600).alias("hour"), "tag", "messages", "bytes"
    )
    rows = write_frame(rows, out)
    hours = [
        {"hour": int(row["hour"]) * 3600, "messages": row["messages"], "bytes": row["bytes"]}
        for row in totals
    ]
    summary = {
        "messages": sum(row["messages"] for row in hours),
        "bytes": sum(row["bytes"] for row in hours) if sizes else None,
        "rows": summed.count() - len(totals),
        "hours": hours,  # Unix seconds; each message once
    }
    if out is not None:
        summed.unpersist()
    return LargeResult(rows, summary)


def count(sizes: bool, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The kernel. A null tag is the total of the hour."""
    counts = HourlyCounts(sizes=sizes)
    for batch in batches:
        counts.add(batch)
    yield from counts.batches()
