"""Traces: what a server tells of its requests, questions, hooks and commits.

    Tracing     begins spans; None stands for it wherever there is no telemetry
    Span        one of them: a context manager, in which it is the current one of its task

The contract only. `opening` makes what meets it with OpenTelemetry, which is imported there and
nowhere else, so a server without telemetry neither needs it nor pays for it. What begins in the
block of a span, in the same task or in one that is started there, belongs to the same trace.

No span is begun for a delivery, nor for what is published over lines: a commit is one for many.
And none has a path, a query, a header, an address of a client or the text of an error, any of
which may be a secret: only routes, names of servers, statuses, counts and names of errors.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Origin", "Span", "Tracing"]

Origin = object
"""A span that others refer to."""


class Span(Protocol):
    """See the module. Ends with its block; an exception that leaves it is its failure."""

    @property
    def trace_id(self) -> str:
        """Of its trace, 32 hexadecimal digits."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What has others continue its trace: `traceparent`, and `tracestate` if there is one."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

    def answered(self, status: int) -> None:
        """Note the HTTP status of a request, or of a question's answer."""

    def failed(self, reason: str) -> None:
        """Note a failure, in one word; the first one counts."""

    def end(self) -> None:
        """End it before its block does."""


class Tracing(Protocol):
    """See the module."""

    def request(self, method: str, route: str | None, headers: Mapping[str, str]) -> Span:
        """A request that is to be answered.

        Args:
            method: as the client gave it.
            route: the pattern of its path, such as `/v1/tokens/{id}`; None where there is none.
            headers: `traceparent` and `tracestate` of it: the trace that it belongs to.
        """

    def question(self, method: str, url: str) -> Span:
        """A request to another server, that is to be sent with the span's `headers`."""

    def task(self, name: str, counts: Mapping[str, int], origins: Iterable[Origin] = ()) -> Span:
        """Something else.

        Args:
            counts: what it is about, by name.
            origins: what it is done for. It is a part of the trace where that is one span only,
                and else refers to each.
        """

    def origin(self) -> Origin | None:
        """The current span; None where there is none. Cheap."""

    def headers(self) -> Mapping[str, str]:
        """Those of the current span; empty where there is none."""

    async def aclose(self) -> None:
        """Have what has ended sent, in a bounded time, whether it could be or not."""
