"""Messages of few tags match the same compiled and in Python."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.index import Index, Thresholds
from mist.index.intern import Tags
from mist.index.narrow import match_each_in_python
from mist.index.pair_filter import PairFilter
from mist.index.shards import MASK, make_table
from tests.index.test_index import NEVER, SMALL, TINY, come_or_go, projection

NONE: PairFilter = PairFilter(make_table(), make_table(), few=1)

compiled = pytest.importorskip("mist.index._narrow", exc_type=ImportError)

tag_sets = st.frozensets(st.sampled_from("abcdefgh"), min_size=1, max_size=8)
messages = st.lists(st.frozensets(st.sampled_from("abcdefghxyÄ")).map(projection), max_size=12)


def both(
    index: Index[Any], projections: list[str], most: int, widest: int = 100
) -> list[list[Any]]:
    """What both find, in whatever order; where they disagree, no list.

    Compiled code may do more in as many steps, where the filter rules out much.
    """
    tree = index._tree
    given = (tree._tags, tree._groups, tree._filter, tree._go_through, projections)
    expected = list(map(sorted, match_each_in_python(*given, most, widest)))
    found = list(map(sorted, compiled.match_each(*given, most, widest)))
    assert found[: len(expected)] == expected
    if len(found) > len(expected):
        assert tree._filter.words is not None
        every = map(sorted, match_each_in_python(*given, 1_000_000, widest))
        assert found == list(every)[: len(found)]
    return expected


@given(
    st.lists(tag_sets, unique=True, max_size=150),
    messages,
    st.sampled_from([TINY, SMALL, Thresholds(), Thresholds(lookup=NEVER)]),
    st.integers(-1, 40),
    st.integers(0, 10),
)
@settings(max_examples=1_000)
def test_the_same_is_found_in_the_same_steps(
    entries: list[frozenset[str]],
    projections: list[str],
    thresholds: Thresholds,
    most: int,
    widest: int,
) -> None:
    index: Index[int] = Index(thresholds)
    for n, tags in enumerate(entries):
        index.add(tags, n)
    both(index, projections, most, widest)


def test_the_same_is_found_while_entries_come_and_go() -> None:
    rng = random.Random(5)
    words = [f"w{n}" for n in range(30)]
    for thresholds in (TINY, SMALL, Thresholds()):
        index: Index[int] = Index(thresholds)
        there: set[frozenset[str]] = set()
        found = 0
        for n in range(4_000):
            tags = frozenset(rng.sample(words, rng.randint(1, 4)))
            come_or_go(index, there, tags, n)
            if n % 10 == 0:
                asked = [projection(rng.sample(words, rng.randint(0, 6))) for _ in range(5)]
                found += sum(map(len, both(index, asked, 100)))
        assert found > 1_000
        for tags in there:
            index.remove(tags)
        assert both(index, [projection(words)], 1) == [[]]


@pytest.mark.parametrize("odd", ["", ",", ",,", ",,,", "a", "a,b", ",a", "\x00", ",\ud800,"])
def test_what_is_no_projection_matches_nothing_else(odd: str) -> None:
    index: Index[int] = Index()
    index.add(frozenset(["a", "b", "c"]), 1)
    assert both(index, [odd, odd], 10) == [[], []]


def test_wrong_arguments_are_errors() -> None:
    tags: Tags[int] = Tags()
    for projections in ([None], [b",a,"], [1], None, 7):
        with pytest.raises(TypeError):
            compiled.match_each(tags, [{}], NONE, list, projections, 10, 10)
    with pytest.raises(TypeError):
        compiled.match_each(tags, None, NONE, list, [","], 10, 10)


def test_a_tag_that_leads_to_no_entry_is_an_error() -> None:
    index: Index[int] = Index()
    index.add(frozenset("a"), 1)
    with pytest.raises(KeyError):
        compiled.match_each(index._tree._tags, [{}], NONE, list, [",a,"], 10, 10)


def test_what_the_filter_rules_out_is_found_in_fewer_steps() -> None:
    index: Index[int] = Index(Thresholds(filtered=1))
    for n in range(2_000):
        index.add(frozenset([f"a{n}", f"b{n}"]), n)
    index.add(frozenset(["a7"]), -1)
    tree = index._tree
    asked = [f",a{n},b{n + 1},c," for n in range(1_000)]
    given = (tree._tags, tree._groups, tree._filter, tree._go_through, asked)
    found = compiled.match_each(*given, 300, 3)
    assert len(found) > 600
    assert found[7] == (-1,)
    assert sum(map(len, found)) == 1
    assert len(match_each_in_python(*given, 300, 3)) <= 300


def test_what_is_entered_is_where_the_reference_looks() -> None:
    """By one tag or two, whichever of them is given first; and by the two rarest of several."""
    tags: Tags[int] = Tags()
    names = [f"tag-{n}" for n in range(200)]
    keys = [(names[n], names[n + 1], "usual") for n in range(0, 100, 2)]
    for key in keys:
        tags.acquire([*key])
    entries: Any = make_table()
    for key in keys:
        entries[hash(key) & MASK][key] = 1
    pair_filter = PairFilter(tags.table, entries, few=1)
    for empty in (True, False):
        pair_filter.words = memoryview(bytearray(8 * 1_000)).cast("Q")
        assert not pair_filter.may_have("tag-2", "tag-3")
        if empty:
            compiled.enter(pair_filter.words, "tag-2", "tag-3")
            compiled.enter(pair_filter.words, "tag-9", "tag-9")
            assert pair_filter.may_have("tag-9", "tag-9")
            assert sum(word.bit_count() for word in pair_filter.words) <= 4
        else:
            gone = ("tag-98", "tag-99", "usual"), ("never",)
            del entries[hash(gone[0]) & MASK][gone[0]]
            compiled.enter_all(pair_filter.words, tags.table, entries, [*keys, gone[1]])
            assert not pair_filter.may_have("tag-2", "usual")
            assert not pair_filter.may_have("tag-98", "tag-99")
            assert pair_filter.may_have("tag-96", "tag-97")
        assert pair_filter.may_have("tag-2", "tag-3")
        assert pair_filter.may_have("tag-3", "tag-2")
