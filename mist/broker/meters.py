"""Meters: latency histograms of a server, from samples.

Plain counts stand where things happen, as numbers. Here is what takes a clock: how long something
took (`Histogram`). It is measured for samples, never for each message, so that its cost doesn't
grow with the traffic.

No clock is read here but the one that is given.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

__all__ = ["Histogram", "Meters"]

_MICROSECONDS: Final = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6)
_MILLISECONDS: Final = (1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3)
_SECONDS: Final = (1.0, 2.5, 5.0, 10.0)


class Histogram:
    """How often something took how long. Unlike quantiles, histograms of servers can be added.

    Args:
        bounds: upper bounds of the buckets, seconds, ascending; one without a bound follows.
        clock: seconds, never 0.
        every: how many times `begin` is called for one that is measured.

    Attributes:
        counts: observations by bucket, not added up.
        total: seconds of all of them.
    """

    __slots__ = ("_clock", "_every", "_turn", "bounds", "counts", "total")

    def __init__(
        self, bounds: Sequence[float], clock: Callable[[], float] = float, every: int = 1
    ) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self._clock = clock
        self._every = every
        self._turn = 1

    def begin(self) -> float:
        """What to give to `end`; 0 where this is none of those to be measured."""
        self._turn -= 1
        if self._turn:
            return 0.0
        self._turn = self._every
        return self._clock()

    def end(self, began: float) -> None:
        """Count what began then and ends now."""
        self.observe(self._clock() - began)

    def observe(self, seconds: float) -> None:
        """Count one observation. O(log buckets)."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class Meters:
    """What one server measures.

    Args:
        clock: seconds, from any beginning.

    Attributes:
        publish_to_write: from a message's arrival to the end of the flush that wrote it for
            those of its subscribers who take it at once. Of one in sixteen chunks that came; with
            a history of the first message of each group that was stored together.
        match: the index's answer for a tag list that was not known; each eighth.
        commit: until a group of messages is in the history.
        append: until a group of messages is in the log of the engine, where there is one.
        loop_lag: how much later than due something is done.
        lag: the most of the last second.
    """

    _RECENT: Final = 4  # of `loop_lag`, for `lag`

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.publish_to_write = Histogram((*_MICROSECONDS, *_MILLISECONDS, *_SECONDS), clock)
        self.match = Histogram((1e-6, 2.5e-6, 5e-6, *_MICROSECONDS, *_MILLISECONDS[:5]), clock, 8)
        self.commit = Histogram((*_MICROSECONDS[3:], *_MILLISECONDS, *_SECONDS), clock)
        self.append = Histogram((*_MICROSECONDS[3:], *_MILLISECONDS, *_SECONDS), clock)
        self.loop_lag = Histogram((*_MICROSECONDS[3:], *_MILLISECONDS, *_SECONDS))
        self._recent: list[float] = []
        self._longest = 0.0  # of `loop_lag`, since it was taken

    @property
    def lag(self) -> float:
        """See the class; seconds."""
        return max(self._recent, default=0.0)

    def note_lag(self, seconds: float) -> None:
        """Something was done so much later than due."""
        seconds = max(seconds, 0.0)
        self.loop_lag.observe(seconds)
        self._longest = max(self._longest, seconds)
        self._recent = [*self._recent[1 - self._RECENT :], seconds]

    def take_longest_lag(self) -> float:
        """The most that something was late since the last call; seconds."""
        longest, self._longest = self._longest, 0.0
        return longest

    def latencies(self) -> Iterable[tuple[str, Histogram]]:
        """Those of what messages have to wait for, by name."""
        yield "publish_to_write", self.publish_to_write
        yield "commit", self.commit
        yield "append", self.append

    def histograms(self) -> Iterable[tuple[str, Histogram]]:
        """All of them, by name."""
        yield from self.latencies()
        yield "match", self.match
        yield "loop_lag", self.loop_lag
