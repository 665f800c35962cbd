"""The plain forms that the benchmark compares with do what they are said to do."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mist.archive import Archive
from mist.bench.errors import BenchError
from mist.bench.pipeline import plain
from mist.bench.pipeline.archive import make_archive, make_subscriptions
from mist.bench.pipeline.compared import take
from mist.bench.pipeline.figures import our_rollup, plain_rollup
from mist.pipeline.reading import read_log

VOCABULARY = 50


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return make_archive(tmp_path_factory.mktemp("plain") / "archive", 2000, 10, VOCABULARY)


def test_their_plans_are_as_claimed(spark: Any, archive: Archive) -> None:
    log = read_log(spark, archive.folder)
    pairs = plain.match(spark, log, make_subscriptions(100, VOCABULARY))
    plain.check_plan("match", pairs.groupBy("subscription").count())
    plain.check_plan("rollup", plain.count_by_hour_and_tag(log))
    plain.check_plan("compact", plain.compact(log, 4))


def test_a_roll_up_that_spark_makes_less_of_is_refused(spark: Any, archive: Archive) -> None:
    # What was measured before: the total needs no groups, and so Spark makes none.
    total = plain.count_by_hour_and_tag(read_log(spark, archive.folder)).groupBy().sum("messages")
    with pytest.raises(BenchError, match="plain form of rollup isn't what it should be"):
        plain.check_plan("rollup", total)


def test_other_forms_are_refused(spark: Any, archive: Archive) -> None:
    from pyspark.sql import functions as sf

    log = read_log(spark, archive.folder)
    ordered = log.repartitionByRange(4, "id").sortWithinPartitions("id")
    with pytest.raises(BenchError, match="of compact"):
        plain.check_plan("compact", ordered)
    table = pa.table({"tag": ["tag000001"], "wanted": [["tag000001"]]})
    exploded = log.select("id", "tags", sf.explode("tags").alias("tag"))
    joined = exploded.join(sf.broadcast(spark.createDataFrame(table)), "tag")
    with pytest.raises(BenchError, match="of match"):
        plain.check_plan("match", joined.where(sf.size(sf.array_except("wanted", "tags")) == 0))


def test_compaction_keeps_every_row(spark: Any, archive: Archive, tmp_path: Path) -> None:
    log = read_log(spark, archive.folder)
    plain.compact(log, 2).write.parquet(str(tmp_path / "out"))
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    ids = spark.read.parquet(str(tmp_path / "out")).select("id").toArrow().column("id")
    assert sorted(ids.to_pylist()) == list(range(1, 2001))


def test_each_round_of_a_job_reads_the_messages_again(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "archive", 200, 2, VOCABULARY)
    for job in (our_rollup, plain_rollup):
        take(job(spark, archive, 200))
    (segment, _) = archive.messages.current().segments
    archive.messages.path(segment).unlink()
    for job in (our_rollup, plain_rollup):
        with pytest.raises(Exception, match=r"not there|does not exist"):
            take(job(spark, archive, 200))
