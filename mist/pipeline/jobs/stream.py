"""Streaming ingestion: a Structured Streaming query that writes a server's log into a lake.

A lake is an archive, so every other job works on it, and a folder of Parquet files partitioned by
day (UTC), which other tools can read. Spark's checkpoint records what is being read, the manifest
of the lake what has been written: each message exactly once. Both survive a crash, after which the
query resumes. `mist.pipeline.ingestion` describes how, and how rows bypass Java.

Each batch writes a few files, however few messages it has. The job `compact` merges small files,
which are slow to read.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from mist.archive import Archive, ArchiveError
from mist.pipeline.errors import BadInput, JobFailed, translated
from mist.pipeline.exports import Export, record
from mist.pipeline.ingestion.checkpoint import clear_uncommitted
from mist.pipeline.ingestion.commit import StaleBatch, commit
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.origin import Origin
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["MOST", "Result", "check_target", "run"]

CHECKPOINT: Final = "_checkpoint"  # in the lake; readers ignore names with a leading underscore
POLL: Final = 0.2  # seconds
SWEEP: Final = 600.0  # seconds between two sweeps of replaced files
TRIES: Final = 5  # of a batch, while erasures run
# A crash repeats up to a batch, whose own overhead is a second or less.
MOST: Final = 10_000_000  # messages of a batch


@attrs.frozen
class Result:
    """What one run has written.

    Attributes:
        messages: rows of the batches of this run.
        batches: number of batches with rows.
    """

    path: str
    messages: int
    batches: int

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)


def check_target(lake: Path) -> None:
    """Check that a folder is a lake, or can become one, before Spark is started.

    Raises:
        BadInput: it holds something else. Nothing was changed.
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
    """Append published messages to the lake in a folder.

    Args:
        origin: a server. Its start applies to a new lake; an existing one resumes at its end.
        lake: the folder; on a cluster it is on storage shared by all executors.
        now: Unix seconds, for the export record.
        checkpoint: None is a folder in the lake.
        once: stop when all messages published by now are written.
        every: seconds between two batches.
        most: ids of a batch, at most.
        known_to: the archive that records the lake as an export, so that erasure finds it.
        proceed: called a few times a second; False stops the query.

    Raises:
        BadInput: the origin is no server or has an end; the folder is no lake, or another
            stream writes to it.
        JobFailed: the query failed. What it had committed stays.
        ArchiveError: the lake can't be written.
    """
    if origin.url is None:
        raise BadInput("give --server: a stream follows a live server")
    if origin.end is not None:
        raise BadInput("--until: a stream has no end; --once ends with what is there now")
    target = Lake(lake.absolute())
    with target.exclusive_writer():
        if known_to is not None:
            record(known_to, Export(str(target.folder), "lake", now, dict(origin.described())))
        batches = _Batches(target, progress)
        with translated():
            folder = (checkpoint or target.folder / CHECKPOINT).absolute()
            clear_uncommitted(folder)
            query = _start(spark, origin, batches, folder, once, every, most)
            try:
                _follow(query, batches, proceed)
            finally:
                query.stop()
    return Result(str(target.folder), batches.messages, batches.committed)


class _Batches:
    """Commits one batch after the other, on a thread of the query.

    Attributes:
        messages: rows of all batches.
        committed: number of batches with rows.
        error: the error of the last batch, if it failed.
    """

    def __init__(self, lake: Lake, progress: Progress) -> None:
        self.lake = lake
        self.messages = self.committed = 0
        self.error: Exception | None = None
        self._progress = progress

    def process(self, frame: "DataFrame", number: int) -> None:
        """Run the tasks of a batch, and commit what they wrote."""
        try:
            rows = self._commit(frame)
        except Exception as error:
            self.error = error  # before Spark wraps it in its own
            raise
        if rows:
            self.messages += rows
            self.committed += 1
            self._progress(f"batch {number}: {rows:,} messages")

    def _commit(self, frame: "DataFrame") -> int:
        from mist.pipeline.ingestion.source import decode_outputs

        for _ in range(TRIES):
            outputs = decode_outputs(frame.collect())  # runs the tasks, again in each try
            try:
                return commit(self.lake, outputs).rows
            except StaleBatch:
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
        options["startingOffsets"] = "earliest"  # a lake holds the whole log
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = (
        reader.load()
        .writeStream.foreachBatch(batches.process)
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
        # Not awaited in Java: Ctrl-C would interrupt the gateway connection in use.
        time.sleep(POLL)
        if time.monotonic() >= next_sweep:
            next_sweep = time.monotonic() + SWEEP
            batches.lake.table.sweep()
    if (error := query.exception()) is not None:
        # For a failure in Spark's tasks, Spark's error has more detail than ours.
        ours = batches.error
        raise ours if isinstance(ours, ArchiveError | JobFailed) else error
