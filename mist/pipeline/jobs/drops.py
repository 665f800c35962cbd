"""Drops: messages lost to slow consumers, by token and day, and by subscription."""

from typing import TYPE_CHECKING, Any

import attrs

from mist.archive import Archive
from mist.pipeline.progress import Progress, silent
from mist.pipeline.selection import Range
from mist.pipeline.side_tables import read_side_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Result", "run"]


@attrs.frozen
class Result:
    """Tokens and subscriptions with drops.

    Attributes:
        table: token string, day date32, sent, dropped int64, minutes int64 (in which
            something was dropped); by day, then the most dropped first.
        subscriptions: token, subscription string, sent, dropped int64; the most dropped
            first.
        sent, dropped: totals, including subscriptions without drops.
    """

    table: "pa.Table"
    subscriptions: "pa.Table"
    sent: int
    dropped: int

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        import pyarrow.compute as pc

        return {
            "tokens": pc.count_distinct(self.table.column("token")).as_py(),
            "subscriptions": self.subscriptions.num_rows,
            "sent": self.sent,
            "dropped": self.dropped,
        }


def run(
    spark: "SparkSession",
    archive: Archive,
    *,
    when: Range | None = None,
    progress: Progress = silent,
) -> Result:
    """Add up the drops in the table `deliveries`.

    Args:
        when: period; None is all.
    """
    from pyspark.sql import functions as sf

    progress("adding up drops by token and day, and by subscription")
    rows = read_side_table(spark, archive, "deliveries", when)
    sums = (sf.sum("sent").alias("sent"), sf.sum("dropped").alias("dropped"))
    minutes = sf.count_distinct(sf.when(sf.col("dropped") > 0, sf.col("minute"))).alias("minutes")
    days = (
        rows.groupBy("token", sf.to_date("minute").alias("day"))
        .agg(*sums, minutes)
        .filter("dropped > 0")
        .orderBy("day", sf.desc("dropped"), "token")
    )
    subscriptions = (
        rows.groupBy("token", "subscription")
        .agg(*sums)
        .filter("dropped > 0")
        .orderBy(sf.desc("dropped"), "token", "subscription")
    )
    whole = rows.agg(*sums).first()
    assert whole is not None
    return Result(
        days.toArrow(), subscriptions.toArrow(), whole["sent"] or 0, whole["dropped"] or 0
    )
