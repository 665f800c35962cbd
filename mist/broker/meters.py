"""Meters: latency histograms and tag rates of a server, from samples.

Plain counts stand where things happen, as numbers. Here is what takes a clock or a table: how long
something took (`Histogram`), and which tags messages carry (`TagRates`). Both look at samples,
never at each message, so that their cost doesn't grow with the traffic.

No clock is read here but the one that is given.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mist.errors import CommandError
from mist.message import parse_tag_list
from mist.wire import Batch

__all__ = ["Histogram", "Meters", "TagRates", "TagSampler"]

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


class TagRates:
    """How often messages carry which tag, in messages a second over the last while.

    Every so often one message is looked at, a hundred times a second at most, and one of its
    tags taken, chosen by chance. It stands for all messages since the last that was looked at,
    and for as many tags as it has; so what is told is right on average however the messages
    come, and what it costs depends neither on their number nor on that of their tags.

    A count fades by a third in four seconds, and is nothing after a minute. Where there are too
    many tags to keep, the rarest makes room and leaves its count to the new one, so that no
    frequent tag is ever missed (Metwally et al., Efficient Computation of Frequent and
    Top-k Elements in Data Streams, 2005).

    Args:
        clock: seconds.
        most: tags kept.
        chance: the source of randomness.
    """

    _SPAN: Final = 10.0  # seconds after which an e-th of a message is left
    _AIM: Final = 0.01  # seconds between two samples
    _LARGE: Final = 1e9  # where numbers are made small again

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        most: int = 256,
        chance: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._most = most
        self._chance = chance or random.Random()  # noqa: S311  # no secret depends on it
        self._weights: dict[str, float] = {}  # as of `_origin`: later ones are counted for more
        self._origin = self._started = self._sampled = clock()
        self._seen = 0
        self._gap = 1

    def sample(self, tag_list: bytes, published: int) -> int:
        """Look at one message.

        Args:
            tag_list: its, as written; one that breaks the rules is passed over.
            published: messages that there have been, with those before it.

        Returns:
            How many messages later to look again, at least 1.
        """
        now = self._clock()
        since, passed = published - self._seen, now - self._sampled
        self._seen, self._sampled = published, now
        try:
            tags = parse_tag_list(tag_list, len(tag_list))
        except CommandError:
            tags = frozenset()
        if tags:
            self._add(self._chance.choice(sorted(tags)), since * len(tags), now)
        # As many as come in the time aimed at; growing by steps, for a burst may be over soon.
        fitting = int(since * self._AIM / passed) if passed > 0 else 2 * self._gap
        self._gap = max(1, min(fitting, 2 * self._gap))
        return self._chance.randint(1, 2 * self._gap - 1)

    def top(self, most: int) -> list[tuple[str, float]]:
        """The most frequent tags and their rates, messages a second, highest first."""
        now = self._clock()
        # In the first seconds there was less to count than in the long run.
        whole = self._SPAN * -math.expm1(-max(now - self._started, 0.1) / self._SPAN)
        scale = self._growth(now) * whole
        rates = [(tag, weight / scale) for tag, weight in self._weights.items()]
        rates.sort(key=lambda rate: (-rate[1], rate[0]))
        return [rate for rate in rates[:most] if rate[1] >= 0.01]

    def _growth(self, now: float) -> float:
        # Bounded, for a server may be quiet for years; by then nothing is left anyway.
        return math.exp(min((now - self._origin) / self._SPAN, 60.0))

    def _add(self, tag: str, weight: float, now: float) -> None:
        growth = self._growth(now)
        weights = self._weights
        if growth > self._LARGE:
            self._weights = weights = {
                tag: weight / growth for tag, weight in weights.items() if weight > 1e-3 * growth
            }
            self._origin, growth = now, 1.0
        known = weights.get(tag, 0.0)
        if not known and len(weights) >= self._most:
            rarest = min(weights, key=weights.__getitem__)
            known = weights.pop(rarest)
        weights[tag] = known + weight * growth


class TagSampler:
    """Which published message's tags are looked at next.

    Args:
        rates: which is given the tags; None looks at none.

    Attributes:
        next: that message, counted from the broker's first. Infinity, which is never reached,
            where none is.
    """

    __slots__ = ("_rates", "next")

    def __init__(self, rates: TagRates | None) -> None:
        self._rates = rates
        self.next: float = math.inf if rates is None else 1

    def sample(self, batch: Batch, accepted: int, published: int) -> None:
        """Look at a message of a batch, since `next` is among its messages.

        Args:
            accepted: messages of the batch, at least 1.
            published: messages in all, with these.
        """
        if self._rates is None:
            return
        before = published - accepted
        # Tag lists stand for one message each, or for about as many; see `Batch`.
        place = (int(self.next) - before - 1) * len(batch.tag_lists) // accepted
        self.next = published + self._rates.sample(batch.tag_lists[place], published)

    def soon(self, published: int) -> None:
        """Look at the next message's tags, however long it would have been until then."""
        if self._rates is not None:
            self.next = published + 1


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
        loop_lag: how much later than due something is done.
        lag: the most of the last second.
        tags: see there.
    """

    _RECENT: Final = 10  # of `loop_lag`, for `lag`

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.publish_to_write = Histogram((*_MICROSECONDS, *_MILLISECONDS, *_SECONDS), clock)
        self.match = Histogram((1e-6, 2.5e-6, 5e-6, *_MICROSECONDS, *_MILLISECONDS[:5]), clock, 8)
        self.commit = Histogram((*_MICROSECONDS[3:], *_MILLISECONDS, *_SECONDS), clock)
        self.loop_lag = Histogram((*_MICROSECONDS[3:], *_MILLISECONDS, *_SECONDS))
        self.tags = TagRates(clock)
        self._recent: list[float] = []

    @property
    def lag(self) -> float:
        """See the class; seconds."""
        return max(self._recent, default=0.0)

    def note_lag(self, seconds: float) -> None:
        """Something was done so much later than due."""
        seconds = max(seconds, 0.0)
        self.loop_lag.observe(seconds)
        self._recent = [*self._recent[1 - self._RECENT :], seconds]

    def histograms(self) -> Iterable[tuple[str, Histogram]]:
        """All of them, by name."""
        yield "publish_to_write", self.publish_to_write
        yield "match", self.match
        yield "commit", self.commit
        yield "loop_lag", self.loop_lag
