"""Rate limits of HTTP requests: a token bucket per client."""

from collections.abc import Callable
from typing import Final

from mist.http.problems import Problem
from mist.token_bucket import TokenBucket

__all__ = ["MAX_POLL_DELAY", "Rates", "too_often"]

MAX_POLL_DELAY: Final = 10.0
"""Seconds for which a MessageBus poll over a rate limit is delayed before it is refused: its client
stays away for at least 15 seconds after a 429, whatever `Retry-After` says."""

_MOST: Final = 10_000  # clients; above it, the least recently active ones are evicted
_BURST: Final = 2.0  # seconds' worth of requests that may come at once


class Rates:
    """Limits by client: an address or a token. An evicted one starts with a full bucket.

    Args:
        per_second: requests of one client.
        clock: seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self.configure(per_second)

    def configure(self, per_second: float) -> None:
        """Change the limit."""
        self._per_second = per_second
        self._burst = max(per_second * _BURST, 1.0)

    def take(self, client: str, delay: float = 0.0) -> float:
        """Count one request, unless it is refused.

        Args:
            client: whose.
            delay: for how many seconds it may be kept waiting instead of being refused.

        Returns:
            Seconds after which it is allowed. Up to `delay`, 0 by default, it is counted and has
            its place behind those that wait already; above that it is refused.
        """
        now = self._clock()
        bucket = self._buckets.pop(client, None)
        if bucket is None:
            bucket = TokenBucket(self._per_second, self._burst, now, self._burst)
        elif bucket.per_second != self._per_second:
            bucket.per_second, bucket.burst = self._per_second, self._burst
        wait = bucket.wait(now, 1.0)
        self._buckets[client] = bucket  # last, so that the first is the least recently active
        if len(self._buckets) > _MOST:
            del self._buckets[next(iter(self._buckets))]
        if wait <= delay:
            bucket.take(1.0)
        return wait


def too_often(wait: float, detail: str = "too many requests") -> Problem:
    """The answer where the rate limit is exceeded.

    Args:
        wait: seconds after which it may be tried again.
        detail: see `Problem`.
    """
    headers = {"Retry-After": str(int(wait) + 1)}
    return Problem(429, "too_many_requests", detail, headers)
