"""All sessions, added up: what both the dashboard's figures and the metrics are made of.

A session's counts lie in its outbox. Adding up twenty thousand takes 20 ms, so it is done in
slices, between which others run; and however many ask, no more than a tenth of the time goes
into it, for an answer is given again to whoever asks within ten times what it took to make.

Totals never go back. A session that leaves meanwhile is counted once: what the gone ones had
is read before the first session is, and an outbox keeps its counts when its session goes.
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
SHARE: Final = 10.0  # an answer is good for so many times what it took
_SLOWEST: Final = 20  # sessions


@attrs.frozen
class SessionAggregates:
    """Sums over sessions.

    Attributes:
        connections: sessions now, by transport.
        delivered: messages handed to the kernel since the start, by transport.
        delivered_bytes: likewise, of all transports, replies included.
        subscriptions: of all sessions; two of one tag set are two.
        queued_bytes: in all outboxes.
        slowest: the sessions with the most bytes queued, those with none left out.
        cost: seconds of processor that it took.
    """

    connections: dict[str, int]
    delivered: dict[str, int]
    delivered_bytes: int
    subscriptions: int
    queued_bytes: int
    slowest: list[ConnectedSession]
    cost: float


class SessionAggregator:
    """Takes a census, now and then.

    Args:
        hub: whose sessions.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._latest: SessionAggregates | None = None
        self._taken = 0.0

    async def session_aggregates(self) -> SessionAggregates:
        """The census, hardly older than it takes to make one. O(sessions), in slices."""
        if self._latest is None or time.perf_counter() - self._taken > SHARE * self._latest.cost:
            self._latest = await self._take()
            self._taken = time.perf_counter()
        return self._latest

    async def _take(self) -> SessionAggregates:
        delivered, delivered_bytes = (
            Counter(self._hub.sessions.gone_messages),
            self._hub.sessions.gone_bytes.total(),
        )
        sessions = list(self._hub.sessions)
        connections: Counter[str] = Counter()
        subscriptions = queued_bytes = 0
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
                delivered_bytes += outbox.sent_bytes
                subscriptions += len(session.subscriptions)
                queued_bytes += outbox.size
            queued = [(each.outbox.size, each.name, each) for each in some if each.outbox.size]
            slowest = heapq.nlargest(_SLOWEST, [*slowest, *queued])
            cost += time.thread_time() - began
        return SessionAggregates(
            dict(connections),
            dict(delivered),
            delivered_bytes,
            subscriptions,
            queued_bytes,
            [each for _, _, each in slowest],
            cost,
        )
