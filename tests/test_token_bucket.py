"""A token bucket: the average, the burst, and what is owed."""

from hypothesis import given
from hypothesis import strategies as st

from mist.token_bucket import TokenBucket


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5)), max_size=50))
def test_no_more_passes_than_the_burst_and_the_rate_allow(
    arrivals: list[tuple[float, int]],
) -> None:
    bucket = TokenBucket(2.0, 4.0, 0.0, 4.0)
    now = passed = largest = 0.0
    for delay, amount in arrivals:
        now += delay
        largest = max(largest, amount)
        wait = bucket.wait(now, 1.0)
        if not wait:
            bucket.take(amount)
            passed += amount
        else:
            assert bucket.wait(now + wait + 1e-6, 1.0) == 0.0
            now += wait + 1e-6
    assert passed <= 4.0 + 2.0 * now + largest + 1e-6


def test_a_pause_fills_it_up_to_the_burst_and_no_further() -> None:
    bucket = TokenBucket(2.0, 4.0, 0.0, 4.0)
    bucket.take(9.0)
    assert bucket.wait(0.0, 1.0) == 3.0
    assert bucket.wait(1_000.0, 4.0) == 0.0
    assert bucket.wait(1_000.0, 4.5) == 0.25
