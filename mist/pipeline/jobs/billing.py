"""Billing: deliveries by token and day, from the usage accounting of the server.

The server counts a delivery, and the bytes of its data, when it enters a session's outbox or its
transport. Tokens are identified by their registry id; the archive does not have the tokens.
"""

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
    """Deliveries by token and day.

    Attributes:
        table: token string, day date32, subscriptions int64 (distinct ones with
            deliveries or drops), sent, dropped, bytes int64; by day, then the most first.
    """

    table: "pa.Table"

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        import pyarrow.compute as pc

        def total(name: str) -> int:
            return pc.sum(self.table.column(name)).as_py() or 0

        return {
            "tokens": pc.count_distinct(self.table.column("token")).as_py(),
            "days": pc.count_distinct(self.table.column("day")).as_py(),
            "sent": total("sent"),
            "dropped": total("dropped"),
            "bytes": total("bytes"),
        }


def run(
    spark: "SparkSession",
    archive: Archive,
    *,
    when: Range | None = None,
    progress: Progress = silent,
) -> Result:
    """Add up the table `deliveries`.

    Args:
        when: period; None is all.
    """
    from pyspark.sql import functions as sf

    progress("adding up deliveries by token and day")
    found = (
        read_side_table(spark, archive, "deliveries", when)
        .groupBy("token", sf.to_date("minute").alias("day"))
        .agg(
            sf.count_distinct(
                sf.when(sf.col("sent") + sf.col("dropped") > 0, sf.col("subscription"))
            ).alias("subscriptions"),
            sf.sum("sent").alias("sent"),
            sf.sum("dropped").alias("dropped"),
            sf.sum("bytes").alias("bytes"),
        )
        .orderBy("day", sf.desc("sent"), "token")
    )
    return Result(found.toArrow())
