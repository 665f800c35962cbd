"""Jobs on a standalone cluster: they give what they give on `local[2]`, also while executors die.

That is what is looked at; times are told beside it, of workers that share one machine's cores.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from mist.archive import Archive
from mist.archive.segments import read_segment
from mist.bench.errors import BenchError
from mist.bench.pipeline.archive import make_archive, make_subscriptions
from mist.bench.pipeline.cluster import SMALL, Cluster, Killer, start_cluster
from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import Timed, timed
from mist.pipeline.jobs import compact, match, volume
from mist.pipeline.jobs.result import Result
from mist.pipeline.reading import Archived
from mist.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure_cluster"]

SEGMENTS: Final = 80
FILES: Final = 40  # that these are compacted to, a task each
SUBSCRIPTIONS: Final = 1000
VOCABULARY: Final = 10_000  # tags
MEMORY: Final = "768m"

_CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
}
_CLUSTER: Final = {
    **_CONF,
    "spark.executor.memory": MEMORY,
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": SMALL,
}


@attrs.frozen
class _Given:
    """What the jobs gave, and what they took."""

    matched: pa.Table
    counted: pa.Table
    compacted: list[tuple[int, int, int]]
    ids: pa.ChunkedArray
    took: tuple[Timed, Timed, Timed]


def measure_cluster(folder: Path, messages: int) -> list[Figure]:
    """`match`, `rollup` and `compact` on a cluster; in the last an executor is killed.

    Not within a session of Spark's: there is one in a process at a time.

    Args:
        folder: to make archives in.
        messages: that the jobs go over.

    Raises:
        BenchError: a job gave something else than on `local[2]`, or could not be disturbed.
    """
    messages -= messages % SEGMENTS
    archive = make_archive(folder / "near", messages, SEGMENTS, VOCABULARY)
    shutil.copytree(archive.folder, folder / "far")
    with session("local[2]", _CONF, name="mist bench") as spark:
        near = _run(spark, archive, messages, lambda: None)
    with (
        start_cluster(folder) as cluster,
        session(cluster.master, _CLUSTER, name="mist bench") as spark,
    ):
        far = _run(spark, Archive(folder / "far"), messages, _killing(spark, cluster))
    for field in attrs.fields(_Given):
        if field.name != "took" and getattr(near, field.name) != getattr(far, field.name):
            raise BenchError(f"on the cluster {field.name} is something else than on local[2]")
    names = ("cluster_match", "cluster_rollup", "cluster_compact")
    subscriptions = (SUBSCRIPTIONS, None, None)
    return [
        Figure(name, messages, count, took)
        for name, count, took in zip(names, subscriptions, far.took, strict=True)
    ]


def _run(
    spark: "SparkSession", archive: Archive, messages: int, disturb: "Callable[[], Any]"
) -> _Given:
    source = Archived(archive)
    wanted = make_subscriptions(SUBSCRIPTIONS, VOCABULARY)
    matched, match_took = timed(lambda: match.run(spark, source, wanted))
    assert isinstance(matched, Result)  # of counts, not of pairs
    counted, count_took = timed(lambda: volume.run(spark, source).frame.toArrow())

    def compacting() -> None:
        end = disturb()
        compact.run(spark, archive, rows=messages // FILES)
        if end is not None:
            end()

    _, compact_took = timed(compacting)
    table = archive.messages
    segments = table.current().segments
    return _Given(
        matched.table.sort_by("subscription"),
        counted.sort_by([(name, "ascending") for name in counted.column_names]),
        [(each.first, each.last, each.rows) for each in segments],
        pa.concat_tables([read_segment(table, each, ["id"]) for each in segments]).column("id"),
        (match_took, count_took, compact_took),
    )


def _killing(spark: "SparkSession", cluster: Cluster) -> Callable[[], Callable[[], None]]:
    def begin() -> Callable[[], None]:
        killer = Killer(spark, cluster.workers)
        killer.start()

        def end() -> None:
            killer.stop()
            if killer.at is None:
                raise BenchError("the job was over before an executor could be killed")

        return end

    return begin
