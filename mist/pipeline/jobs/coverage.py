"""Coverage: subscriptions without messages, unmatched messages, and fan-out.

Of targeted messages only those count whose audience admits the subscriber, as in
`mist.pipeline.jobs.match`.

The table: `kind string, name string, messages int64`:

    subscription    each of those given, and its number of messages, ascending
    tag             each tag in no subscription, and the messages with it, descending
    fanout          a number of subscriptions, and the messages that match as many, ascending
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.pipeline.jobs.match import (
    COLUMNS,
    BroadcastSubscriptions,
    broadcast,
    load_matcher,
    sample,
    visible_batches,
)
from mist.pipeline.jobs.result import Result, write_table
from mist.pipeline.jobs.sums import sum_by
from mist.pipeline.kernels.coverage import FANOUT, SUBSCRIPTION, TAG, Coverage
from mist.pipeline.progress import Progress, silent
from mist.pipeline.reading import Messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TOP", "run"]

TOP: Final = 1000  # unmatched tags that are listed

_SCHEMA: Final = "kind string, name string, messages bigint"


def run(
    spark: "SparkSession",
    messages: Messages,
    subscriptions: pa.Array,
    *,
    top: int = TOP,
    attributes: Attributes = NO_ATTRIBUTES,
    out: Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Measure the coverage of messages by subscriptions.

    All subscriptions have to fit into the memory of an executor, some 150 bytes each, since the
    fan-out of a message depends on all of them.

    Args:
        subscriptions: of `mist.pipeline.kernels.subscriptions`.
        top: number of tags listed.
        attributes: of the sessions that hold the subscriptions.

    Raises:
        BadInput: `out` is there already, or a segment can't be read.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its conventional name

    shared = broadcast(spark, subscriptions, sample(messages), attributes)
    progress(f"holding {len(subscriptions):,} subscriptions against the messages")
    counted = messages.run(spark, partial(count, shared), COLUMNS, _SCHEMA)
    frame = sum_by(counted, "kind", "name").persist()
    try:
        tags = frame.where(F.col("kind") == TAG)
        unheard = tags.count()
        listed = tags.orderBy(F.desc("messages"), "name").limit(top).toArrow()
        rest = frame.where(F.col("kind") != TAG).toArrow()
    finally:
        frame.unpersist()
        shared.parts.destroy()
    got = _subscriptions(subscriptions, _of(rest, SUBSCRIPTION))
    fanout = _of(rest, FANOUT)
    sizes = fanout.column("name").cast(pa.int64()).to_numpy()
    order = np.argsort(sizes)
    fanout = fanout.take(pa.array(order))
    rows = pa.concat_tables([got, listed.cast(got.schema), fanout.cast(got.schema)])
    write_table(rows, out)
    never = int(np.count_nonzero(got.column("messages").to_numpy() == 0))
    return Result(
        rows,
        {
            "subscriptions": len(subscriptions),
            **({} if attributes == NO_ATTRIBUTES else {"attributes": attributes.text}),
            "never_matched": never,
            "unheard_tags": unheard,
            **_fanout(sizes[order], fanout.column("messages").to_numpy()),
        },
    )


def _of(rows: pa.Table, kind: str) -> pa.Table:
    return rows.filter(pc.equal(rows.column("kind"), kind))


def _subscriptions(given: pa.Array, found: pa.Table) -> pa.Table:
    messages = np.zeros(len(given), np.int64)
    places = pc.index_in(found.column("name"), given).to_numpy().astype(np.int64)
    messages[places] = found.column("messages").to_numpy()
    order = pa.array(np.argsort(messages, kind="stable"))
    return pa.table(
        {
            "kind": pa.array([SUBSCRIPTION] * len(given), pa.string()),
            "name": given.take(order),
            "messages": pa.array(messages).take(order),
        }
    )


def _fanout(sizes: Any, messages: Any) -> dict[str, Any]:
    """Statistics of the fan-out: messages without recipients, mean, largest."""
    total = int(messages.sum())
    nobody = int(messages[sizes == 0].sum())
    return {
        "messages": total,
        "to_nobody": nobody,
        "mean_fanout": float((sizes * messages).sum() / total) if total else 0.0,
        "largest_fanout": int(sizes.max()) if len(sizes) else 0,
    }


def count(
    shared: BroadcastSubscriptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The kernel."""
    coverage = Coverage(load_matcher(shared))
    for batch in visible_batches(shared, batches):
        coverage.add(batch.column("tags"))
    yield from coverage.batches()
