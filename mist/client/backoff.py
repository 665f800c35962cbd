"""Reconnect backoff: exponential, capped, with full jitter."""

import random
from collections.abc import Callable

import attrs

__all__ = ["Backoff"]


@attrs.frozen
class Backoff:
    """How long to wait before the next attempt to connect.

    A random time between zero and `base`, which doubles with each failure up to `cap`. Full
    jitter keeps clients that lost the same server from coming back at the same moment.

    Attributes:
        base: seconds, the upper bound for the first attempt.
        cap: seconds, the upper bound for any attempt.
    """

    base: float = 0.5
    cap: float = 30.0

    def delay(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after `failures` failures in a row, counted from 1."""
        return draw() * min(self.cap, self.base * 2.0 ** min(failures - 1, 60))
