"""Health: liveness, readiness, and the endpoints for browsers."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.config import Listen
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import Answer, Operation, Operations
from mist.http.problems import Problem
from mist.sessions.readiness import not_ready
from mist.transports.handshake import PATH

__all__ = ["OPERATIONS", "routes", "websocket_url"]


class Health(msgspec.Struct, frozen=True):
    """`alive`, or `ready`."""

    status: str


class Endpoints(msgspec.Struct, frozen=True):
    """The endpoints for browsers: the WebSocket's URL, and paths of the others; behind a proxy
    their URLs.

    Attributes:
        history: whether messages are kept, so that clients can resume.
    """

    websocket: str
    stream: str
    poll: str
    publish: str
    tickets: str
    history: bool


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/healthz`, `/readyz`, `/v1/endpoints`."""

    async def alive(request: Request) -> Response:
        return answer(Health("alive"))

    async def ready(request: Request) -> Response:
        reason = not_ready(context.hub)
        if reason is not None:
            headers = {"Retry-After": "1"} if reason.passes else {}
            raise Problem(503, reason.code, reason.detail, headers)
        return answer(Health("ready"))

    async def endpoints(request: Request) -> Response:
        history = context.hub.sequencer is not None
        base = public_base(context, request) or ""
        found = Endpoints(
            websocket=websocket_url(context, request),
            stream=f"{base}/v1/stream",
            poll=f"{base}/v1/poll",
            publish=f"{base}/v1/messages",
            tickets=f"{base}/v1/tickets",
            history=history,
        )
        return answer(found)

    return [
        Route("/healthz", alive),
        Route("/readyz", ready),
        Route("/v1/endpoints", endpoints),
    ]


def public_base(context: Context, request: Request) -> str | None:
    """The URL under which a proxy has this server, `https://example.com/mist`; None for none.

    That of `--public-url`, else what a trusted proxy says.
    """
    if context.config.public_url is not None:
        return str(context.config.public_url)
    prefix = request.scope["state"].get("prefix")
    if prefix is None:
        return None
    return f"{request.scope['scheme']}://{request.headers['host']}{prefix}"


def websocket_url(context: Context, request: Request) -> str:
    """The URL for WebSockets, with the host name of the request.

    Behind a proxy it is at the same origin. Else it is that of a `ws` listener, preferably one with
    TLS if the request used TLS, since pages require that; where there is none, that of the listener
    of the request.
    """
    base = public_base(context, request)
    if base is not None:
        return f"ws{base.removeprefix('http')}{PATH}"
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
                503: "It is shutting down, has too many files open to accept connections, its "
                "token registry can't be reached, its history can't be written, or it is behind "
                "the other nodes of its engine."
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
                        "publish": "/v1/messages",
                        "tickets": "/v1/tickets",
                        "history": True,
                    },
                )
            },
        )
    },
}
