"""`readStream` and `writeStream` of the format `mist`, on Spark."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mist.archive.table import Archive
from tests.pipeline.source.fake import Fake, Handler, faking, rows
from tests.pipeline.source.sealed import seal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECRET = "not-to-be-seen"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 100)
        yield fake


def to_parquet(spark: "SparkSession", folder: Path, **options: str) -> list[int]:
    """Run what there is to its end, and return the ids of all there is then."""
    stream = spark.readStream.format("mist").options(**options).load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return sorted(row.id for row in spark.read.parquet(str(folder / "out")).collect())


def numbers(fake: Fake) -> list[int]:
    return sorted(
        int(data) for table in fake.committed.values() for data in table.column("data").to_pylist()
    )


def test_a_stream_goes_on_where_its_checkpoint_is(
    spark: "SparkSession", fake: Fake, tmp_path: Path
) -> None:
    options = {"url": fake.url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    assert to_parquet(spark, tmp_path, **options) == list(range(1, 101))
    assert (tmp_path / "checkpoint" / "offsets" / "2").exists()  # three batches
    fake.log = rows(1, 150)
    # The options are for a new query: the checkpoint wins.
    options |= {"startingOffsets": "latest", "secret": SECRET}
    assert to_parquet(spark, tmp_path, **options) == list(range(1, 151))
    for file in (tmp_path / "checkpoint").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_batch_is_done_again_from_where_it_began(
    spark: "SparkSession", fake: Fake, tmp_path: Path, start: str
) -> None:
    assert to_parquet(spark, tmp_path, url=fake.url, startingOffsets="41") == [*range(41, 101)]
    # As if killed before the batch was written; where a new query would begin has moved on.
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    fake.log = rows(1, 150)
    assert to_parquet(spark, tmp_path, url=fake.url, startingOffsets=start) == [*range(41, 151)]


def test_an_archive_is_a_stream_of_what_is_sealed(spark: "SparkSession", tmp_path: Path) -> None:
    table = Archive.create(tmp_path / "archive").messages
    seal(table, (1, 30), (31, 60))
    options = {"path": str(tmp_path / "archive"), "startingOffsets": "21", "subscribe": "odd"}
    assert to_parquet(spark, tmp_path, **options) == list(range(21, 61, 2))
    seal(table, (61, 80))
    assert to_parquet(spark, tmp_path, **options) == list(range(21, 81, 2))


def test_a_stream_into_a_server_commits_each_batch_once(
    spark: "SparkSession", fake: Fake, tmp_path: Path
) -> None:
    """Also where the answer to a commit is lost: the server has it, the query hears nothing."""
    deaf = []

    def commit_unheard(handler: Handler) -> bool:
        if handler.path != "/v1/log/commit" or len(deaf) > 2:
            return False
        deaf.append(handler.body)
        handler.raw = lambda status, body, headers: None  # type: ignore[method-assign]
        handler.commit(fake, json.loads(handler.body))
        handler.close_connection = True
        return True

    fake.faults.append(commit_unheard)
    stream = (
        spark.readStream.format("mist")
        .options(url=fake.url, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
    )
    query = (
        stream.writeStream.format("mist")
        .options(url=fake.url, secret=SECRET)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(deaf) == 3
    assert numbers(fake) == list(range(1, 101))
    assert sorted(fake.committed) == [(query.id, 0), (query.id, 1), (query.id, 2)]
    assert not fake.staged
    assert SECRET not in str(query.recentProgress)


def test_a_write_publishes_all_or_nothing_each_time(spark: "SparkSession", fake: Fake) -> None:
    frame = written(spark, fake).repartition(3)
    write(frame, fake)
    write(frame, fake)
    assert numbers(fake) == sorted([*range(1, 101)] * 2)
    [first, second] = fake.committed
    assert first != second

    broken = spark.createDataFrame([(["a"], b"1")] * 10, "tags array<string>, data binary")
    failing = broken.selectExpr("tags", "data", "assert_true(rand() < 0) AS audience")
    with pytest.raises(Exception, match=r"assert_true|is not true"):
        write(failing.selectExpr("tags", "data", "cast(audience as string) audience"), fake)
    assert len(fake.committed) == 2
    with pytest.raises(Exception, match="UnfitRows: no column data"):
        write(broken.select("tags"), fake)
    with pytest.raises(Exception, match="InvalidOption: mode: append only"):
        broken.write.format("mist").option("url", fake.url).mode("overwrite").save()


def test_a_named_write_is_done_once(spark: "SparkSession", fake: Fake, tmp_path: Path) -> None:
    frame = written(spark, fake)
    write(frame, fake, txn="import")
    write(frame, fake, txn="import")
    assert numbers(fake) == list(range(1, 101))
    assert not fake.staged

    stream = (
        spark.readStream.format("mist")
        .options(url=fake.url, startingOffsets="earliest", maxOffsetsPerTrigger="60")
        .load()
    )
    fake.committed.clear()
    query = (
        stream.writeStream.foreachBatch(
            lambda part, n: write(part.select("tags", "data"), fake, txn="each")
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(fake.committed) == [("each", 0), ("each", 1)]
    assert numbers(fake) == list(range(1, 101))


def written(spark: "SparkSession", fake: Fake) -> "DataFrame":
    return spark.read.format("mist").option("url", fake.url).load()


def write(frame: "DataFrame", fake: Fake, **options: str) -> None:
    frame.write.format("mist").options(url=fake.url, **options).mode("append").save()
