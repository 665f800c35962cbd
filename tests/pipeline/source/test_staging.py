import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

from mist.pipeline.source.errors import UnfitRows
from mist.pipeline.source.schema import messages_schema
from mist.pipeline.source.staging import check_columns, parts

KINDS: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "binary": BinaryType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
}


def struct(**columns: str) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, KINDS[kind])
    return schema


@given(
    lengths=st.lists(st.integers(0, 5000), max_size=200),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    most=st.integers(6000, 20_000),
)
def test_parts_hold_all_rows_in_order_and_are_not_too_large(
    lengths: list[int], cuts: list[int], most: int
) -> None:
    data = [b"%d:" % n + b"x" * length for n, length in enumerate(lengths)]
    whole = pa.record_batch({"data": data, "tags": [["a"]] * len(data), "id": range(len(data))})
    batches, at = [], 0
    while at < len(data):
        size = cuts[len(batches) % len(cuts)]
        batches.append(whole.slice(at, size))
        at += size
    found = list(parts(batches, ("tags", "data"), most))
    tables = [pa.ipc.open_stream(part).read_all() for part in found]
    assert [value for table in tables for value in table.column("data").to_pylist()] == data
    assert all(table.column_names == ["tags", "data"] for table in tables)
    assert all(
        len(part) <= most or len(table) == 1 for part, table in zip(found, tables, strict=True)
    )
    # Filled: two that follow each other don't fit into one.
    assert all(len(a) + len(b) > most - 4096 for a, b in itertools.pairwise(found))


def test_no_rows_make_no_part() -> None:
    empty = pa.record_batch(
        {"tags": pa.array([], pa.list_(pa.string())), "data": pa.array([], pa.binary())}
    )
    assert list(parts([], ("tags", "data"))) == []
    assert list(parts([empty], ("tags", "data"))) == []


def test_what_was_read_can_be_written() -> None:
    assert check_columns(messages_schema()) == ("tags", "data", "audience", "meta")


def test_text_is_written_as_bytes() -> None:
    schema = struct(data="string", tags="array<string>")
    assert check_columns(schema) == ("tags", "data")
    batch = pa.record_batch({"data": ["ä"], "tags": [["b", "a"]]})
    [part] = parts([batch], check_columns(schema))
    table = pa.ipc.open_stream(part).read_all()
    assert table.to_pylist() == [{"tags": ["b", "a"], "data": "ä".encode()}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"data": "binary"}, "no column tags"),
        ({"tags": "array<string>"}, "no column data"),
        ({"tags": "string", "data": "binary"}, "column tags is array<string>, not string"),
        ({"tags": "array<string>", "data": "int"}, "column data is binary or string, not int"),
        (
            {"tags": "array<string>", "data": "binary", "meta": "map<string,string>"},
            "column meta is map<string,binary>",
        ),
        (
            {"tags": "array<string>", "data": "binary", "Audience": "string"},
            "column Audience is no part of a message",
        ),
    ],
)
def test_unfit_columns_are_named(columns: dict[str, str], said: str) -> None:
    with pytest.raises(UnfitRows, match=said):
        check_columns(struct(**columns))
