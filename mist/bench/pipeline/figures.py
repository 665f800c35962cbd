"""The figures of the pipeline: each job, and beside it the plain form on the same archive.

The plain form of a large one is run on a part of the messages, and rates are compared; how many
is said. Each is run once before, small, so that neither pays for Spark's start.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mist.archive import Archive
from mist.bench.errors import BenchError
from mist.bench.pipeline import plain
from mist.bench.pipeline.archive import make_archive, make_subscriptions
from mist.bench.pipeline.clustered import measure_cluster
from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import Timed, timed
from mist.bench.pipeline.streaming import measure_stream
from mist.pipeline.errors import PipelineError
from mist.pipeline.jobs import compact, match, volume
from mist.pipeline.kernels.matching import Matcher
from mist.pipeline.reading import Archived, plan, read_log, read_task
from mist.pipeline.selection import Range, Selection
from mist.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["VOCABULARY", "measure_pipeline"]

VOCABULARY: Final = 10_000  # tags
MANY: Final = 1_000_000  # subscriptions, for one core
SEGMENT: Final = 500_000  # messages, as a server seals them

_WARM: Final = 1000  # subscriptions, or messages


def measure_pipeline(
    messages: int,
    subscriptions: int,
    plain_messages: int,
    *,
    small: tuple[int, int] = (1_000_000, 500),
    streamed: tuple[int, int] = (2_000_000, 2_000_000),
    clustered: int = 640_000,
    many: int = MANY,
    master: str = "local[2]",
) -> list[Figure]:
    """All figures.

    Args:
        messages: that are matched and rolled up.
        plain_messages: of them, for the plain forms.
        small: messages and segments of the archive that is compacted.
        streamed: messages from a server into a lake; how many of them in the plain form.
        clustered: messages that jobs on a cluster go over.
        many: subscriptions that one core matches.

    Raises:
        BenchError: what a job gave isn't what the plain form gave; or what Spark needs is
            missing, and the text says what.
    """
    segments = max(1, messages // SEGMENT)
    try:
        with tempfile.TemporaryDirectory(prefix="mist-bench-") as name:
            folder = Path(name)
            large = make_archive(
                folder / "large", messages // segments * segments, segments, VOCABULARY
            )
            alone = _one_core(large, many)
            with _spark(master) as spark:
                figures = [
                    _matching(spark, large, subscriptions, plain_messages),
                    alone,
                    _rollup(spark, large, plain_messages),
                    _compaction(spark, folder, *small),
                    measure_stream(spark, folder, *streamed, VOCABULARY),
                ]
            return figures + measure_cluster(folder, clustered)
    except PipelineError as error:
        raise BenchError(str(error)) from error


@contextmanager
def _spark(master: str) -> "Iterator[SparkSession]":
    conf = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "8"}
    with session(master, conf, name="mist bench") as spark:
        yield spark


def _matching(spark: "SparkSession", archive: Archive, count: int, limit: int) -> Figure:
    subscriptions = make_subscriptions(count, VOCABULARY)
    everything = archive.messages.current().rows

    def plainly(upto: int, wanted: Any = subscriptions) -> int:
        frame = read_log(spark, archive.folder, upto=upto)
        counts = plain.match(spark, frame, wanted).groupBy("subscription").count()
        return sum(row["count"] for row in counts.collect())

    def ours(upto: int, wanted: Any = subscriptions) -> int:
        source = Archived(archive, Selection(Range(upto=upto)))
        matches: int = match.run(spark, source, wanted).summary["matches"]
        return matches

    ours(_WARM, subscriptions[:_WARM])
    plainly(_WARM, subscriptions[:_WARM])
    _, took = timed(lambda: ours(everything))
    plain_took = _alike("match", ours, plainly, min(limit, everything))
    return Figure(
        "match", everything, count, took, min(limit, everything), plain_took, 1_000_000, 2_000_000
    )


def _rollup(spark: "SparkSession", archive: Archive, limit: int) -> Figure:
    everything = archive.messages.current().rows

    def total(frame: "DataFrame") -> int:
        return int(sum(row["sum(messages)"] for row in frame.groupBy().sum("messages").collect()))

    def ours(upto: int) -> int:
        return total(volume.run(spark, Archived(archive, Selection(Range(upto=upto)))).frame)

    def plainly(upto: int) -> int:
        return total(plain.count_by_hour_and_tag(read_log(spark, archive.folder, upto=upto)))

    ours(_WARM)
    plainly(_WARM)
    _, took = timed(lambda: ours(everything))
    plain_took = _alike("rollup", ours, plainly, min(limit, everything))
    return Figure(
        "rollup", everything, None, took, min(limit, everything), plain_took, 1_000_000, 2_000_000
    )


def _compaction(spark: "SparkSession", folder: Path, messages: int, segments: int) -> Figure:
    files = 4
    archive = make_archive(folder / "small", messages, segments, VOCABULARY)
    log = read_log(spark, archive.folder)
    plain.compact(log.limit(_WARM), files, folder / "warm")
    _, plain_took = timed(lambda: plain.compact(log, files, folder / "plain"))
    rows = -(-messages // files)
    # As the plain form was: what Spark idles for a minute with, it starts anew.
    first = make_archive(folder / "first", _WARM, files, VOCABULARY)
    compact.run(spark, first, rows=_WARM // 2)  # a task for each core
    result, took = timed(lambda: compact.run(spark, archive, rows=rows))
    found = read_log(spark, archive.folder).count()
    if result.summary["segments_after"] != files or found != messages:
        raise BenchError(f"compaction left {found:,} of {messages:,} messages: {result.summary}")
    return Figure("compact", messages, None, took, messages, plain_took, 10, 20)


def _alike(
    name: str, ours: Callable[[int], int], plainly: Callable[[int], int], upto: int
) -> Timed:
    """What the plain form took for the messages up to an id, having given what ours gives."""
    found, took = timed(lambda: plainly(upto))
    if (expected := ours(upto)) != found:
        raise BenchError(f"{name}: {expected:,} of ours, {found:,} of the plain form")
    return took


def _one_core(archive: Archive, count: int) -> Figure:
    """The kernel alone, in this process; making it ready isn't counted, reading is."""
    matcher = Matcher(make_subscriptions(count, VOCABULARY))
    everything = Selection(Range(upto=2 * SEGMENT))
    messages = np.zeros(len(matcher), np.int64)

    def run() -> int:
        rows = 0
        for task in plan(archive.messages, everything, 1):
            for batch in read_task(archive.messages, task, everything, ["tags"]):
                np.add(messages, matcher.tally(batch.column("tags")).messages, out=messages)
                rows += len(batch)
        return rows

    rows, took = timed(run)
    return Figure("match_one_core", rows, count, took, None, None, 150_000, 300_000)
