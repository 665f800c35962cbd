"""Health: liveness, readiness, and the endpoints for browsers."""

from collections.abc import Sequence
from typing import Final

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.config import Listen
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import Answer, Operation, Operations
from mist.http.problems import Problem
from mist.sessions.sequencer import Sequencer
from mist.transports.handshake import PATH

__all__ = ["OPERATIONS", "routes", "websocket_url"]

_SILENCE: Final = 3.0  # seconds without contact to the token registry
_REMEMBERED: Final = 5.0  # seconds after a failure, for which the server is not ready


class Health(msgspec.Struct, frozen=True):
    """`alive`, or `ready`."""

    status: str


class Endpoints(msgspec.Struct, frozen=True):
    """The endpoints for browsers: the WebSocket's URL, and paths of the others.

    Attributes:
        history: whether messages are kept, so that clients can resume.
    """

    websocket: str
    stream: str
    poll: str
    tickets: str
    history: bool


def _is_failing(sequencer: Sequencer) -> bool:
    # Only a publish can find that the disk has space again, and a load balancer sends none to a
    # server that is not ready.
    return sequencer.failing and trio.current_time() - sequencer.failed_at < _REMEMBERED


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/healthz`, `/readyz`, `/v1/endpoints`."""

    async def alive(request: Request) -> Response:
        return answer(Health("alive"))

    async def ready(request: Request) -> Response:
        if context.is_draining():
            raise Problem(503, "draining", "the server is shutting down", {"Retry-After": "1"})
        if context.hub.registry.silence > _SILENCE:
            raise Problem(503, "registry_unavailable", "the token registry can't be reached")
        sequencer = context.hub.sequencer
        if sequencer is not None and _is_failing(sequencer):
            raise Problem(503, "history_unavailable", "the history can't be written")
        if sequencer is not None and not sequencer.ready:
            raise Problem(503, "catching_up", "it is behind other nodes", {"Retry-After": "1"})
        return answer(Health("ready"))

    async def endpoints(request: Request) -> Response:
        history = context.hub.sequencer is not None
        websocket = websocket_url(context, request)
        return answer(Endpoints(websocket, "/v1/stream", "/v1/poll", "/v1/tickets", history))

    return [
        Route("/healthz", alive),
        Route("/readyz", ready),
        Route("/v1/endpoints", endpoints),
    ]


def websocket_url(context: Context, request: Request) -> str:
    """The URL for WebSockets, with the host name of the request.

    That of a `ws` listener, preferably one with TLS if the request used TLS, since pages require
    that; where there is none, that of the listener of the request.
    """
    came_by: Listen = request.state.listen
    found = [each for each in context.listening if each.protocol == "ws" and not each.is_unix]
    if not found:
        return f"{'wss' if came_by.tls else 'ws'}://{request.headers['host']}{PATH}"
    found.sort(key=lambda each: (each.tls != came_by.tls, each.host != came_by.host))
    host = request.url.hostname or found[0].host
    host = f"[{host}]" if ":" in host else host
    return f"{'wss' if found[0].tls else 'ws'}://{host}:{found[0].port}{PATH}"


OPERATIONS: Final[Operations] = {
    "/healthz": {
        "get": Operation(
            summary="Liveness",
            answers={200: Answer("The server is alive.", Health, {"status": "alive"})},
        )
    },
    "/readyz": {
        "get": Operation(
            summary="Readiness",
            answers={200: Answer("The server is ready.", Health, {"status": "ready"})},
            problems={
                503: "It is shutting down, its history can't be written, or its token registry "
                "can't be reached."
            },
        )
    },
    "/v1/endpoints": {
        "get": Operation(
            summary="Endpoints for browsers",
            answers={
                200: Answer(
                    "The endpoints.",
                    Endpoints,
                    {
                        "websocket": "ws://localhost:8888/subscribe/websocket",
                        "stream": "/v1/stream",
                        "poll": "/v1/poll",
                        "tickets": "/v1/tickets",
                        "history": True,
                    },
                )
            },
        )
    },
}
