"""The figures of the pipeline: each job, and beside it the plain form on the same archive.

A job and its plain form are run on the same messages, in turns, and medians are compared; they have
to give the same. Where that is a part of the messages, how many is said, and the job is run over
all of them too. Each is run once before, small, so that neither pays for Spark's start; but for
`small`, which is about just that.

Java runs as Spark itself would start it, since the plain forms depend on its compilers; in a local
session of its own the job costs less (`mist.pipeline.java_options`).
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.archive import Archive
from mist.bench.errors import BenchError
from mist.bench.pipeline import plain
from mist.bench.pipeline.archive import make_archive, make_subscriptions
from mist.bench.pipeline.clustered import measure_cluster
from mist.bench.pipeline.compared import Compared, take
from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import Timed, in_turns, medians, timed
from mist.bench.pipeline.sizes import Sizes
from mist.bench.pipeline.streaming import measure_stream
from mist.pipeline.errors import PipelineError
from mist.pipeline.jobs import compact, match, volume
from mist.pipeline.jobs.result import Result
from mist.pipeline.kernels.matching import Matcher
from mist.pipeline.progress import Progress
from mist.pipeline.reading import Archived, plan, read_log, read_task
from mist.pipeline.selection import Range, Selection
from mist.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["VOCABULARY", "measure"]

VOCABULARY: Final = 10_000  # tags
HARD_VOCABULARY: Final = 1_000_000  # tags that hardly repeat: nothing to remember, little to join
SEGMENT: Final = 500_000  # messages, as a server seals them
FILES: Final = 4  # that small segments are compacted to
MASTER: Final = "local[2]"

_WARM: Final = 1000  # subscriptions, or messages


def measure(job: str, sizes: Sizes, progress: Progress) -> list[Figure]:
    """The figures of a job: one, or the usual case and the hard one.

    Args:
        job: of `mist.bench.pipeline.cells.JOBS`.
        progress: told what is done, and what each round took.

    Raises:
        BenchError: what a job gave isn't what the plain form gave, or the plain form isn't what it
            should be; or what Spark needs is missing, and the text says what.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="mist-bench-") as folder:
            return _MEASURES[job](Path(folder), sizes, progress)
    except PipelineError as error:
        raise BenchError(str(error)) from error


def _measure_both(
    figure: Callable[..., Figure], folder: Path, sizes: Sizes, progress: Progress
) -> list[Figure]:
    """A job's figures, of the usual case and of the hard one."""
    usual, hard = _archives(folder, sizes, progress)
    with _spark() as spark:
        return [
            figure(spark, usual, sizes, progress),
            figure(spark, hard, sizes, progress, hard=True),
        ]


def _measure_compact(folder: Path, sizes: Sizes, progress: Progress) -> list[Figure]:
    with _spark() as spark:
        return [_compaction(spark, folder, sizes, progress)]


def _measure_stream(folder: Path, sizes: Sizes, progress: Progress) -> list[Figure]:
    progress(f"{sizes.streamed:,} messages of a server into a lake")
    with _spark() as spark:
        return [measure_stream(spark, folder, sizes.streamed, sizes.streamed, VOCABULARY)]


def _measure_cluster(folder: Path, sizes: Sizes, progress: Progress) -> list[Figure]:
    progress(f"jobs over {sizes.clustered:,} messages, on {MASTER} and on a cluster")
    return measure_cluster(folder, sizes.clustered)


def _archives(folder: Path, sizes: Sizes, progress: Progress) -> tuple[Archive, Archive]:
    """The messages, and those of the hard case."""
    return (
        _archive(folder / "usual", sizes.messages, VOCABULARY, progress),
        _archive(folder / "hard", sizes.hard, HARD_VOCABULARY, progress),
    )


