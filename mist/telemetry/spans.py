"""Spans of OpenTelemetry. Needs the extra `otel`.

Names and attributes are those of its semantic conventions for HTTP, where these have one. Ended
spans wait in a bounded queue of the SDK for a thread of its own, which exports them; what has no
room there is dropped. So no request waits for the collector.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Final, Self, cast
from urllib.parse import urlsplit

import trio
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace import Span as Recorded
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from mist.telemetry import Origin, Span
from mist.version import __version__

__all__ = ["OpenTelemetry"]

_CLOSE_SECONDS: Final = 3.0
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MAX_STATE: Final = 512  # bytes of a tracestate that are passed on (W3C: at least so many)
_STATE: Final = "tracestate"


class OpenTelemetry:
    """A `Tracing`.

    Args:
        provider: with its exporters; closed by `aclose`.
        give_up: called where that takes too long; has the exporters stop trying.
    """

    def __init__(
        self, provider: TracerProvider, give_up: Callable[[], None] = lambda: None
    ) -> None:
        self._provider = provider
        self._give_up = give_up
        self._tracer = provider.get_tracer("mist", __version__)

    def request(self, method: str, route: str | None, headers: Mapping[str, str]) -> Span:
        """See `Tracing`."""
        shown = method if method in _METHODS else "HTTP"
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method if method in _METHODS else "_OTHER"
        }
        if route is not None:
            attributes["http.route"] = route
        # In an empty context: a connection's task has none that counts.
        context = _PROPAGATOR.extract(headers, Context())
        name = shown if route is None else f"{shown} {route}"
        return _Span(self._tracer.start_span(name, context, SpanKind.SERVER, attributes), 500)

    def question(self, method: str, url: str) -> Span:
        """See `Tracing`."""
        parts = urlsplit(url)
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method,
            "server.address": parts.hostname or "",
        }
        if parts.port is not None:
            attributes["server.port"] = parts.port
        name = f"{method} {parts.hostname}"
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        return _Span(span, 400)

    def task(self, name: str, counts: Mapping[str, int], origins: Iterable[Origin] = ()) -> Span:
        """See `Tracing`."""
        spans = list(
            {each.span_id: each for each in cast("Iterable[SpanContext]", origins)}.values()
        )
        context = None
        if len(spans) == 1:
            context = set_span_in_context(NonRecordingSpan(spans.pop()))
        attributes = {f"mist.{key}": count for key, count in counts.items()}
        links = [Link(each) for each in spans]
        return _Span(self._tracer.start_span(name, context, attributes=attributes, links=links))

    def origin(self) -> Origin | None:
        """See `Tracing`."""
        context = get_current_span().get_span_context()
        return context if context.is_valid else None

    def headers(self) -> Mapping[str, str]:
        """See `Tracing`."""
        return _headers_of(get_current_span())

    async def aclose(self) -> None:
        """See `Tracing`. A thread may be left behind, until the collector answers or hangs up."""
        with trio.move_on_after(_CLOSE_SECONDS) as scope:
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)
        if scope.cancelled_caught:
            self._give_up()


# Not what OTEL_PROPAGATORS says: baggage, which others wrote, is not for a callout.
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def _headers_of(span: Recorded) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, set_span_in_context(span, Context()))
    if len(headers.get(_STATE, "")) > _MAX_STATE:
        del headers[_STATE]
    return headers


class _Span:
    """A `Span`.

    Args:
        span: as begun.
        bad: the least status that is a failure.
    """

    __slots__ = ("_bad", "_failed", "_span", "_token")

    def __init__(self, span: Recorded, bad: int = 0) -> None:
        self._span = span
        self._bad = bad
        self._failed = False
        self._token: Token[Context] | None = None

    @property
    def trace_id(self) -> str:
        return format_trace_id(self._span.get_span_context().trace_id)

    @property
    def headers(self) -> Mapping[str, str]:
        return _headers_of(self._span)

    def __enter__(self) -> Self:
        self._token = attach(set_span_in_context(self._span))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        assert self._token is not None
        detach(self._token)
        if isinstance(error, Exception):  # a cancellation is none of its failures
            self.failed(type(error).__qualname__)
        self.end()

    def answered(self, status: int) -> None:
        if self._span.is_recording():
            self._span.set_attribute("http.response.status_code", status)
            if status >= self._bad:
                self.failed(str(status))

    def failed(self, reason: str) -> None:
        if self._span.is_recording() and not self._failed:
            self._failed = True
            self._span.set_attribute("error.type", reason)
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()
