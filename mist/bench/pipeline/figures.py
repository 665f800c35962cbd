"""The figures of the pipeline: each job, and beside it the plain form on the same archive.

A job and its plain form are run on the same messages, in turns, and medians are compared; they have
to give the same. Where that is a part of the messages, how many is said, and the job is run over
all of them too. Each is run once before, small, so that neither pays for Spark's start.

Java runs as Spark itself would start it, since the plain forms depend on its compilers; in a local
session of its own the job costs less (`mist.pipeline.java_options`).
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.archive import Archive
from mist.bench.errors import BenchError
from mist.bench.pipeline import plain
from mist.bench.pipeline.archive import make_archive, make_subscriptions
from mist.bench.pipeline.clustered import measure_cluster
from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import Timed, in_turns, timed
from mist.bench.pipeline.streaming import measure_stream
from mist.pipeline.errors import PipelineError
from mist.pipeline.jobs import compact, match, volume
from mist.pipeline.jobs.result import Result
from mist.pipeline.kernels.matching import Matcher
from mist.pipeline.reading import Archived, plan, read_log, read_task
from mist.pipeline.selection import Range, Selection
from mist.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["VOCABULARY", "measure_pipeline"]

VOCABULARY: Final = 10_000  # tags
HARD_VOCABULARY: Final = 1_000_000  # tags that hardly repeat: nothing to remember, little to join
MANY: Final = 1_000_000  # subscriptions, for one core
ROUNDS: Final = 3
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
    rounds: int = ROUNDS,
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
        rounds: of which medians are taken, where a plain form is beside.

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
            hard = make_archive(
                folder / "hard", plain_messages, max(1, plain_messages // SEGMENT), HARD_VOCABULARY
            )
            alone = _one_core(large, many)
            with _spark(master) as spark:
                figures = [
                    _matching(spark, large, subscriptions, plain_messages, rounds),
                    _matching(spark, hard, subscriptions, plain_messages, rounds, hard=True),
                    alone,
                    _rollup(spark, large, plain_messages, rounds),
                    _rollup(spark, hard, plain_messages, rounds, hard=True),
                    _compaction(spark, folder, *small, rounds),
                    measure_stream(spark, folder, *streamed, VOCABULARY),
                ]
            return figures + measure_cluster(folder, clustered)
    except PipelineError as error:
        raise BenchError(str(error)) from error


@contextmanager
def _spark(master: str) -> "Iterator[SparkSession]":
    conf = {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.driver.defaultJavaOptions": "",
    }
    with session(master, conf, name="mist bench") as spark:
        yield spark


def _matching(
    spark: "SparkSession",
    archive: Archive,
    count: int,
    limit: int,
    rounds: int,
    *,
    hard: bool = False,
) -> Figure:
    subscriptions = make_subscriptions(count, HARD_VOCABULARY if hard else VOCABULARY)
    everything = archive.messages.current().rows

    def ours(upto: int, wanted: Any = subscriptions) -> pa.Table:
        found = match.run(spark, Archived(archive, Selection(Range(upto=upto))), wanted)
        assert isinstance(found, Result)  # of counts, not of pairs
        table = found.table
        return table.filter(pc.greater(table.column("messages"), 0)).sort_by("subscription")

    def plainly(upto: int, wanted: Any = subscriptions) -> pa.Table:
        frame = read_log(spark, archive.folder, upto=upto)
        counts = plain.match(spark, frame, wanted).groupBy("subscription").count()
        plain.check_plan("match", counts)
        return counts.toArrow().rename_columns(["subscription", "messages"]).sort_by("subscription")

    ours(_WARM, subscriptions[:_WARM])
    plainly(_WARM, subscriptions[:_WARM])
    same, plain_took, took = _compare(
        "match", ours, plainly, min(limit, everything), rounds, everything
    )
    name, must, aim = ("match_hard", None, None) if hard else ("match", 1_000_000, 2_000_000)
    upto = min(limit, everything)
    return Figure(name, everything, count, took, upto, plain_took, must, aim, same=same)


def _rollup(
    spark: "SparkSession", archive: Archive, limit: int, rounds: int, *, hard: bool = False
) -> Figure:
    everything = archive.messages.current().rows
    order = [("hour", "ascending"), ("tag", "ascending")]

    def ours(upto: int) -> pa.Table:
        found = volume.run(spark, Archived(archive, Selection(Range(upto=upto)))).frame
        return found.select("hour", "tag", "messages").toArrow().sort_by(order)

    def plainly(upto: int) -> pa.Table:
        frame = plain.count_by_hour_and_tag(read_log(spark, archive.folder, upto=upto))
        plain.check_plan("rollup", frame)
        return frame.toArrow().sort_by(order)

    ours(_WARM)
    plainly(_WARM)
    upto = min(limit, everything)
    same, plain_took, took = _compare("rollup", ours, plainly, upto, rounds, everything)
    name, must, aim = ("rollup_hard", None, None) if hard else ("rollup", 1_000_000, 2_000_000)
    return Figure(name, everything, None, took, upto, plain_took, must, aim, same=same)


def _compaction(
    spark: "SparkSession", folder: Path, messages: int, segments: int, rounds: int
) -> Figure:
    files = 4
    original = make_archive(folder / "small", messages, segments, VOCABULARY)
    log = read_log(spark, original.folder)
    rows = -(-messages // files)
    copies = (folder / f"copy-{n}" for n in numbers(1))

    def ours() -> None:
        archive = Archive(next(waiting))
        result = compact.run(spark, archive, rows=rows)
        found = archive.messages.current().rows
        if result.summary["segments_after"] != files or found != messages:
            raise BenchError(f"compaction left {found:,} of {messages:,}: {result.summary}")

    def plainly() -> None:
        frame = plain.compact(log, files)
        plain.check_plan("compact", frame)
        out = next(copies)
        frame.write.parquet(str(out))
        # Of little data Spark makes fewer partitions than that, which is no more work.
        if not 1 <= (found := len(list(out.glob("*.parquet")))) <= files:
            raise BenchError(f"the plain form of compact made {found} files")

    # Copied before, since compaction changes an archive. As the plain form was: what Spark idles
    # for a minute with, it starts anew.
    waiting = iter([_copy(original, next(copies)) for _ in range(rounds)])
    plain.compact(log.limit(_WARM), files).write.parquet(str(folder / "warm"))
    first = make_archive(folder / "first", _WARM, files, VOCABULARY)
    compact.run(spark, first, rows=_WARM // 2)  # a task for each core
    took, plain_took = in_turns(ours, plainly, rounds)
    return Figure("compact", messages, None, took, messages, plain_took)


def _copy(archive: Archive, folder: Path) -> Path:
    shutil.copytree(archive.folder, folder)
    return folder


def _compare(
    name: str,
    ours: Callable[[int], pa.Table],
    plainly: Callable[[int], pa.Table],
    upto: int,
    rounds: int,
    everything: int,
) -> tuple[Timed, Timed, Timed]:
    """What ours and the plain form take for the same messages, and ours for all of them.

    Raises:
        BenchError: they give something else.
    """
    # By columns: a table is also unequal where only one of them may hold nulls.
    if ours(upto).columns != plainly(upto).columns:
        raise BenchError(f"{name}: the plain form gives something else")
    same, plain_took = in_turns(lambda: ours(upto), lambda: plainly(upto), rounds)
    took = same if upto == everything else timed(lambda: ours(everything))[1]
    return same, plain_took, took


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
