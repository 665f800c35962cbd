"""The kernels that count: each equals a count by hand, over batches in any form and order."""

from collections import Counter as Counts
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.pipeline.kernels import cooccurrence
from mist.pipeline.kernels.cooccurrence import PairCounts
from mist.pipeline.kernels.coverage import Coverage
from mist.pipeline.kernels.matching import Matcher
from mist.pipeline.kernels.rollup import HOUR, Counter, HourlyCounts
from tests.pipeline.kernels.columns import (
    NUMBERS,
    TAGS,
    TEXTS,
    column,
    messages,
    subscriptions,
    written,
)

KINDS = pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
batches = st.lists(messages, max_size=4)
rows_in_time = st.lists(
    st.tuples(st.integers(0, 4 * HOUR), st.sets(TAGS, max_size=4), st.binary(max_size=5)),
    max_size=30,
)


def counted(found: list[pa.RecordBatch], *names: str) -> dict[tuple[object, ...], int]:
    rows = [row for batch in found for row in batch.to_pylist()]
    keys = [tuple(row[name] for name in names) for row in rows]
    assert len(set(keys)) == len(keys), "each thing is counted in one place"
    return dict(zip(keys, [row["messages"] for row in rows], strict=True))


@given(
    parts=st.lists(st.dictionaries(TAGS, st.integers(0, 9)), max_size=5),
    most=st.integers(0, 10),
)
def test_a_counter_adds_up_whatever_dictionaries_come(
    parts: list[dict[str, int]], most: int
) -> None:
    counter, expected = Counter(), Counts[str]()
    for part in parts:
        counter.add(pa.array(list(part), pa.string()), np.array(list(part.values()), np.int64))
        expected.update({name: n for name, n in part.items() if n})
    names, counts = counter.arrays()
    assert dict(zip(names.to_pylist(), counts.tolist(), strict=True)) == dict(expected)
    ordered = sorted(expected.items(), key=lambda item: (-item[1], item[0]))
    assert counter.top(most) == ordered[:most]


@KINDS
@given(parts=st.lists(rows_in_time, max_size=3), sorted_by_time=st.booleans())
def test_hours_are_added_up_in_any_order(
    kind: pa.DataType,
    parts: list[list[tuple[int, set[str], bytes]]],
    sorted_by_time: bool,
) -> None:
    counts = HourlyCounts(sizes=True)
    expected: Counts[tuple[int, str | None]] = Counts()
    sizes: Counts[tuple[int, str | None]] = Counts()
    for part in parts:
        rows = sorted(part, key=lambda row: row[0]) if sorted_by_time else part
        times = pa.array([time for time, _, _ in rows], pa.timestamp("us", "UTC"))
        data = pa.array([data for _, _, data in rows], pa.binary())
        tags = column([tags for _, tags, _ in rows], kind)
        counts.add(pa.record_batch({"time": times, "tags": tags, "data": data}))
        for time, names, text in rows:
            for name in [*names, None]:
                expected[time // HOUR, name] += 1
                sizes[time // HOUR, name] += len(text)
    found = list(counts.batches())
    assert counted(found, "hour", "tag") == dict(expected)
    assert {
        (row["hour"], row["tag"]): row["bytes"] for batch in found for row in batch.to_pylist()
    } == dict(sizes)


@KINDS
@given(parts=batches, among=st.sets(TAGS, min_size=1))
def test_pairs_are_those_of_the_tags_that_count(
    kind: pa.DataType, parts: list[list[set[str]]], among: set[str]
) -> None:
    pairs = PairCounts(pa.array(list(among)))
    expected: Counts[tuple[str, ...]] = Counts()
    for rows in parts:
        pairs.add(column(rows, kind))
        expected.update(pair for row in rows for pair in combinations(sorted(row & among), 2))
    assert counted(list(pairs.batches()), "tag", "other") == dict(expected)


def test_pairs_are_counted_before_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "_MAX_PENDING", 3)
    pairs = PairCounts(pa.array(["a", "b", "c"]))
    pairs.add(column([{"a", "b", "c"}] * 5 + [{"a", "c"}] * 2))
    assert counted(list(pairs.batches()), "tag", "other") == {
        ("a", "b"): 5,
        ("a", "c"): 7,
        ("b", "c"): 5,
    }


@KINDS
@given(wanted=subscriptions, parts=batches)
def test_coverage_is_that_of_the_plain_definition(
    kind: pa.DataType, wanted: set[frozenset[str]], parts: list[list[set[str]]]
) -> None:
    coverage = Coverage(Matcher(pa.array([written(tags) for tags in wanted])))
    expected: Counts[tuple[str, str]] = Counts()
    known = frozenset[str]().union(*wanted)
    for rows in parts:
        coverage.add(column(rows, kind))
        for row in rows:
            hit = [tags for tags in wanted if tags <= row]
            expected.update(("subscription", written(tags)) for tags in hit)
            expected.update(("tag", tag) for tag in row - known)
            expected["fanout", str(len(hit))] += 1
    assert counted(list(coverage.batches()), "kind", "name") == dict(expected)
