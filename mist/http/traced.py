"""A span for each request, around all that is done for it; only where there is telemetry.

The trace is the client's, where it sends `traceparent`. Log lines of a request have its id, as
`trace`. The span of an event stream ends when the stream begins: such a response may last for
days, and what is delivered in it is no part of the request. What monitors ask all the time is left
out, and so are WebSockets' handshakes.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from mist.broker.outbox import Outbox
from mist.http.exchange import Exchange, HandedOver
from mist.telemetry import Span, Tracing

__all__ = ["Traced"]

# As the request's id in `mist.http.guard`.
_trace: ContextVar[str] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}trace")

_CONNECTION: Final = "mist.connection"
_UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class Traced:
    """An ASGI application around another.

    Args:
        app: the other.
        tracing: begins spans.
        pattern: gives the path of the route that a request is for; None for none.
    """

    def __init__(
        self, app: ASGIApp, tracing: Tracing, pattern: Callable[[Scope], str | None]
    ) -> None:
        self._app = app
        self._tracing = tracing
        self._pattern = pattern

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        parent = _parent(scope["headers"])
        with self._tracing.request(scope["method"], self._pattern(scope), parent) as span:
            noting = _Noting(span, send)
            exchange = scope.get("extensions", {}).get(_CONNECTION)
            if exchange is not None:
                connection = _Connection(span, exchange)
                scope["extensions"] = {**scope["extensions"], _CONNECTION: connection}
            token = _trace.set(span.trace_id)
            try:
                await self._app(scope, receive, noting)
            finally:
                _trace.reset(token)


def _parent(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers that name the client's trace; several that do name none (W3C Trace Context)."""
    parents, states = [], []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value.decode("latin-1"))
        elif name == b"tracestate":  # a list, which may come in parts
            states.append(value.decode("latin-1"))
    if len(parents) != 1:
        return {}
    return {"traceparent": parents[0], "tracestate": ",".join(states)}


class _Noting:
    """`send`, of which a span is told the status."""

    __slots__ = ("_send", "_span")

    def __init__(self, span: Span, send: Send) -> None:
        self._span = span
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._span.answered(message["status"])
        await self._send(message)


class _Connection:
    """The scope's extension (`mist.http.exchange`), likewise."""

    __slots__ = ("_exchange", "_span")

    def __init__(self, span: Span, exchange: Exchange) -> None:
        self._span = span
        self._exchange = exchange

    def receive_nowait(self) -> Any:
        return self._exchange.receive_nowait()

    def respond(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Awaitable[None]:
        self._span.answered(status)
        return self._exchange.respond(status, headers, body)

    def hand_over(
        self, outbox: Outbox, headers: Iterable[tuple[bytes, bytes]], *, chunked: bool = False
    ) -> HandedOver:
        handed_over = self._exchange.hand_over(outbox, headers, chunked=chunked)
        self._span.answered(200)
        self._span.end()
        return handed_over
