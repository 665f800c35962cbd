"""The last ten minutes of a server's counters: what the dashboard's plots begin with.

All who ask between two samples get the same bytes, made once (`mist.sessions.recorder`). They are
compressed for those who take it so: there is nothing in them that a client has chosen, and no
secret, so their size tells nothing.
"""

import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.answers import WholeResponse
from mist.http.context import Context
from mist.http.encodings import Encoded
from mist.http.openapi import SERVICE, Answer, Operation, Operations
from mist.sessions.hub import Hub
from mist.sessions.recorder import STEP

__all__ = ["OPERATIONS", "routes"]

_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-type", b"application/json"),
    (b"vary", b"Accept-Encoding, Origin"),
)


class LatencyHistory(msgspec.Struct, frozen=True):
    """A histogram over time.

    Attributes:
        bounds: upper bounds of the buckets in seconds; one without a bound follows.
        counts: for each sample, the observations of each bucket since the start.
    """

    bounds: Sequence[float]
    counts: Sequence[Sequence[int]]


class Latencies(msgspec.Struct, frozen=True):
    """Histograms, of which there are fewer samples than of counters; see `/v1/stats`.

    Attributes:
        uptime: of each sample, seconds since the start.
    """

    uptime: Sequence[float]
    publish_to_write: LatencyHistory
    commit: LatencyHistory | None
    append: LatencyHistory | None


class StatsHistory(msgspec.Struct, frozen=True):
    """The last ten minutes, or what there is of them, oldest first: columns of equal length.

    Counters are totals since the start, as in `/v1/stats`, so rates come of differences. There is
    a gap between two samples where the process stood still, or the machine slept.

    Attributes:
        started: Unix seconds; of another process another one.
        step: seconds between two samples, mostly.
        uptime: of each sample, seconds since the start, by a clock that nobody sets.
        loop_lag: the maximum since the sample before, seconds.
    """

    started: float
    step: float
    uptime: Sequence[float]
    published: Sequence[int]
    relayed: Sequence[int]
    matched: Sequence[int]
    replayed: Sequence[int]
    delivered: Sequence[int]
    delivered_bytes: Sequence[int]
    unmatched: Sequence[int]
    rejected: Sequence[int]
    dropped: Sequence[int]
    connections: Sequence[int]
    cpu_seconds: Sequence[float]
    loop_lag: Sequence[float]
    latency: Latencies


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/stats/history`."""
    pages = _Pages(context.hub, context.started)

    async def history(request: Request) -> Response:
        await context.access.service(request)
        accepted = ",".join(request.headers.getlist("accept-encoding"))
        coding, content = pages.current().choose(accepted)
        coded = ((b"content-encoding", coding.encode()),) if coding else ()
        return WholeResponse(content, 200, (*_HEADERS, *coded))

    return [Route("/v1/stats/history", history)]


class _Pages:
    """What is answered, made anew when there is another sample."""

    def __init__(self, hub: Hub, started: float) -> None:
        self._hub = hub
        self._started = started
        self._samples = -1
        self._page = Encoded(b"")

    def current(self) -> Encoded:
        """The answer, in all codings. O(samples) at most once in two seconds."""
        recorder = self._hub.recorder
        if recorder.samples != self._samples:
            self._page = Encoded(msgspec.json.encode(self._history()), {"gzip": _gzip})
            self._samples = recorder.samples
        return self._page

    def _history(self) -> StatsHistory:
        hub = self._hub
        recording = hub.recorder.recording()
        columns: dict[str, Any] = {  # rounded, a whole number stays one
            name: [round(each, 6) for each in column] for name, column in recording.columns.items()
        }
        found = {
            name: LatencyHistory(each.bounds, [list(row) for row in recording.latencies[name]])
            for name, each in hub.meters.latencies()
        }
        return StatsHistory(
            started=self._started,
            step=STEP,
            latency=Latencies(
                [round(each, 3) for each in recording.latency_uptime],
                found["publish_to_write"],
                None if hub.sequencer is None else found["commit"],
                None if hub.nodes is None else found["append"],
            ),
            **columns,
        )


def _gzip(content: bytes) -> bytes:
    compressor = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


OPERATIONS: Final[Operations] = {
    "/v1/stats/history": {
        "get": Operation(
            summary="The last ten minutes of the figures of the dashboard",
            details="A sample each two seconds; of latencies, each ten. Counters are totals since "
            "the server's start.",
            who=SERVICE,
            answers={200: Answer("Columns of equal length, oldest first.", StatsHistory)},
        )
    },
}
