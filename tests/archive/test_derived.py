"""Numbers for tags and for all that is derived from them."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.addresses import derived, is_derived
from mist.archive.derived import Derived, find_derived, grouped
from tests.addressed import SUBJECTS, TOPICS


def found(names: list[str | None], wanted: list[str]) -> Derived | None:
    number = {tag: n for n, tag in enumerate(wanted)}
    own = np.array([-1 if name is None else number.get(name, -1) for name in names], np.int64)
    texts = pa.array(names, pa.string())
    return find_derived(
        texts, own, lambda tags: np.array([number.get(tag, -1) for tag in tags], np.int64)
    )


@given(
    names=st.lists(TOPICS | SUBJECTS | st.sampled_from(["a", "b"]) | st.none(), unique=True),
    chosen=st.randoms(use_true_random=False),
)
def test_each_name_has_its_own_number_and_those_of_what_is_derived(
    names: list[str | None], chosen: random.Random
) -> None:
    known = {tag for name in names if name for tag in (name, *derived(name))}
    wanted = sorted(tag for tag in known if chosen.random() < 0.5)
    result = found(names, wanted)
    meant = [
        sorted(n for n, tag in enumerate(wanted) if name and tag in (name, *derived(name)))
        for name in names
    ]
    if result is None:
        assert not any(is_derived(tag) for tag in wanted)
        return
    for name, numbers in enumerate(meant):
        assert result.spread(np.array([name]))[0].tolist() == numbers
    codes = np.array([*range(len(names)), 0])
    numbers, counts = result.spread(codes)
    assert counts.tolist() == [len(meant[code]) for code in codes]
    assert numbers.tolist() == [number for code in codes for number in meant[code]]


@pytest.mark.parametrize("names", [[], ["a", "b"], [None], ["/a"]])
def test_where_nothing_derived_is_wanted_there_is_nothing(names: list[str | None]) -> None:
    assert found(names, ["/a", "../b", "a"]) is None


def test_names_without_a_number_are_there_with_none() -> None:
    some = grouped(np.array([2, 0, 2]), np.array([5, 1, 4]), 4)
    assert some.counts.tolist() == [1, 0, 2, 0]
    assert some.spread(np.array([3, 2, 1, 0]))[0].tolist() == [4, 5, 1]
