"""A live server's messages into a lake, for as long as it runs: a Structured Streaming query.

Parquet files, partitioned by day (UTC), each message in exactly one of them: the checkpoint says
what has been read, and the folder's own log (`_spark_metadata`) which files count. Both survive
whatever ends the process; started again, it goes on.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from mist.archive import Archive
from mist.pipeline.errors import BadInput
from mist.pipeline.exports import Export, record
from mist.pipeline.failures import translated
from mist.pipeline.origin import Origin
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Result", "run"]

CHECKPOINT: Final = "_checkpoint"  # in the lake, where readers of it don't look
POLL: Final = 1.0  # seconds


@attrs.frozen
class Result:
    """What one run has written.

    Attributes:
        messages: rows of this run's batches.
        batches: those that had any.
    """

    path: str
    messages: int
    batches: int

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)


def run(
    spark: "SparkSession",
    origin: Origin,
    lake: Path,
    *,
    now: float,
    checkpoint: Path | None = None,
    once: bool = False,
    every: float = 10.0,
    most: int | None = None,
    known_to: Archive | None = None,
    progress: Progress = silent,
    proceed: Callable[[], bool] = lambda: True,
) -> Result:
    """Append what is published to the folder `lake`.

    Args:
        origin: a server. Its start holds for a new lake; an old one goes on where it was.
        now: Unix seconds, for the note.
        checkpoint: None is a folder in the lake.
        once: end when all that is there now is written.
        every: seconds between two batches.
        most: messages of a batch.
        known_to: the archive that is to know of the lake, so that erasure finds it.
        proceed: asked once a second; stops the query when it says no.

    Raises:
        BadInput: no server, or an end, which a stream hasn't.
        JobFailed: the query failed. What it had committed is there.
    """
    if origin.url is None:
        raise BadInput("give --url: a stream follows a live server")
    if origin.end is not None:
        raise BadInput("--until: a stream has no end; --once ends with what is there now")
    lake = lake.absolute()
    if known_to is not None:
        record(known_to, Export(str(lake), "parquet", now, dict(origin.described())))
    with translated():
        query = _start(spark, origin, lake, checkpoint or lake / CHECKPOINT, once, every, most)
        try:
            messages, batches = _follow(query, progress, proceed)
        finally:
            query.stop()
    return Result(str(lake), messages, batches)


def _start(
    spark: "SparkSession",
    origin: Origin,
    lake: Path,
    checkpoint: Path,
    once: bool,
    every: float,
    most: int | None,
) -> "StreamingQuery":
    from pyspark.sql import functions as sf

    reader = spark.readStream.format("mist")
    options = origin.options()
    if not options.keys() & {"startingOffsets", "startingTimestamp"}:
        options["startingOffsets"] = "earliest"  # a lake is to have all there is
    if most is not None:
        options["maxOffsetsPerTrigger"] = str(most)
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = (
        reader.load()
        .withColumn("date", sf.to_date("time"))
        .writeStream.format("parquet")
        .partitionBy("date")
        .option("path", str(lake))
        .option("checkpointLocation", str(checkpoint.absolute()))
    )
    trigger = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{every * 1000:.0f} milliseconds")
    )
    return trigger.start()


def _follow(
    query: "StreamingQuery", progress: Progress, proceed: Callable[[], bool]
) -> tuple[int, int]:
    seen: dict[int, int] = {}

    def look() -> None:
        for each in query.recentProgress:
            rows = int(each["numInputRows"])
            if rows and seen.get(each["batchId"]) != rows:
                seen[each["batchId"]] = rows
                progress(f"batch {each['batchId']}: {rows:,} messages")

    while query.isActive and proceed():
        # Slept here and not in Java, where Ctrl-C would find the line in use.
        time.sleep(POLL)
        look()
    look()
    if (error := query.exception()) is not None:
        raise error
    return sum(seen.values()), len(seen)
