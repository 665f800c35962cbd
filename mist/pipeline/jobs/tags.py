"""The most frequent tags.

The table: `tag string, messages int64, share double` (of all messages), the most frequent first;
equal counts are ordered by text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np
import pyarrow as pa

from mist.pipeline.jobs.result import Result, write_table
from mist.pipeline.jobs.sums import sum_by
from mist.pipeline.kernels.rollup import Counter
from mist.pipeline.kernels.tags import Codes
from mist.pipeline.progress import Progress, silent
from mist.pipeline.reading import Messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TOP", "Top", "count_tags", "run"]

TOP: Final = 1000  # tags

_SCHEMA: Final = "tag string, messages bigint"


@attrs.frozen
class Top:
    """The most frequent tags.

    Attributes:
        tags: array<string>, the most frequent first.
        counts: number of messages with each.
        messages: number of all messages.
        distinct: number of distinct tags.
        uses: total number of tags over all messages.
    """

    tags: pa.Array
    counts: pa.Array
    messages: int
    distinct: int
    uses: int


def run(
    spark: "SparkSession",
    messages: Messages,
    *,
    top: int = TOP,
    out: Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Count the tags of messages.

    Raises:
        BadInput: `out` is there already, or a segment can't be read.
    """
    progress("counting tags")
    found = count_tags(spark, messages, top)
    shares = found.counts.to_numpy(zero_copy_only=False) / max(1, found.messages)
    rows = pa.table({"tag": found.tags, "messages": found.counts, "share": pa.array(shares)})
    write_table(rows, out)
    return Result(
        rows,
        {
            "messages": found.messages,
            "tags": found.distinct,
            "tags_per_message": found.uses / max(1, found.messages),
            "listed": rows.num_rows,
        },
    )


def count_tags(spark: "SparkSession", messages: Messages, top: int) -> Top:
    """The `top` most frequent tags."""
    from pyspark.sql import functions as F  # noqa: N812  # its conventional name

    counted = messages.run(spark, count, ["tags"], _SCHEMA)
    frame = sum_by(counted, "tag").persist()
    try:
        used = frame.where(F.col("tag").isNotNull())
        best = used.orderBy(F.desc("messages"), "tag").limit(top).toArrow()
        totals = used.agg(F.count("*"), F.sum("messages")).first()
        rows = frame.where(F.col("tag").isNull()).agg(F.sum("messages")).first()
    finally:
        frame.unpersist()
    assert totals is not None
    assert rows is not None
    return Top(
        best.column("tag").combine_chunks().cast(pa.string()),
        best.column("messages").combine_chunks().cast(pa.int64()),
        messages=rows[0] or 0,
        distinct=totals[0],
        uses=totals[1] or 0,
    )


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The kernel. A null tag is the total of all messages."""
    counter, messages = Counter(), 0
    for batch in batches:
        column = Codes.of(batch.column("tags"))
        counter.add(column.names, column.counts())
        messages += len(batch)
    names, counts = counter.arrays()
    yield pa.record_batch({"tag": names, "messages": pa.array(counts)})
    yield pa.record_batch(
        {"tag": pa.nulls(1, pa.string()), "messages": pa.array(np.array([messages], np.int64))}
    )
