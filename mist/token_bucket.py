"""A token bucket: so many a second on average, and some at once after a pause. By any clock."""

import math

import attrs

__all__ = ["TokenBucket"]


@attrs.define
class TokenBucket:
    """See the module.

    Attributes:
        per_second: by which it fills.
        burst: how much it holds.
        at: when `left` was so.
        left: what may be taken. Less than 0 where what was taken at once was more.
    """

    per_second: float
    burst: float
    at: float
    left: float = math.inf

    def wait(self, now: float, least: float) -> float:
        """Seconds until there is `least` in it, which is not more than `burst`. 0 where there is.

        Args:
            now: in seconds; never goes back.
        """
        self.left = min(self.burst, self.left + (now - self.at) * self.per_second)
        self.at = now
        return max(0.0, (least - self.left) / self.per_second)

    def take(self, amount: float) -> None:
        """Take from it, after a `wait`. What isn't there is owed."""
        self.left -= amount
