"""Columns: what was packed is unpacked, in as few bytes as the largest value allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.history.columns import is_one, is_zero, pack, unpack

_WIDTHS = {"0": 0, "B": 1, "H": 2, "I": 4, "Q": 8}


@given(
    st.sampled_from([1, 2, 255, 256, 70_000, 1 << 40]).flatmap(
        lambda most: st.lists(st.integers(0, most))
    )
)
def test_values_come_back_in_the_narrowest_column(values: list[int]) -> None:
    code, raw = pack(values)
    assert list(unpack(code, raw, len(values))) == values
    assert len(raw) == len(values) * _WIDTHS[code]
    largest = max(values, default=0)
    assert largest < 1 << 8 * _WIDTHS[code] or not largest
    assert not largest or largest >= 1 << 4 * _WIDTHS[code] or code == "B"
    column = unpack(code, raw, len(values))
    assert is_zero(column) == (not any(values))
    assert is_one(column) == (bool(values) and set(values) == {1}) or not values


@pytest.mark.parametrize("values", [range(300), range(3), [True, False], b"\1\0", (1, 2)])
def test_any_sequence_is_packed(values: list[int]) -> None:
    code, raw = pack(values)
    assert list(unpack(code, raw, len(values))) == list(values)


@pytest.mark.parametrize("values", [[-1], [1 << 64], [0, -1, 300]])
def test_what_no_column_holds_is_refused(values: list[int]) -> None:
    with pytest.raises((OverflowError, StopIteration)):
        pack(values)
