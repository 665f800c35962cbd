"""Statistics for the dashboard: one object, at most a second old, at any number of peers."""

import os
import resource
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.errors import HistoryUnavailable
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Operation, Operations
from mist.http.session_aggregates import SessionAggregator
from mist.sessions.hub import Hub
from mist.sessions.inspection import Connection, describe_session
from mist.sessions.sequencer import Sequencer
from mist.version import __version__

if TYPE_CHECKING:
    from mist.archive.sealer import Sealer  # needs pyarrow, which is an extra
    from mist.archive.sharing import SharedSealer

__all__ = ["OPERATIONS", "resident_bytes", "routes"]

_TOP_TAGS: Final = 20
_SIZED: Final = 5.0  # seconds for which a log's size is cached, since it is counted block by block


class HistoryState(msgspec.Struct, frozen=True):
    """The state of the history.

    Attributes:
        first, newest: the lowest id kept and the highest delivered.
        messages, bytes: kept; None where they can't be determined now.
        failing: whether the last messages could not be stored, or the engine can't be reached.
        sealed: messages up to this id are in the archive; None where there is none.
    """

    epoch: str
    first: int
    newest: int
    messages: int | None
    bytes: int | None
    failing: bool
    sealed: int | None


class TopTag(msgspec.Struct, frozen=True):
    """A tag, and its rate of messages per second: over the last 30 s, or since the start."""

    tag: str
    published_rate: float


class Distribution(msgspec.Struct, frozen=True):
    """A histogram of durations.

    Attributes:
        bounds: upper bounds of the buckets in seconds; one without a bound follows.
        counts: observations of each bucket since the start.
    """

    bounds: Sequence[float]
    counts: Sequence[int]


class Latency(msgspec.Struct, frozen=True):
    """How long messages take, of samples.

    Attributes:
        publish_to_write: from a message's arrival to the end of the flush that wrote it for those
            of its subscribers who take it at once.
        commit: until a group of messages is in the history; None where there is none.
        append: of that, the engine's log; None where there is no engine.
    """

    publish_to_write: Distribution
    commit: Distribution | None
    append: Distribution | None


class Stats(msgspec.Struct, frozen=True):
    """A snapshot of a server. Values count since the start, unless described as current.

    Attributes:
        time: Unix seconds.
        started: Unix seconds; of another process another one, and never another of this one.
        uptime: seconds, by a clock that nobody sets.
        published, rejected, unmatched: messages accepted, refused for their tags, and
            accepted and unmatched by any subscription of this node.
        relayed: messages that other nodes of the engine have accepted.
        matched: deliveries due: messages, times those who were subscribed to each.
        replayed: messages given to sessions from the history, beside those.
        delivered, delivered_bytes: wholly handed to the kernel, of all connections.
        queued: waiting for connections now, or left to the history for those that are behind.
            `matched + replayed` is the sum of `delivered`, `dropped` and `queued`.
        dropped: messages not delivered, by reason.
        connections: now, by transport.
        lifetime: connections ever.
        tag_sets: distinct ones subscribed to now.
        outbox_limit: bytes that may be queued for one connection, as configured; beyond that
            the slow consumer policy applies.
        auth_failures: by transport.
        latency: histograms; see there.
        loop_lag: event loop lag in seconds, the maximum of the last second.
        cpu_seconds: of the process.
        resident_bytes: of the process, now.
        nodes: of the engine, this one among them; None where there is no engine.
        history: None where there is none.
        slowest: the connections with the most bytes queued, at most 20.
        top_tags: the most frequent, at most 20.
    """

    time: float
    started: float
    uptime: float
    version: str
    published: int
    relayed: int
    matched: int
    replayed: int
    delivered: int
    delivered_bytes: int
    queued: int
    rejected: int
    unmatched: int
    dropped: dict[str, int]
    connections: dict[str, int]
    lifetime: int
    tag_sets: int
    outbox_limit: int
    auth_failures: dict[str, int]
    latency: Latency
    loop_lag: float
    cpu_seconds: float
    resident_bytes: int
    nodes: int | None
    history: HistoryState | None
    slowest: list[Connection]
    top_tags: list[TopTag]


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/stats`."""
    taker = SessionAggregator(context.hub)
    log = _LogSize()

    async def stats(request: Request) -> Response:
        await context.access.service(request)
        session_aggregates = await taker.session_aggregates()
        hub = context.hub
        history = None if hub.sequencer is None else await log.state(hub.sequencer, hub.sealer)
        # No await from here on: counters are of the time that `uptime` tells.
        broker = hub.broker.statistics()
        return answer(
            Stats(
                time=time.time(),
                started=context.started,
                uptime=hub.recorder.uptime,
                version=__version__,
                published=broker.published,
                relayed=broker.relayed,
                matched=broker.matched,
                replayed=broker.replayed,
                queued=session_aggregates.queued,
                delivered=hub.written.messages,
                delivered_bytes=hub.written.bytes,
                rejected=broker.rejected,
                unmatched=broker.unmatched,
                dropped=broker.dropped,
                connections=session_aggregates.connections,
                lifetime=hub.sessions.lifetime,
                tag_sets=broker.tag_sets,
                outbox_limit=hub.outbox_limits.bytes,
                auth_failures=dict(hub.failed_auths),
                latency=_latency(hub),
                loop_lag=hub.meters.lag,
                cpu_seconds=time.process_time(),
                resident_bytes=resident_bytes(),
                nodes=None if hub.nodes is None else hub.nodes.known,
                history=history,
                slowest=[describe_session(each) for each in session_aggregates.slowest],
                top_tags=_top_tags(hub),
            )
        )

    return [Route("/v1/stats", stats)]


def _top_tags(hub: Hub) -> list[TopTag]:
    return [TopTag(tag, round(rate, 3)) for tag, rate in hub.broker.top_tags(_TOP_TAGS)]


def _latency(hub: Hub) -> Latency:
    found = {name: Distribution(each.bounds, each.counts) for name, each in hub.meters.latencies()}
    return Latency(
        found["publish_to_write"],
        None if hub.sequencer is None else found["commit"],
        None if hub.nodes is None else found["append"],
    )


class _LogSize:
    """The size of a log, counted at intervals."""

    def __init__(self) -> None:
        self._messages: int | None = None
        self._bytes: int | None = None
        self._due = -1.0
        self._first = 1

    async def state(
        self, sequencer: Sequencer, sealer: "Sealer | SharedSealer | None"
    ) -> HistoryState:
        """The state of a log. Never raises, since stats are needed most when something fails."""
        failing = sequencer.failing or not sequencer.reachable
        try:
            position = await sequencer.history.position()
            first = position.first
            if trio.current_time() >= self._due:
                # Set before the await: of concurrent requests only one counts.
                self._due = trio.current_time() + _SIZED
                statistics = await sequencer.history.statistics()
                self._messages, self._bytes = statistics.messages, statistics.size
        except HistoryUnavailable:
            first, failing = self._first, True
            self._messages = self._bytes = None
        self._first = first
        return HistoryState(
            sequencer.epoch,
            first,
            sequencer.newest,
            self._messages,
            self._bytes,
            failing,
            None if sealer is None else sealer.sealed,
        )


def resident_bytes() -> int:
    """Resident memory of the process; where that is unknown, its maximum so far."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


OPERATIONS: Final[Operations] = {
    "/v1/stats": {
        "get": Operation(
            summary="What the dashboard shows",
            details="Counters are totals since the server's start.",
            who=SERVICE,
            answers={200: Answer("The server at this moment.", Stats)},
        )
    },
}
