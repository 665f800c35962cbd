"""The jobs as plain DataFrame code: what the kernels are measured against, and tested to equal.

They are the best forms that were found:

- Matching: subscriptions are broadcast under their tag that is rarest among the messages, so that
  a message meets few of them and needs no shuffle; the other tags of each stand in columns, so
  that the check is compiled (`array_contains`; `array_except` and `forall` are interpreted, and
  take 2 to 4 times as long).
- Roll-up: one aggregation, whose rows are all taken. A sum of its counts would not do: Spark sees
  that it needs no groups, and counts the tags of all messages instead.
- Compaction: partitions are joined, without a sort or a shuffle. It promises less than the job:
  the files are in no order.

`check_plan` compares what Spark plans with what is claimed here.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa

from mist.bench.errors import BenchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_plan", "compact", "count_by_hour_and_tag", "match"]

_SAMPLE: Final = 20_000  # messages of which tags are counted


def match(spark: "SparkSession", messages: "DataFrame", subscriptions: pa.Array) -> "DataFrame":
    """`id bigint, subscription string`: each message with each subscription it satisfies."""
    from pyspark.sql import functions as sf

    used = Counter(
        tag
        for tags in messages.select("tags").limit(_SAMPLE).toArrow().column("tags").to_pylist()
        for tag in tags
    )
    rows = [(text, *_rarest_first(text, used)) for text in subscriptions.to_pylist()]
    width = max(map(len, rows), default=2)
    columns = zip(*(row + (None,) * (width - len(row)) for row in rows), strict=True)
    names = ["subscription", "tag", *(f"and{n}" for n in range(width - 2))]
    arrays = [pa.array(column, pa.string()) for column in columns]
    wanted = spark.createDataFrame(pa.table(dict(zip(names, arrays, strict=True))))
    found = messages.select("id", "tags", sf.explode("tags").alias("tag")).join(
        sf.broadcast(wanted), "tag"
    )
    for name in names[2:]:
        found = found.where(sf.col(name).isNull() | sf.array_contains("tags", sf.col(name)))
    return found.select("id", "subscription")


def _rarest_first(subscription: str, used: Counter[str]) -> list[str]:
    return sorted(subscription.split(","), key=lambda tag: (used[tag], tag))


def count_by_hour_and_tag(messages: "DataFrame") -> "DataFrame":
    """`hour timestamp, tag string, messages bigint`."""
    from pyspark.sql import functions as sf

    return (
        messages.select(
            sf.date_trunc("hour", "time").alias("hour"), sf.explode("tags").alias("tag")
        )
        .groupBy("hour", "tag")
        .agg(sf.count("*").alias("messages"))
    )


def compact(messages: "DataFrame", files: int) -> "DataFrame":
    """The messages in `files` partitions, each to be written as a file."""
    return messages.coalesce(files)


@attrs.frozen
class _Claim:
    """What the physical plan of a form has and lacks, as regular expressions."""

    has: Sequence[str]
    lacks: Sequence[str]


_CLAIMS: Final = {
    "match": _Claim(
        (r"BroadcastHashJoin \[tag#", r"array_contains\(tags#", r"ReadSchema: \S*\btags:array"),
        (
            "SortMergeJoin",
            "NestedLoopJoin",
            "Cartesian",
            "array_except",
            "forall",
            r"\bdata:binary",
        ),
    ),
    "rollup": _Claim(
        (
            r"HashAggregate\(keys=\[\S*hour\S*, tag#\d+\], functions=\[count\(1\)\]",
            r"ReadSchema: \S*\btime:timestamp",
            r"Generate explode\(tags#",
        ),
        ("SortAggregate", r"\bdata:binary"),
    ),
    "compact": _Claim((r"Coalesce \d+", r"FileScan parquet"), ("Sort", "Exchange", "Aggregate")),
}


def check_plan(name: str, frame: "DataFrame") -> None:
    """Check that Spark does what a plain form is said to do: nothing is left out or added.

    Raises:
        BenchError: it plans something else, so that a comparison with it would be none.
    """
    plan = frame._jdf.queryExecution().executedPlan().toString()
    claim = _CLAIMS[name]
    wrong = [f"lacks {each}" for each in claim.has if not re.search(each, plan)]
    wrong += [f"has {each}" for each in claim.lacks if re.search(each, plan)]
    if wrong:
        raise BenchError(f"the plain form of {name} isn't what it should be: its plan {wrong[0]}")
