import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from mist.pipeline.kernels.tags import Codes, Rows, Vocabulary, as_sets, without
from tests.pipeline.kernels.columns import NUMBERS, TEXTS, column, messages


def rows_of(codes: Codes) -> list[list[str]]:
    names = codes.names.to_pylist()
    bounds = codes.rows.starts.tolist()
    texts = [names[code] for code in codes.rows.codes]
    return [texts[start:stop] for start, stop in itertools.pairwise(bounds)]


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
@given(rows=messages)
def test_a_column_is_the_same_as_numbers(kind: pa.DataType, rows: list[set[str]]) -> None:
    assert rows_of(Codes.of(column(rows, kind))) == [sorted(row) for row in rows]


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
def test_a_slice_counts_only_its_own_rows(kind: pa.DataType) -> None:
    sliced = column([{"a"}, {"b"}, {"a", "c"}, {"d"}], kind).slice(1, 2)
    codes = Codes.of(sliced)
    assert rows_of(codes) == [["b"], ["a", "c"]]
    counts = dict(zip(codes.names.to_pylist(), codes.counts().tolist(), strict=True))
    assert {name: n for name, n in counts.items() if n} == {"a": 1, "b": 1, "c": 1}


def test_a_null_row_has_no_tags() -> None:
    assert rows_of(Codes.of(pa.array([["a"], None, [], ["b"]], TEXTS))) == [["a"], [], [], ["b"]]


def test_names_that_stand_twice_in_a_dictionary_are_one() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "a", "b"]))
    codes = Codes.of(pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), values))
    assert rows_of(codes) == [["a"], ["a", "b"]]
    assert codes.counts().tolist() == [2, 1]


def test_a_dictionary_comes_out_of_parquet(tmp_path: object) -> None:
    rows = [{"a", "b"}, {"b"}, {"c", "a"}]
    pq.write_table(pa.table({"tags": column(rows)}), f"{tmp_path}/t.parquet")
    table = pq.read_table(f"{tmp_path}/t.parquet", read_dictionary=["tags.list.element"])
    (chunk,) = table.column("tags").chunks
    assert pa.types.is_dictionary(chunk.type.value_type)
    assert rows_of(Codes.of(chunk)) == [sorted(row) for row in rows]


@pytest.mark.parametrize("size", [3, 100], ids=["small", "large"])
def test_a_vocabulary_numbers_texts_in_their_order(size: int) -> None:
    names = pa.array([f"t{n:03}" for n in reversed(range(size))])
    vocabulary = Vocabulary.of(names)
    assert vocabulary.numbers(pa.array(["t002", "nobody's", "t000"])).tolist() == [2, -1, 0]


@given(rows=messages)
def test_tags_outside_a_vocabulary_are_left_out(rows: list[set[str]]) -> None:
    names = ["a", "b", "ä"]
    coded = Vocabulary.of(pa.array(names)).code(Codes.of(column(rows)))
    expected = [[names.index(tag) for tag in sorted(row & set(names))] for row in rows]
    assert [part.tolist() for part in np.split(coded.codes, coded.starts[1:-1])][
        : len(rows)
    ] == expected


def test_rows_become_sets_whatever_their_order() -> None:
    rows = Rows(np.array([2, 1, 2, 0, 5, 3, 3], np.int32), np.array([0, 3, 3, 5, 7]))
    sets = as_sets(rows, 6)
    assert sets.codes.tolist() == [1, 2, 0, 5, 3]
    assert sets.starts.tolist() == [0, 2, 2, 4, 5]


def test_rows_that_are_sets_stay_as_they_are() -> None:
    rows = Rows(np.array([1, 4, 0, 2], np.int32), np.array([0, 2, 2, 4, 4]))
    assert as_sets(rows, 5) is rows
    assert without(rows, rows.codes > 9) is rows


def test_rows_are_taken_in_the_order_asked_for() -> None:
    rows = Rows(np.array([1, 4, 0, 2, 3], np.int32), np.array([0, 2, 2, 5]))
    taken = rows.take(np.array([2, 1, 0, 2]))
    assert taken.codes.tolist() == [0, 2, 3, 1, 4, 0, 2, 3]
    assert taken.starts.tolist() == [0, 3, 3, 5, 8]
