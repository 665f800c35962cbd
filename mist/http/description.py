"""`/openapi.json`: the OpenAPI document of all routes.

To describe a new module of routes: give it `OPERATIONS`, and add these to `GROUPS`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http import (
    bus,
    guble,
    health,
    inspect,
    log,
    messages,
    metrics,
    nodes,
    pages,
    polling,
    presence,
    revocations,
    sessions,
    staging,
    stats,
    stats_history,
    streams,
    subscription_rates,
    tickets,
    tokens,
)
from mist.http.context import Context
from mist.http.openapi import Answer, Operation, Operations, assemble
from mist.version import __version__

__all__ = ["GROUPS", "OPERATIONS", "routes"]

OPERATIONS: Final[Operations] = {
    "/openapi.json": {
        "get": Operation(
            summary="This document", answers={200: Answer("OpenAPI 3.1.", {"type": "object"})}
        )
    }
}

GROUPS: Final = (
    bus.OPERATIONS,
    guble.OPERATIONS,
    health.OPERATIONS,
    inspect.OPERATIONS,
    log.OPERATIONS,
    messages.OPERATIONS,
    metrics.OPERATIONS,
    nodes.OPERATIONS,
    pages.OPERATIONS,
    polling.OPERATIONS,
    presence.OPERATIONS,
    sessions.OPERATIONS,
    staging.OPERATIONS,
    stats.OPERATIONS,
    stats_history.OPERATIONS,
    streams.OPERATIONS,
    subscription_rates.OPERATIONS,
    tickets.OPERATIONS,
    tokens.OPERATIONS,
    revocations.OPERATIONS,
    OPERATIONS,
)
"""The operations of each module."""


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/openapi.json`."""
    made: list[bytes] = []

    async def description(request: Request) -> Response:
        if not made:  # by the first request, in a thread: few ask, and it takes some 10 ms
            made.append(await trio.to_thread.run_sync(_page))
        headers = {"Cache-Control": "no-cache"}
        return Response(made[0], headers=headers, media_type="application/json")

    return [Route("/openapi.json", description)]


def _page() -> bytes:
    return msgspec.json.encode(assemble(GROUPS, __version__))
