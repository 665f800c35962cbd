"""Co-occurrence of tags: two passes, see `mist.pipeline.kernels.cooccurrence`.

The table: `tag string, other string, messages int64, tag_messages int64, other_messages int64,
jaccard double, lift double`, the most frequent pairs first. `jaccard` is the share of messages with
both tags among those with either; `lift` is the ratio of their count to that expected of
independent tags (1: as expected).
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.pipeline.jobs.result import Result, write_table
from mist.pipeline.jobs.sums import sum_by
from mist.pipeline.jobs.tags import count_tags
from mist.pipeline.kernels.cooccurrence import PairCounts
from mist.pipeline.progress import Progress, silent
from mist.pipeline.reading import Messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AMONG", "TOP", "run"]

AMONG: Final = 1000  # the most frequent tags; 8 bytes of memory for each pair of them
TOP: Final = 1000  # pairs

_SCHEMA: Final = "tag string, other string, messages bigint"


def run(
    spark: "SparkSession",
    messages: Messages,
    *,
    among: int = AMONG,
    top: int = TOP,
    out: Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Count the pairs of tags of messages.

    Pairs with a count above the summary's `floor` are complete, up to the limit `top`.

    Args:
        among: number of the most frequent tags whose pairs are counted.
        top: number of pairs listed.

    Raises:
        BadInput: `out` is there already, or a segment can't be read.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its conventional name

    progress("counting tags")
    used = count_tags(spark, messages, among + 1)
    tags, counts = used.tags.slice(0, among), used.counts.slice(0, among)
    progress(f"counting pairs of {len(tags):,} tags")
    counted = messages.run(spark, partial(count, tags), ["tags"], _SCHEMA)
    frame = sum_by(counted, "tag", "other").persist()
    try:
        found = frame.orderBy(F.desc("messages"), "tag", "other").limit(top).toArrow()
        distinct = frame.count()
    finally:
        frame.unpersist()
    rows = _with_measures(found, tags, counts, used.messages)
    write_table(rows, out)
    return Result(
        rows,
        {
            "messages": used.messages,
            "tags": used.distinct,
            "among": len(tags),
            "pairs": distinct,
            "listed": rows.num_rows,
            "floor": used.counts[among].as_py() if len(used.counts) > among else 0,
        },
    )


def _with_measures(found: pa.Table, tags: pa.Array, counts: pa.Array, messages: int) -> pa.Table:
    numbers = counts.to_numpy(zero_copy_only=False)

    def used(name: str) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        places = pc.index_in(found.column(name), tags).to_numpy().astype(np.int64)
        return np.asarray(numbers[places], np.int64)

    together_count = found.column("messages").to_numpy()
    one, other = used("tag"), used("other")
    return pa.table(
        {
            "tag": found.column("tag"),
            "other": found.column("other"),
            "messages": pa.array(together_count, pa.int64()),
            "tag_messages": pa.array(one),
            "other_messages": pa.array(other),
            "jaccard": pa.array(together_count / (one + other - together_count), pa.float64()),
            "lift": pa.array(
                together_count * float(messages) / (one * other.astype(float)), pa.float64()
            ),
        }
    )


def count(tags: pa.Array, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The kernel."""
    pairs = PairCounts(tags)
    for batch in batches:
        pairs.add(batch.column("tags"))
    yield from pairs.batches()
