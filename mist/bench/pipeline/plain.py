"""The jobs as plain DataFrame code: what the kernels are measured against, and tested to equal.

They are the best forms that were found. Matching: subscriptions are broadcast under their
rarest tag, so that each message meets only those that have it, and needs no shuffle to be put
together again, as joining all tags and counting does.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["compact", "count_by_hour_and_tag", "match"]


def match(spark: "SparkSession", messages: "DataFrame", subscriptions: pa.Array) -> "DataFrame":
    """`id bigint, subscription string`: each message with each subscription it satisfies."""
    from pyspark.sql import functions as sf

    names = spark.createDataFrame(pa.table({"subscription": subscriptions}))
    wanted = names.select("subscription", sf.split("subscription", ",").alias("wanted"))
    each = wanted.select("subscription", "wanted", sf.explode("wanted").alias("tag"))
    used = each.groupBy("tag").agg(sf.count("*").alias("used"))
    rarest = (
        each.join(used, "tag")
        .groupBy("subscription", "wanted")
        .agg(sf.min_by("tag", sf.struct("used", "tag")).alias("tag"))
    )
    exploded = messages.select("id", "tags", sf.explode("tags").alias("tag"))
    return (
        exploded.join(sf.broadcast(rarest), "tag")
        .where(sf.size(sf.array_except("wanted", "tags")) == 0)
        .select("id", "subscription")
    )


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


def compact(messages: "DataFrame", files: int, out: Path) -> None:
    """The messages in `files` Parquet files, each in the order of ids."""
    ordered = messages.repartitionByRange(files, "id").sortWithinPartitions("id")
    ordered.write.parquet(str(out))
