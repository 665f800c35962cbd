"""Streaming ingestion: a Structured Streaming query that writes a server's log into a lake.

A lake is an archive, so that every other job works on it, and a folder of Parquet files by day
(UTC), so that everybody else's tools do. Spark's checkpoint says what is being read, the lake's
manifest what is there: each message once. Both survive whatever ends the process; started
again, it goes on. How, and what of it doesn't go through Java: see `mist.pipeline.ingestion`.

Each batch makes a few files, however few messages came. What many small ones cost those who
read them is what `compact` is for.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from mist.archive import Archive, ArchiveError
from mist.pipeline.errors import BadInput, JobFailed
from mist.pipeline.exports import Export, record
from mist.pipeline.failures import translated
from mist.pipeline.ingestion.entering import OutOfDate, enter
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.origin import Origin
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["MOST", "Result", "check_target", "run"]

CHECKPOINT: Final = "_checkpoint"  # in the lake, where readers of it don't look
POLL: Final = 0.2  # seconds
SWEEP: Final = 600.0  # seconds between two looks for files that have been replaced
TRIES: Final = 5  # of a batch, while others erase
# What a crash has done again; and a batch takes a second or less for its own sake.
MOST: Final = 10_000_000  # messages of a batch


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


def check_target(lake: Path) -> None:
    """See that a folder is a lake, or can become one, before Spark is started for it.

    Raises:
        BadInput: it holds something else. Nothing was touched.
    """
    Lake(lake.absolute()).check()


def run(
    spark: "SparkSession",
    origin: Origin,
    lake: Path,
    *,
    now: float,
    checkpoint: Path | None = None,
    once: bool = False,
    every: float = 10.0,
    most: int = MOST,
    known_to: Archive | None = None,
    progress: Progress = silent,
    proceed: Callable[[], bool] = lambda: True,
) -> Result:
    """Append what is published to the folder `lake`.

    Args:
        origin: a server. Its start holds for a new lake; an old one goes on where it was.
        lake: on a cluster, where every executor finds it.
        now: Unix seconds, for the note.
        checkpoint: None is a folder in the lake.
        once: end when all that is there now is written.
        every: seconds between two batches.
        most: ids of a batch.
        known_to: the archive that is to know of the lake, so that erasure finds it.
        proceed: asked a few times a second; stops the query when it says no.

    Raises:
        BadInput: no server; an end, which a stream hasn't; a folder that is no lake, or that
            another stream writes into.
        JobFailed: the query failed. What it had committed is there.
        ArchiveError: the lake can't be written.
    """
    if origin.url is None:
        raise BadInput("give --url: a stream follows a live server")
    if origin.end is not None:
        raise BadInput("--until: a stream has no end; --once ends with what is there now")
    target = Lake(lake.absolute())
    with target.claimed():
        if known_to is not None:
            record(known_to, Export(str(target.folder), "lake", now, dict(origin.described())))
        batches = _Batches(target, progress)
        with translated():
            folder = (checkpoint or target.folder / CHECKPOINT).absolute()
            query = _start(spark, origin, batches, folder, once, every, most)
            try:
                _follow(query, batches, proceed)
            finally:
                query.stop()
    return Result(str(target.folder), batches.messages, batches.entered)


class _Batches:
    """Enters one batch after the other, from a thread of the query's.

    Attributes:
        messages, entered: of all batches; those that had messages.
        error: what the last one failed with.
    """

    def __init__(self, lake: Lake, progress: Progress) -> None:
        self.lake = lake
        self.messages = self.entered = 0
        self.error: Exception | None = None
        self._progress = progress

    def take(self, frame: "DataFrame", number: int) -> None:
        """Have the tasks of a batch run, and enter what they wrote."""
        try:
            rows = self._enter(frame)
        except Exception as error:
            self.error = error  # Spark would make pages of it
            raise
        if rows:
            self.messages += rows
            self.entered += 1
            self._progress(f"batch {number}: {rows:,} messages")

    def _enter(self, frame: "DataFrame") -> int:
        from mist.pipeline.ingestion.source import read_landed

        for _ in range(TRIES):
            landed = read_landed(frame.collect())  # the tasks run in here, anew each time
            try:
                return enter(self.lake, landed).rows
            except OutOfDate:
                continue
        raise JobFailed("messages are being erased faster than a batch can be read")


def _start(
    spark: "SparkSession",
    origin: Origin,
    batches: _Batches,
    checkpoint: Path,
    once: bool,
    every: float,
    most: int,
) -> "StreamingQuery":
    from mist.pipeline.ingestion.source import IngestionSource

    spark.dataSource.register(IngestionSource)
    reader = spark.readStream.format(IngestionSource.name())
    options = origin.options() | {
        "lake": str(batches.lake.folder),
        "maxOffsetsPerTrigger": str(most),
    }
    if not options.keys() & {"startingOffsets", "startingTimestamp"}:
        options["startingOffsets"] = "earliest"  # a lake is to have all there is
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = (
        reader.load()
        .writeStream.foreachBatch(batches.take)
        .option("checkpointLocation", str(checkpoint))
    )
    trigger = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{every * 1000:.0f} milliseconds")
    )
    return trigger.start()


def _follow(query: "StreamingQuery", batches: _Batches, proceed: Callable[[], bool]) -> None:
    next_sweep = time.monotonic() + SWEEP
    while query.isActive and proceed():
        # Slept here and not in Java, where Ctrl-C would find the line in use.
        time.sleep(POLL)
        if time.monotonic() >= next_sweep:
            next_sweep = time.monotonic() + SWEEP
            batches.lake.table.sweep()
    if (error := query.exception()) is not None:
        # Of a batch that Spark's tasks failed, Spark says more than our half of it.
        ours = batches.error
        raise ours if isinstance(ours, ArchiveError | JobFailed) else error
