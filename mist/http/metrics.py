"""Metrics for Prometheus at `/metrics`: existing counts, collected on request.

Always in the older of the two text formats: OpenMetrics does not allow a gauge `mist_connections`
beside a counter `mist_connections_total`.

Like session aggregates, a page is cached for ten times as long as it took to make. What makes it is
imported with the first one (`metric_families`), in a thread: a server without a Prometheus does
without, and no peer waits for it.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Operation, Operations
from mist.http.session_aggregates import SHARE, SessionAggregator
from mist.sessions.hub import Hub

if TYPE_CHECKING:
    from mist.http.metric_families import MetricFamilies

__all__ = ["OPERATIONS", "routes"]

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/metrics`."""
    scrapes = _Scrapes(context.hub)

    async def metrics(request: Request) -> Response:
        if not context.config.open_metrics:
            await context.access.service(request)
        headers = {"Content-Type": _CONTENT_TYPE, "Cache-Control": "no-store"}
        return Response(await scrapes.page(), headers=headers)

    return [Route("/metrics", metrics)]


@attrs.frozen
class _Page:
    """A cached page: when it was made, and the seconds of processor it took."""

    text: bytes
    made: float
    cost: float

    @property
    def is_fresh(self) -> bool:
        return time.perf_counter() - self.made <= SHARE * self.cost


class _Scrapes:
    """The metrics page of one server, made on request."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._taker = SessionAggregator(hub)
        self._families: MetricFamilies | None = None
        self._page: _Page | None = None

    async def page(self) -> bytes:
        """The page, at most ten times as old as it takes to make one."""
        if self._page is not None and self._page.is_fresh:
            return self._page.text
        if self._families is None:
            self._families = await trio.to_thread.run_sync(_metric_families, self._hub)
        session_aggregates = await self._taker.session_aggregates()
        began = time.thread_time()
        text = self._families.render(session_aggregates)
        cost = time.thread_time() - began + session_aggregates.cost
        self._page = _Page(text, time.perf_counter(), cost)
        return text


def _metric_families(hub: Hub) -> "MetricFamilies":
    from mist.http.metric_families import MetricFamilies

    return MetricFamilies(hub)


OPERATIONS: Final[Operations] = {
    "/metrics": {
        "get": Operation(
            summary="Metrics for Prometheus",
            details="With --open-metrics no credential is needed.",
            who=SERVICE,
            answers={200: Answer("The metrics.", media_type="text/plain")},
        )
    },
}
