"""Is it alive, is it ready, and where are its doors?"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.config import Listen
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.problems import Problem
from mist.transports.websocket import PATH

__all__ = ["routes"]


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/healthz`, `/readyz`, `/v1/endpoints`."""

    async def alive(request: Request) -> Response:
        return answer({"status": "alive"})

    async def ready(request: Request) -> Response:
        if context.is_draining():
            raise Problem(503, "draining", "the server is going away", {"Retry-After": "1"})
        sequencer = context.hub.sequencer
        if sequencer is not None and sequencer.failing:
            raise Problem(503, "history_unavailable", "the history can't be written")
        return answer({"status": "ready"})

    async def endpoints(request: Request) -> Response:
        return answer(
            {
                "websocket": _websocket(context, request),
                "stream": "/v1/stream",
                "poll": "/v1/poll",
                "tickets": "/v1/tickets",
                "history": context.hub.sequencer is not None,
            }
        )

    return [
        Route("/healthz", alive),
        Route("/readyz", ready),
        Route("/v1/endpoints", endpoints),
    ]


def _websocket(context: Context, request: Request) -> str | None:
    """The WebSocket listener's URL, under the name that the request came to; None if it has none.

    Of several the one that has TLS where the request has, since pages demand that.
    """
    found = [each for each in context.listening if each.protocol == "ws" and not each.is_unix]
    came_by: Listen = request.state.listen
    found.sort(key=lambda each: (each.tls != came_by.tls, each.host != came_by.host))
    if not found:
        return None
    host = request.url.hostname or found[0].host
    host = f"[{host}]" if ":" in host else host
    return f"{'wss' if found[0].tls else 'ws'}://{host}:{found[0].port}{PATH}"
