"""`/openapi.json`: the OpenAPI document of all routes.

To describe a new module of routes: give it `OPERATIONS`, and add these to `GROUPS`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
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
    tickets.OPERATIONS,
    tokens.OPERATIONS,
    revocations.OPERATIONS,
    OPERATIONS,
)
"""The operations of each module."""


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/openapi.json`."""
    page = msgspec.json.encode(assemble(GROUPS, __version__))

    async def description(request: Request) -> Response:
        return Response(page, headers={"Cache-Control": "no-cache"}, media_type="application/json")

    return [Route("/openapi.json", description)]
