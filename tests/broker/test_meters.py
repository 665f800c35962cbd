"""Meters: how often something took how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.broker.meters import Histogram, Meters


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# histograms


@given(st.lists(st.floats(0, 100)))
def test_each_observation_is_in_the_first_bucket_whose_bound_it_keeps(values: list[float]) -> None:
    histogram = Histogram((0.001, 0.1, 10.0))
    for value in values:
        histogram.observe(value)
    for n, bound in enumerate(histogram.bounds):
        assert sum(histogram.counts[: n + 1]) == sum(value <= bound for value in values)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_lag_is_the_most_of_the_last_while() -> None:
    meters = Meters(Clock())
    assert meters.lag == 0.0
    meters.note_lag(0.3)
    meters.note_lag(-0.1)  # a clock that is coarse
    assert meters.lag == 0.3
    for _ in range(4):
        meters.note_lag(0.01)
    assert meters.lag == 0.01
    assert sum(meters.loop_lag.counts) == 6
    assert meters.loop_lag.total == pytest.approx(0.34)
