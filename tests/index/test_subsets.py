"""Subset lookup finds what the definition says, whatever the groups are."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from mist.index.shards import MASK, make_table
from mist.index.subsets import Subsets

keys = st.frozensets(st.sampled_from("abcdefgh"), min_size=1).map(lambda tags: tuple(sorted(tags)))
names = st.frozensets(st.sampled_from("abcdefghxy")).map(sorted)


def filled(*lengths: int) -> Subsets[int]:
    subsets = Subsets[int](make_table())
    for length in lengths:
        subsets.count(length)
    return subsets


@given(st.sets(keys), st.sets(keys), names)
def test_the_entries_among_all_subsets_are_found(
    kept: set[tuple[str, ...]], gone: set[tuple[str, ...]], message: list[str]
) -> None:
    table = make_table()
    subsets = Subsets[tuple[str, ...]](table)
    for key in (*kept, *gone):
        subsets.count(len(key))
    for key in kept:
        table[hash(key) & MASK][key] = key
    for key in gone:
        subsets.discount(len(key))
    wanted = [key for key in kept if set(key) <= set(message)]
    assert sorted(subsets.match(message)) == sorted(wanted)


def test_a_group_may_be_none_or_false() -> None:
    table = make_table()
    subsets = Subsets[int | None](table)
    for key, group in (("a",), None), (("b",), 0), (("c",), 1):
        table[hash(key) & MASK][key] = group
        subsets.count(1)
    assert subsets.match(["a", "b"]) == [None, 0]


@given(st.lists(st.integers(1, 8)), st.integers(0, 9), st.integers(0, 600))
def test_subsets_are_counted_by_the_lengths_there_are(
    lengths: list[int], tags: int, limit: int
) -> None:
    there = sum(len(list(combinations(range(tags), length))) for length in set(lengths))
    # With no entry at all there is nothing to look up, and no chunk to be spared either.
    assert filled(*lengths).are_fewer(tags, limit) == (there < limit or not lengths)


def test_a_length_nobody_has_any_more_does_not_count() -> None:
    subsets = filled(2, 2, 5)
    assert not subsets.are_fewer(10, 100)
    subsets.discount(5)
    assert subsets.are_fewer(10, 100)
    subsets.discount(2)
    assert not subsets.are_fewer(10, 45)
    subsets.discount(2)
    assert subsets.are_fewer(10, 1)
