"""Two queries from one server, into Parquet and into the server again; and a process for them.

    python -m tests.pipeline.source.queries URL FOLDER

runs them in a session of its own, says `JVM <pid>` when it is up, and ends when they have.
Messages tagged `in` are read; what is published is tagged `out`.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["batches_done", "run_to_the_end", "start"]

SINKS = ("parquet", "mist")


def start(spark: "SparkSession", url: str, folder: Path) -> "list[StreamingQuery]":
    """Begin both, or go on where their checkpoints are; they end with what there is now."""
    from pyspark.sql import functions as sql

    queries = []
    for sink in SINKS:
        rows = (
            spark.readStream.format("mist")
            .options(url=url, subscribe="in", startingOffsets="earliest")
            .options(maxOffsetsPerTrigger="500", minPartitions="2")
            .load()
        )
        out = rows.select(sql.array(sql.lit("out")).alias("tags"), "data")
        writer = out.writeStream.format(sink).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{sink}"))
        if sink == "parquet":
            writer = writer.option("path", str(folder / "out"))
        else:
            writer = writer.option("url", url)
        queries.append(writer.start())
    return queries


def run_to_the_end(queries: "list[StreamingQuery]") -> bool:
    """Wait for both; whether neither failed."""
    from pyspark.errors import StreamingQueryException

    good = True
    for query in queries:
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(error)  # for whoever expected none
            good = False
    return good


def batches_done(folder: Path) -> int:
    """Micro-batches that both have in their checkpoints."""
    return min(
        len([name for name in _names(folder / f"checkpoint-{sink}" / "commits") if name.isdigit()])
        for sink in SINKS
    )


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.exists() else []


def main(url: str, folder: Path) -> None:
    from pyspark import SparkContext

    from mist.pipeline.session import session
    from tests.pipeline.conftest import QUICK

    with session("local[2]", QUICK, name="mist victim") as spark:
        gateway = SparkContext._gateway
        assert gateway is not None
        print("JVM", gateway.proc.pid, flush=True)
        run_to_the_end(start(spark, url, folder))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
