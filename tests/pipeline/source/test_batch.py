"""`spark.read.format("mist")`, on Spark."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mist.archive.schema import MESSAGES, SPARK_MESSAGES
from mist.archive.table import Archive
from mist.pipeline.source.schema import ReadSchema, messages_schema
from tests.pipeline.source.fake import Fake, faking, rows
from tests.pipeline.source.sealed import seal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECRET = "not-to-be-seen"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 100)
        yield fake


def load(spark: "SparkSession", **options: object) -> "DataFrame":
    return spark.read.format("mist").options(**options).load()  # type: ignore[arg-type]


def ids(frame: "DataFrame") -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def meant(first: int, last: int) -> list[tuple[Any, ...]]:
    return [
        (
            n,
            datetime.fromtimestamp(n, UTC).replace(tzinfo=None),
            [f"n{n}", "odd" if n % 2 else "even"],
            b"%d" % n,
            "service",
            None,
            {"k": b"v"} if n % 3 == 0 else None,
        )
        for n in range(first, last + 1)
    ]


def test_the_schema_is_the_archives_and_the_pages() -> None:
    schema = messages_schema()
    assert ReadSchema.of(schema).declared.equals(MESSAGES)
    fields = schema.fields
    assert ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in fields) == SPARK_MESSAGES


def test_both_origins_give_the_same_rows_to_the_value(
    spark: "SparkSession", fake: Fake, tmp_path: Path
) -> None:
    seal(Archive.create(tmp_path).messages, (1, 30), (31, 100))
    for where in ({"url": fake.url}, {"path": str(tmp_path)}):
        frame = load(spark, **where, minPartitions=3, batchSize=7)
        assert frame.rdd.getNumPartitions() >= 3
        assert [tuple(row) for row in frame.orderBy("id").collect()] == meant(1, 100)


@pytest.mark.parametrize("where", ["url", "path"])
def test_a_selection_is_made_at_the_source(
    spark: "SparkSession", fake: Fake, tmp_path: Path, where: str
) -> None:
    seal(Archive.create(tmp_path).messages, (1, 30), (31, 100))
    origin = {"url": fake.url} if where == "url" else {"path": str(tmp_path)}
    frame = load(
        spark, **origin, subscribe="odd,n11; n40; n60", startingOffsets=10, endingOffsets=60
    )
    assert ids(frame) == [11, 40]
    times = {"startingTimestamp": "1970-01-01T00:00:58Z"}
    assert ids(load(spark, **origin, **times, endingTimestamp=60_000)) == [58, 59]


def test_columns_left_out_of_the_schema_are_not_read(spark: "SparkSession", fake: Fake) -> None:
    reader = spark.read.format("mist").option("url", fake.url)
    found = reader.schema("data binary, id bigint").load().orderBy("id").collect()
    assert [tuple(row) for row in found[:2]] == [(b"1", 1), (b"2", 2)]
    for schema, said in [
        ("id int", "schema: id is bigint, not int"),
        ("text string", "schema: messages have no column text"),
    ]:
        with pytest.raises(Exception, match=said):
            reader.schema(schema).load().collect()


def test_an_empty_log_has_no_rows(spark: "SparkSession", fake: Fake, tmp_path: Path) -> None:
    fake.log = rows(1, 0)
    Archive.create(tmp_path)
    assert load(spark, url=fake.url).collect() == []
    assert load(spark, path=str(tmp_path)).collect() == []


def test_what_is_gone_fails_the_query_unless_it_may_be_missing(
    spark: "SparkSession", fake: Fake
) -> None:
    fake.log, fake.first = rows(50, 100), 50
    assert ids(load(spark, url=fake.url)) == list(range(50, 101))
    with pytest.raises(Exception, match="messages 10 to 49 are no longer available"):
        load(spark, url=fake.url, startingOffsets=10).collect()
    lax = load(spark, url=fake.url, startingOffsets=10, failOnDataLoss="false")
    assert ids(lax) == list(range(50, 101))


def test_a_mistake_is_one_clear_line_at_load(spark: "SparkSession", tmp_path: Path) -> None:
    for options, said in [
        ({"path": "/a", "subscribed": "x"}, "InvalidOption: subscribed: no such option"),
        ({"path": "/a", "url": "http://h"}, "InvalidOption: path and url: give one"),
        ({"url": "http://h", "token": SECRET}, "InvalidOption: subscribe: is required"),
    ]:
        with pytest.raises(Exception, match=said) as caught:
            load(spark, **options)
        assert SECRET not in str(caught.value)
    with pytest.raises(Exception, match=f"ArchiveMissing: no archive at {tmp_path}/none"):
        load(spark, path=f"{tmp_path}/none").collect()


def test_a_secret_is_sent_and_shown_nowhere(
    spark: "SparkSession", fake: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = load(spark, url=fake.url, secret=SECRET).where("id > 3")
    assert len(frame.collect()) == 97
    assert {headers["Authorization"] for _, _, headers in fake.requests} == {f"Bearer {SECRET}"}
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW seen USING mist"
        f" OPTIONS (url '{fake.url}', secret '{SECRET}')"
    )
    made = f"CREATE TEMPORARY VIEW other USING mist OPTIONS (url '{fake.url}', secret '{SECRET}')"
    shown = [
        str(spark.sql("EXPLAIN EXTENDED SELECT * FROM seen").collect()),
        str(spark.sql(f"EXPLAIN EXTENDED {made}").collect()),
        frame._jdf.queryExecution().toString(),
    ]
    spark.catalog.dropTempView("seen")

    fake.faults.append(lambda handler: bool(handler.answer(401, {"code": "unauthorized"})) or True)
    with pytest.raises(Exception, match="answered 401 unauthorized") as caught:
        frame.collect()
    shown += [str(caught.value), repr(caught.value), *capfd.readouterr()]
    assert all(SECRET not in text for text in shown)
    assert "mist" in shown[-2]  # the plans were printed
