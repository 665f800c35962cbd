"""Reconnect backoff: growth, cap and jitter."""

from mist.client import Backoff


def test_backoff_doubles_up_to_its_cap_and_draws_from_zero() -> None:
    backoff = Backoff(base=0.5, cap=3.0)
    assert [backoff.delay(n, lambda: 1.0) for n in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.delay(5, lambda: 0.0) == 0.0
    assert backoff.delay(100_000, lambda: 1.0) == 3.0
