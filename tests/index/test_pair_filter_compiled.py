"""The filter of pairs: it rules out no entry that is there, and nearly all pairs that aren't."""

from collections.abc import Iterable
from itertools import combinations_with_replacement
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.index import Index, Thresholds, pair_filter
from mist.index.pair_filter import PairFilter
from tests.index.test_index import come_or_go

compiled = pytest.importorskip("mist.index._narrow", exc_type=ImportError)

tag_sets = st.frozensets(st.sampled_from("abcdefghij"), min_size=1, max_size=4)


def filter_of(index: Index[Any]) -> PairFilter:
    return index._tree._filter


def may_match(there: PairFilter, tags: Iterable[str]) -> bool:
    """Whether any entry may be among these tags."""
    return any(
        there.may_have(one, other) for one, other in combinations_with_replacement(sorted(tags), 2)
    )


def pairs(count: int, start: int = 0) -> list[frozenset[str]]:
    return [frozenset([f"a{n}", f"b{n}"]) for n in range(start, start + count)]


@given(st.lists(tag_sets, max_size=60), st.integers(1, 20))
@settings(max_examples=300)
def test_what_is_there_is_never_ruled_out(changes: list[frozenset[str]], few: int) -> None:
    """Whatever comes and goes, and while the next table is being made."""
    index: Index[int] = Index(Thresholds(filtered=few))
    there: set[frozenset[str]] = set()
    for n, tags in enumerate(changes):
        come_or_go(index, there, tags, n)
        assert all(may_match(filter_of(index), tags) for tags in there)


def test_an_entry_of_three_tags_is_told_by_its_two_rarest() -> None:
    index: Index[int] = Index(Thresholds(filtered=1))
    for n in range(500):
        index.add(frozenset(["common", "usual", f"rare{n}"]), n)
        index.add(frozenset(["usual", f"other{n}"]), n)
    assert filter_of(index).may_have("rare300", "common")
    assert not filter_of(index).may_have("common", "usual")


def test_an_entry_of_one_tag_is_told_by_it() -> None:
    index: Index[int] = Index(Thresholds(filtered=1))
    for tags in pairs(100):
        index.add(tags, 0)
    index.add(frozenset(["alone"]), 1)
    assert filter_of(index).may_have("alone", "alone")
    assert not filter_of(index).may_have("a1", "a1")


def test_where_there_are_few_entries_there_is_no_filter() -> None:
    index: Index[int] = Index(Thresholds(filtered=100))
    for tags in pairs(99):
        index.add(tags, 0)
    assert filter_of(index).words is None
    assert filter_of(index).may_have("any", "pair")
    for tags in pairs(10, start=99):
        index.add(tags, 0)
    assert filter_of(index).words is not None
    for tags in pairs(109):
        index.remove(tags)
    assert filter_of(index).words is None


@pytest.mark.parametrize("churn", [False, True])
def test_few_pairs_are_there_by_chance(churn: bool) -> None:
    index: Index[int] = Index(Thresholds(filtered=1_000))
    there = pairs(20_000)
    for tags in there:
        index.add(tags, 0)
    if churn:  # five times as many as there are
        for n in range(5):
            for tags in there:
                index.remove(tags)
                index.add(frozenset(f"{tag}-{n}" for tag in tags), 0)
            there = [frozenset(f"{tag}-{n}" for tag in tags) for tags in there]
    words = filter_of(index).words
    assert words is not None
    assert 20_000 / 4 <= len(words) <= 20_001  # 2 to 8 bytes for each entry
    rng = Random(1)
    names = sorted({tag for tags in there for tag in tags})
    wrong = sum(
        filter_of(index).may_have(*rng.sample(names, 2)) for _ in range(5_000)
    )  # one in two thousand of these is really there
    assert wrong < 5_000 / 25


def test_the_next_table_is_made_some_entries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    enter_all = compiled.enter_all

    def noted(words: Any, tags: Any, entries: Any, keys: list[Any]) -> None:
        taken.append(len(keys))
        enter_all(words, tags, entries, keys)

    monkeypatch.setattr(pair_filter, "enter_all", noted)
    index: Index[int] = Index(Thresholds(filtered=1_000))
    for tags in pairs(20_000):
        index.add(tags, 0)
    assert max(taken) == 64
    assert 4_000 < sum(taken) < 30_000  # each time that there are four times as many
