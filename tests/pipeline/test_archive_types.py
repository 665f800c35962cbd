"""What the server seals is read by Spark with exactly the types that are written down."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import _parse_datatype_string

from mist.archive import Archive
from mist.archive.schema import DELIVERIES, MESSAGES, SPARK_MESSAGES, SUBSCRIPTIONS, TOKENS
from mist.archive.segments import write_segment
from mist.history import Stored
from mist.wire import TagList
from tests.archive.stored import to_batch

NOON = 1_795_262_400.0  # 2026-11-21 12:00 UTC


def test_spark_reads_the_messages_as_documented(spark, tmp_path: Path) -> None:
    tag_list = TagList(frozenset({"b", "a"}))
    line = tag_list.head + b"1\n"
    stored = [
        Stored([(tag_list, line, 1)], NOON, "tcp", True, "user:7", {"h": b"\xff"}, firsts=[1]),
        Stored([(tag_list, line, 1)], NOON + 0.000001, firsts=[2]),
    ]
    archive = Archive.create(tmp_path)
    write_segment(archive.messages, to_batch(stored), MESSAGES, 1, 2)
    frame = spark.read.parquet(str(tmp_path))
    # Spark adds the column that the folders' names tell, and sees nothing beside them.
    assert frame.columns == [*MESSAGES.names, "date"]
    assert frame.drop("date").schema == _parse_datatype_string(SPARK_MESSAGES)
    first, second = frame.orderBy("id").collect()
    assert (first.id, first.tags, bytes(first.data)) == (1, ["a", "b"], b"1")
    assert (first.publisher, first.audience) == ("tcp", "user:7")
    assert {name: bytes(value) for name, value in first.meta.items()} == {"h": b"\xff"}
    assert (second.publisher, second.audience, second.meta) == ("", None, None)
    assert (second.time - first.time).microseconds == 1


def test_spark_writes_the_types_that_are_sealed(spark, tmp_path: Path) -> None:
    """So that what a job writes in the place of a segment is no other table."""
    frame = spark.createDataFrame([], SPARK_MESSAGES)
    frame.coalesce(1).write.parquet(str(tmp_path / "out"))
    [path] = (tmp_path / "out").glob("*.parquet")
    written = pq.read_schema(path)
    assert written.names == MESSAGES.names
    for field in MESSAGES:
        assert written.field(field.name).type == field.type, field.name


def test_spark_reads_the_tables_beside_them(spark, tmp_path: Path) -> None:
    expected = {
        "deliveries": (
            DELIVERIES,
            "minute timestamp, token string, subscription string, "
            "sent bigint, dropped bigint, bytes bigint",
        ),
        "subscriptions": (
            SUBSCRIPTIONS,
            "minute timestamp, token string, subscription string, opened bigint, closed bigint",
        ),
        "tokens": (TOKENS, "minute timestamp, token string, tags array<string>"),
    }
    archive = Archive.create(tmp_path)
    for name, (schema, ddl) in expected.items():
        table = archive.table(name)
        table.create()
        row = dict.fromkeys(schema.names) | {"minute": 1_795_262_400_000_000}
        write_segment(table, pa.Table.from_pylist([row], schema), schema, 1, 1)
        frame = spark.read.parquet(str(table.folder)).drop("date")
        assert frame.schema == _parse_datatype_string(ddl), name
