"""Matching equals the plain definition, and the live index."""

import random
from collections import Counter
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.index import Index
from mist.pipeline.kernels import matching
from mist.pipeline.kernels.matching import Matcher
from tests.pipeline.kernels.columns import (
    NUMBERS,
    TEXTS,
    column,
    messages,
    subscriptions,
    written,
)

TagSets = set[frozenset[str]]


def matcher_of(wanted: TagSets, **options: object) -> Matcher:
    return Matcher(pa.array([written(tags) for tags in wanted]), **options)  # type: ignore[arg-type]


def found_by(matcher: Matcher, tags: pa.Array) -> list[tuple[int, str]]:
    names = matcher.subscriptions.to_pylist()
    return sorted(
        (int(row), names[number])
        for rows, numbers in matcher.pairs(tags)
        for row, number in zip(rows, numbers, strict=True)
    )


def expected_of(wanted: TagSets, rows: list[set[str]]) -> list[tuple[int, str]]:
    return sorted(
        (n, written(tags)) for n, row in enumerate(rows) for tags in wanted if tags <= row
    )


def check(matcher: Matcher, tags: pa.Array, expected: list[tuple[int, str]]) -> None:
    assert found_by(matcher, tags) == expected
    tally = matcher.tally(tags, fanout=True)
    counts = dict(zip(matcher.subscriptions.to_pylist(), tally.messages.tolist(), strict=True))
    assert {name: n for name, n in counts.items() if n} == Counter(name for _, name in expected)
    fanout = Counter(row for row, _ in expected)
    assert tally.fanout.tolist() == [fanout[n] for n in range(len(tags))]
    assert matcher.tally(tags).messages.tolist() == tally.messages.tolist()


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
@given(wanted=subscriptions, rows=messages)
def test_it_finds_exactly_the_subsets(
    kind: pa.DataType, wanted: TagSets, rows: list[set[str]]
) -> None:
    check(matcher_of(wanted), column(rows, kind), expected_of(wanted, rows))


@given(wanted=subscriptions, rows=messages)
def test_it_finds_what_the_live_index_finds(wanted: TagSets, rows: list[set[str]]) -> None:
    index: Index[str] = Index()
    for tags in wanted:
        index.add(tags, written(tags))
    expected = sorted(
        (n, name) for n, row in enumerate(rows) for name in index.match(frozenset(row))
    )
    assert found_by(matcher_of(wanted), column(rows)) == expected


@given(
    wanted=subscriptions,
    rows=messages,
    seen=st.dictionaries(st.sampled_from("abcdexy"), st.integers(1, 100)),
)
def test_what_was_seen_changes_no_answer(
    wanted: TagSets, rows: list[set[str]], seen: dict[str, int]
) -> None:
    sample = (pa.array(list(seen), pa.string()), np.array(list(seen.values()), np.int64))
    check(matcher_of(wanted, seen=sample), column(rows), expected_of(wanted, rows))


@given(
    wanted=subscriptions,
    kinds=st.lists(messages.map(tuple), min_size=1, max_size=3),
    data=st.data(),
)
def test_rows_that_repeat_each_other_count_each(
    wanted: TagSets, kinds: list[tuple[set[str], ...]], data: st.DataObject
) -> None:
    rows = [row for rows in kinds for row in rows] * 5
    rows = data.draw(st.permutations(rows))
    check(matcher_of(wanted), column(rows), expected_of(wanted, rows))


@given(
    wanted=subscriptions, rows=st.lists(st.lists(st.sampled_from("abcde"), max_size=8), max_size=20)
)
def test_tags_in_any_order_and_repeated_are_a_set(wanted: TagSets, rows: list[list[str]]) -> None:
    check(matcher_of(wanted), column(rows), expected_of(wanted, [set(row) for row in rows]))


def test_collisions_of_hashes_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_MAX_BITS", 1)  # so that two buckets hold everything
    monkeypatch.setattr(matching, "_TILE", 16)
    monkeypatch.setattr(matching, "_EXPANDED", 4)
    tags = [f"t{n}" for n in range(12)]
    wanted = {frozenset(some) for size in (1, 2, 3, 5) for some in combinations(tags, size)}
    rng = random.Random(1)
    rows = [set(rng.sample(tags, rng.randrange(11))) for _ in range(60)]
    check(matcher_of(wanted), column(rows), expected_of(wanted, rows))


def test_all_bits_alike_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = matcher_of({frozenset("ab"), frozenset("bc"), frozenset("acd")})
    matcher._pairs._hashes[:] = 0  # each pair's bits are those of any other
    matcher._pairs._bits[:] = 0
    matcher._pairs._buckets[1:] = len(matcher._pairs._bits)
    matcher._pairs._filled[0] = True
    rows = [{"a", "b", "d"}, {"b", "c"}, {"a", "d"}, {"a", "b", "c", "d"}]
    expected = [(0, "a,b"), (1, "b,c"), (3, "a,b"), (3, "a,c,d"), (3, "b,c")]
    assert found_by(matcher, column(rows)) == expected


def test_the_widest_messages_and_subscriptions_are_matched() -> None:
    tags = [f"t{n:02}" for n in range(70)]
    wanted = {frozenset(tags[n : n + 16]) for n in range(50)} | {frozenset(tags[:2])}
    rows = [set(tags[:64]), set(tags[5:69]), set(tags[:15]), set()]
    check(matcher_of(wanted), column(rows), expected_of(wanted, rows))


def test_thousands_under_one_pair_are_found() -> None:
    wanted = {frozenset(["a", "b", f"x{n}"]) for n in range(3000)}
    rows = [{"a", "b", "x7", "x2999"}, {"a", "x1"}, {"b", "a"}]
    matcher = matcher_of(wanted, seen=(pa.array([f"x{n}" for n in range(3000)]), np.full(3000, 9)))
    check(matcher, column(rows), [(0, "a,b,x2999"), (0, "a,b,x7")])


@pytest.mark.parametrize("rows", [[], [set()], [{"x"}]], ids=["none", "no tags", "unknown tags"])
def test_nothing_is_found_where_there_is_nothing(rows: list[set[str]]) -> None:
    check(matcher_of({frozenset("a"), frozenset("ab")}), column(rows), [])


@pytest.mark.parametrize("wanted", [{frozenset("a")}, {frozenset("ab")}], ids=["one tag", "two"])
def test_subscriptions_of_one_length_need_no_others(wanted: TagSets) -> None:
    rows = [{"a"}, {"a", "b"}, {"b"}]
    check(matcher_of(wanted), column(rows), expected_of(wanted, rows))
