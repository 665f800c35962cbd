"""How often somebody may ask: token buckets, as many as there are askers, and no more."""

from collections.abc import Callable
from typing import Final

import attrs

__all__ = ["Rates"]

_MOST: Final = 10_000  # askers remembered; beyond that those that asked longest ago are forgotten
_BURST: Final = 2.0  # seconds' worth that may come at once


@attrs.define
class _Bucket:
    left: float
    at: float


class Rates:
    """Limits by asker. A forgotten asker begins anew, with a full bucket.

    Args:
        per_second: requests of one asker.
        clock: seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = max(per_second * _BURST, 1.0)
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, asker: str) -> float:
        """Count one request.

        Returns:
            0 where it may be; else the seconds after which it may.
        """
        now = self._clock()
        bucket = self._buckets.pop(asker, None) or _Bucket(self._burst, now)
        bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._per_second)
        bucket.at = now
        self._buckets[asker] = bucket  # last, so that the first is who asked longest ago
        if len(self._buckets) > _MOST:
            del self._buckets[next(iter(self._buckets))]
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / self._per_second
        bucket.left -= 1.0
        return 0.0
