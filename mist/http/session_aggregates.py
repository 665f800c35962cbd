"""Session aggregates: sums over all sessions, for the dashboard and the metrics.

A session's counts are in its outbox. Summing over twenty thousand takes 20 ms, so it is done in
slices with checkpoints between them; and it takes at most a tenth of the time at any number of
requests, since a result is cached for ten times as long as it took.

Totals never decrease. A session that ends meanwhile is counted once: the totals of ended sessions
are read before the first session, and an outbox keeps its counts when its session ends.
"""

import heapq
import time
from collections import Counter
from typing import Final

import attrs
import trio

from mist.sessions.hub import Hub
from mist.sessions.session_table import ConnectedSession

__all__ = ["SHARE", "SLICE", "SessionAggregates", "SessionAggregator"]

SLICE: Final = 1_000  # sessions between two checkpoints, some 1 ms
SHARE: Final = 10.0  # a result is cached for so many times what it took
_SLOWEST: Final = 20  # sessions


@attrs.frozen
class SessionAggregates:
    """Sums over sessions.

    Attributes:
        connections: sessions now, by transport.
        delivered: messages handed to the kernel since the start, by transport.
        subscriptions: of all sessions, named ones, too; equal tag sets of two sessions count twice.
        queued: messages in all outboxes, held there, and owed to sessions that are behind.
        queued_bytes: in all outboxes.
        slowest: the sessions with the most bytes queued, those with none left out.
        cost: seconds of processor that it took.
    """

    connections: dict[str, int]
    delivered: dict[str, int]
    subscriptions: int
    queued: int
    queued_bytes: int
    slowest: list[ConnectedSession]
    cost: float


class SessionAggregator:
    """Sums over the sessions of a hub, with a cache.

    Args:
        hub: has the sessions.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._latest: SessionAggregates | None = None
        self._taken = 0.0

    async def session_aggregates(self) -> SessionAggregates:
        """The aggregates, at most ten times as old as they take. O(sessions), in slices."""
        if self._latest is None or time.perf_counter() - self._taken > SHARE * self._latest.cost:
            self._latest = await self._take()
            self._taken = time.perf_counter()
        return self._latest

    async def _take(self) -> SessionAggregates:
        delivered = Counter(self._hub.sessions.gone_messages)
        sessions = list(self._hub.sessions)
        connections: Counter[str] = Counter()
        subscriptions = queued = queued_bytes = 0
        cost = 0.0
        slowest: list[tuple[int, str, ConnectedSession]] = []
        for start in range(0, len(sessions), SLICE):
            if start:
                await trio.lowlevel.checkpoint()
            began = time.thread_time()
            some = sessions[start : start + SLICE]
            for session in some:
                outbox = session.outbox
                connections[session.transport] += 1
                delivered[session.transport] += outbox.sent_messages
                subscriptions += len(session.subscriptions) + len(session.named_subscriptions)
                queued += outbox.waiting
                queued_bytes += outbox.size
            full = [(each.outbox.size, each.name, each) for each in some if each.outbox.size]
            slowest = heapq.nlargest(_SLOWEST, [*slowest, *full])
            cost += time.thread_time() - began
        return SessionAggregates(
            dict(connections),
            dict(delivered),
            subscriptions,
            queued,
            queued_bytes,
            [each for _, _, each in slowest],
            cost,
        )
