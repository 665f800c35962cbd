"""Matching: the messages that each subscription would have received, as counts or pairs.

The subscriptions are broadcast to the executors as an Arrow array, and compiled once in each
process; then each task matches its messages. If they exceed the memory of a process, the messages
are read again for each block of subscriptions, which costs less than a shuffle.

Targeted messages count for sessions that their audience admits: by default one without attributes,
or one with the attributes given. Sites are matched as on a live server.

The table: `subscription string, messages int64`, each subscription once, also those that none
matched, in the order they were given; or of pairs `id int64, subscription string`, in no order.
"""

from collections.abc import Iterator
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.archive.visibility import visible_rows
from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.pipeline.jobs.result import LargeResult, Result, write_frame, write_table
from mist.pipeline.jobs.sums import sum_by
from mist.pipeline.kernels.matching import Matcher
from mist.pipeline.kernels.subscriptions import BLOCK, blocks
from mist.pipeline.kernels.tags import Codes, Int64Array
from mist.pipeline.progress import Progress, silent
from mist.pipeline.reading import Messages

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "COLUMNS",
    "BroadcastSubscriptions",
    "broadcast",
    "load_matcher",
    "run",
    "sample",
    "visible_batches",
]

COLUMNS: Final = ["tags", "audience"]
"""The columns that determine the recipients of a message."""

TagCounts = tuple[pa.Array, Int64Array]

_PIECE = 1 << 18  # rows of a batch of pairs


def run(
    spark: "SparkSession",
    messages: Messages,
    subscriptions: pa.Array,
    *,
    pairs: bool = False,
    out: Path | None = None,
    block: int = BLOCK,
    attributes: Attributes = NO_ATTRIBUTES,
    progress: Progress = silent,
) -> Result | LargeResult:
    """Match messages.

    Args:
        subscriptions: of `mist.pipeline.kernels.subscriptions`.
        pairs: return all pairs instead of counts.
        out: folder for Parquet.
        block: number of subscriptions matched in one pass over the messages.
        attributes: of the sessions that hold the subscriptions.

    Raises:
        BadInput: `out` is there already, or a segment can't be read.
    """
    seen = sample(messages)
    parts = list(blocks(subscriptions, block))
    summary: dict[str, Any] = {"subscriptions": len(subscriptions), "passes": len(parts)}
    if attributes != NO_ATTRIBUTES:
        summary["attributes"] = attributes.text
    if pairs:
        progress(f"finding the messages of {len(subscriptions):,} subscriptions")
        frames = [_pairs(spark, messages, part, seen, attributes) for part in parts]
        frame = write_frame(reduce(lambda one, other: one.union(other), frames), out)
        if out is None:
            frame = frame.persist()
        return LargeResult(frame, {**summary, "matches": frame.count()})
    counts = []
    for number, part in enumerate(parts, 1):
        progress(f"matching {len(part):,} subscriptions, {number} of {len(parts)}")
        counts.append(_counts(spark, messages, part, seen, attributes))
    got = np.concatenate(counts)
    rows = pa.table({"subscription": subscriptions, "messages": pa.array(got)})
    write_table(rows, out)
    matched = int(np.count_nonzero(got))
    return Result(
        rows,
        {
            **summary,
            "matches": int(got.sum()),
            "matched": matched,
            "never_matched": len(got) - matched,
        },
    )


def _counts(
    spark: "SparkSession",
    messages: Messages,
    part: pa.Array,
    seen: TagCounts,
    attributes: Attributes,
) -> Int64Array:
    shared = broadcast(spark, part, seen, attributes)
    try:
        schema = "number bigint, messages bigint"
        frame = messages.run(spark, partial(count, shared), COLUMNS, schema)
        summed = sum_by(frame, "number").toArrow()
    finally:
        shared.parts.destroy()
    found = np.zeros(len(part), np.int64)
    found[summed.column(0).to_numpy()] = summed.column(1).to_numpy()
    return found


def _pairs(
    spark: "SparkSession",
    messages: Messages,
    part: pa.Array,
    seen: TagCounts,
    attributes: Attributes,
) -> "DataFrame":
    kernel = partial(pair, broadcast(spark, part, seen, attributes))
    schema = "id bigint, subscription string"
    return messages.run(spark, kernel, ["id", *COLUMNS], schema)


def sample(messages: Messages) -> TagCounts:
    """Counts of tags in a sample of the messages."""
    tags = messages.sample("tags")
    if tags is None:
        return pa.array([], pa.string()), np.zeros(0, np.int64)
    column = Codes.of(tags)
    return column.names, column.counts()


@attrs.frozen
class BroadcastSubscriptions:
    """Subscriptions and tag counts as a broadcast variable.

    Attributes:
        attributes: `Attributes.text` of the sessions that hold the subscriptions.
    """

    name: str
    attributes: str
    parts: "Broadcast[tuple[pa.Array, TagCounts]]" = attrs.field(eq=False)


def broadcast(
    spark: "SparkSession",
    subscriptions: pa.Array,
    seen: TagCounts,
    attributes: Attributes = NO_ATTRIBUTES,
) -> BroadcastSubscriptions:
    """Broadcast subscriptions, once to each executor. `parts.destroy()` frees them."""
    return BroadcastSubscriptions(
        uuid4().hex, attributes.text, spark.sparkContext.broadcast((subscriptions, seen))
    )


# One entry, the most that fits into the planned memory; a process runs many tasks.
@lru_cache(maxsize=1)
def load_matcher(shared: BroadcastSubscriptions) -> Matcher:
    """The matcher, built at the first call in each process of an executor and then cached."""
    return Matcher(*shared.parts.value)


def visible_batches(
    shared: BroadcastSubscriptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Filter batches with `COLUMNS` by audience: the rows that the subscribers may receive."""
    who = Attributes.parse(shared.attributes)
    for batch in batches:
        mask = visible_rows(batch.column("audience"), batch.column("tags"), who)
        yield batch if mask is None else batch.filter(pa.array(mask))


def count(
    shared: BroadcastSubscriptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The kernel for counts: indices of subscriptions in the block, and their messages."""
    matcher = load_matcher(shared)
    messages = np.zeros(len(matcher), np.int64)
    for batch in visible_batches(shared, batches):
        messages += matcher.tally(batch.column("tags")).messages
    got = np.flatnonzero(messages)
    yield pa.record_batch({"number": pa.array(got), "messages": pa.array(messages[got])})


def pair(
    shared: BroadcastSubscriptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The kernel for pairs."""
    matcher = load_matcher(shared)
    for batch in visible_batches(shared, batches):
        ids = batch.column("id")
        for rows, numbers in matcher.pairs(batch.column("tags")):
            for start in range(0, len(rows), _PIECE):
                some = slice(start, start + _PIECE)
                yield pa.record_batch(
                    {
                        "id": ids.take(pa.array(rows[some])),
                        "subscription": pc.take(matcher.subscriptions, pa.array(numbers[some])),
                    }
                )