def _archive(folder: Path, messages: int, vocabulary: int, progress: Progress) -> Archive:
    progress(f"making {messages:,} messages of {vocabulary:,} tags")
    segments = max(1, messages // SEGMENT)
    return make_archive(folder, messages // segments * segments, segments, vocabulary)


@contextmanager
def _spark() -> "Iterator[SparkSession]":
    conf = {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.driver.defaultJavaOptions": "",
    }
    with session(MASTER, conf, name="mist bench") as spark:
        yield spark


def _matching(
    spark: "SparkSession",
    archive: Archive,
    sizes: Sizes,
    progress: Progress,
    *,
    hard: bool = False,
) -> Figure:
    count = sizes.subscriptions
    subscriptions = make_subscriptions(count, HARD_VOCABULARY if hard else VOCABULARY)
    everything = archive.messages.current().rows
    upto = min(sizes.plain_messages, everything)

    def ours(upto: int, wanted: pa.Array = subscriptions) -> pa.Table:
        found = match.run(spark, Archived(archive, Selection(Range(upto=upto))), wanted)
        assert isinstance(found, Result)  # of counts, not of pairs
        return found.table.filter(pc.greater(found.table.column("messages"), 0))

    def plainly(upto: int, wanted: pa.Array = subscriptions) -> "DataFrame":
        frame = read_log(spark, archive.folder, upto=upto)
        counts = plain.match(spark, frame, wanted).groupBy("subscription").count()
        plain.check_plan("match", counts)
        return counts.withColumnRenamed("count", "messages")

    ours(_WARM, subscriptions[:_WARM])
    take(plainly(_WARM, subscriptions[:_WARM]))
    name, must, aim = ("match_hard", None, None) if hard else ("match", 1_000_000, 2_000_000)
    compared = Compared(name, ours, plainly, ["subscription"], upto, everything)
    same, plain_took, took = compared.run(sizes.rounds, progress)
    return Figure(name, everything, count, took, upto, plain_took, must, aim, same=same)


def _rollup(
    spark: "SparkSession",
    archive: Archive,
    sizes: Sizes,
    progress: Progress,
    *,
    hard: bool = False,
) -> Figure:
    everything = archive.messages.current().rows
    upto = min(sizes.plain_messages, everything)

    def ours(upto: int) -> "DataFrame":
        return our_rollup(spark, archive, upto)

    def plainly(upto: int) -> "DataFrame":
        return plain_rollup(spark, archive, upto)

    take(ours(_WARM))
    take(plainly(_WARM))
    name, must, aim = ("rollup_hard", None, None) if hard else ("rollup", 1_000_000, 2_000_000)
    compared = Compared(name, ours, plainly, ["hour", "tag"], upto, everything)
    same, plain_took, took = compared.run(sizes.rounds, progress)
    return Figure(name, everything, None, took, upto, plain_took, must, aim, same=same)


def our_rollup(spark: "SparkSession", archive: Archive, upto: int) -> "DataFrame":
    # The job keeps its counts, and Spark would take them for those of the next round.
    spark.catalog.clearCache()
    found = volume.run(spark, Archived(archive, Selection(Range(upto=upto)))).frame
    return found.select("hour", "tag", "messages")


def plain_rollup(spark: "SparkSession", archive: Archive, upto: int) -> "DataFrame":
    frame = plain.count_by_hour_and_tag(read_log(spark, archive.folder, upto=upto))
    plain.check_plan("rollup", frame)
    return frame


def _measure_small(folder: Path, sizes: Sizes, progress: Progress) -> list[Figure]:
    """A roll-up of few messages, with the start of Spark, which is nearly all of it."""
    archive = _archive(folder / "few", sizes.few, VOCABULARY, progress)

    def measured(run: "Callable[[SparkSession, Archive, int], DataFrame]") -> Timed:
        with ExitStack() as stack:
            # Its end isn't counted: what its processes took can be read only before.
            return timed(lambda: take(run(stack.enter_context(_spark()), archive, sizes.few)))[1]

    took, plain_took = medians(
        lambda: measured(our_rollup), lambda: measured(plain_rollup), sizes.rounds, progress
    )
    return [Figure("rollup_small", sizes.few, None, took, sizes.few, plain_took)]


def _compaction(spark: "SparkSession", folder: Path, sizes: Sizes, progress: Progress) -> Figure:
    messages, segments, rounds = sizes.compacted, sizes.segments, sizes.rounds
    progress(f"making {messages:,} messages in {segments:,} segments")
    original = make_archive(folder / "small", messages, segments, VOCABULARY)
    log = read_log(spark, original.folder)
    rows = -(-messages // FILES)
    copies = (folder / f"copy-{n}" for n in numbers(1))

    def ours() -> None:
        archive = Archive(next(waiting))
        result = compact.run(spark, archive, rows=rows)
        found = archive.messages.current().rows
        if result.summary["segments_after"] != FILES or found != messages:
            raise BenchError(f"compaction left {found:,} of {messages:,}: {result.summary}")

    def plainly() -> None:
        frame = plain.compact(log, FILES)
        plain.check_plan("compact", frame)
        out = next(copies)
        frame.write.parquet(str(out))
        # Of little data Spark makes fewer partitions than that, which is no more work.
        if not 1 <= (found := len(list(out.glob("*.parquet")))) <= FILES:
            raise BenchError(f"the plain form of compact made {found} files")

    # Copied before, since compaction changes an archive. As the plain form was: what Spark idles
    # for a minute with, it starts anew.
    waiting = iter([_copy(original, next(copies)) for _ in range(rounds)])
    plain.compact(log.limit(_WARM), FILES).write.parquet(str(folder / "warm"))
    first = make_archive(folder / "first", _WARM, FILES, VOCABULARY)
    compact.run(spark, first, rows=_WARM // 2)  # a task for each core
    took, plain_took = in_turns(ours, plainly, rounds, progress)
    return Figure("compact", messages, None, took, messages, plain_took)


def _copy(archive: Archive, folder: Path) -> Path:
    shutil.copytree(archive.folder, folder)
    return folder


def _measure_one_core(folder: Path, sizes: Sizes, progress: Progress) -> list[Figure]:
    """The kernel alone, in this process; making it ready isn't counted, reading is."""
    archive = _archive(folder / "usual", min(sizes.messages, 2 * SEGMENT), VOCABULARY, progress)
    count = sizes.many
    progress(f"matching {count:,} subscriptions without Spark")
    matcher = Matcher(make_subscriptions(count, VOCABULARY))
    messages = np.zeros(len(matcher), np.int64)

    def run() -> int:
        rows = 0
        for task in plan(archive.messages, Selection(), 1):
            for batch in read_task(archive.messages, task, Selection(), ["tags"]):
                np.add(messages, matcher.tally(batch.column("tags")).messages, out=messages)
                rows += len(batch)
        return rows

    rows, took = timed(run)
    return [Figure("match_one_core", rows, count, took, None, None, 150_000, 300_000)]


_MEASURES: Final[Mapping[str, Callable[[Path, Sizes, Progress], list[Figure]]]] = {
    "match": partial(_measure_both, _matching),
    "one-core": _measure_one_core,
    "rollup": partial(_measure_both, _rollup),
    "compact": _measure_compact,
    "small": _measure_small,
    "stream": _measure_stream,
    "cluster": _measure_cluster,
}
