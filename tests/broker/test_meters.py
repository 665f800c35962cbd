"""Sampled meters: right on average, and cheap."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.broker.meters import Histogram, Meters, TagRates


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
    for _ in range(10):
        meters.note_lag(0.01)
    assert meters.lag == 0.01
    assert sum(meters.loop_lag.counts) == 12
    assert meters.loop_lag.total == pytest.approx(0.4)


# rates of tags


def feed(rates: TagRates, clock: Clock, stream, per_second: float, seconds: float) -> int:
    """Publish one by one what `stream` gives; how many samples were taken."""
    published, due, samples = getattr(rates, "fed", (0, 1))[0], 0, 0
    due = getattr(rates, "due", 1)
    for _ in range(int(per_second * seconds)):
        clock.now += 1 / per_second
        published += 1
        tag_list = stream()
        if published >= due:
            due = published + rates.sample(tag_list, published)
            samples += 1
    rates.fed, rates.due = (published, due), due
    return samples


class Rates(TagRates):
    """With room for what `feed` remembers."""


@pytest.mark.parametrize("per_second", [5, 50, 1_000, 20_000])
def test_rates_are_about_right_at_any_speed(per_second: int) -> None:
    clock, chance = Clock(), random.Random(3)
    rates = Rates(clock, chance=random.Random(5))
    seconds = 60 if per_second <= 1_000 else 12

    def stream() -> bytes:
        return chance.choices([b"a", b"a,b", b"c,d,e"], [6, 3, 1])[0]

    samples = feed(rates, clock, stream, per_second, seconds)
    found = dict(rates.top(10))
    assert found["a"] == pytest.approx(0.9 * per_second, rel=0.35)
    assert found["b"] == pytest.approx(0.3 * per_second, rel=0.5)
    assert [tag for tag, _ in rates.top(2)] == ["a", "b"]
    assert samples <= 150 * seconds + 100


def test_what_comes_in_turns_is_not_mistaken_for_one_of_them() -> None:
    clock = Clock()
    rates = Rates(clock, chance=random.Random(1))
    turn = iter(range(1 << 30))
    feed(rates, clock, lambda: b"t%d" % (next(turn) % 4), 20_000, 20)
    found = dict(rates.top(10))
    for n in range(4):
        assert found[f"t{n}"] == pytest.approx(5_000, rel=0.35)


def test_rates_fade_when_nothing_comes_any_more() -> None:
    clock = Clock()
    rates = Rates(clock)
    feed(rates, clock, lambda: b"a", 100, 30)
    clock.now += 120
    assert rates.top(10) == []


def test_a_frequent_tag_is_found_among_tags_that_never_come_back() -> None:
    clock = Clock()
    rates = Rates(clock, chance=random.Random(1))
    numbers = iter(range(1 << 30))
    feed(rates, clock, lambda: b"often,r%d" % next(numbers), 1_000, 60)
    assert rates.top(1)[0][0] == "often"
    assert len(rates._weights) <= 256


def test_a_burst_is_not_looked_at_message_by_message() -> None:
    clock = Clock()
    rates = Rates(clock)
    feed(rates, clock, lambda: b"a", 2, 60)
    assert feed(rates, clock, lambda: b"a", 1_000_000, 0.2) < 60


def test_a_clock_that_stands_still_does_no_harm() -> None:
    rates = Rates(Clock())
    gap = 1
    published = 0
    for _ in range(200):
        published += gap
        gap = rates.sample(b"a", published)
        assert gap >= 1
    assert rates.top(1)[0][0] == "a"


def test_numbers_stay_small_over_years() -> None:
    clock = Clock()
    rates = Rates(clock)
    for n in range(1, 200):
        clock.now += 86_400.0 * (n % 5) + 1
        rates.sample(b"a" if n % 2 else b"b", n)
        assert all(weight < 1e15 for weight in rates._weights.values())


@pytest.mark.parametrize("tag_list", [b"", b",", b"a b", b"\xff", b"a*", b"x" * 300])
def test_tag_lists_that_break_the_rules_are_passed_over(tag_list: bytes) -> None:
    rates = Rates(Clock())
    assert rates.sample(tag_list, 1) >= 1
    assert rates.top(10) == []
