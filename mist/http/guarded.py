"""A request's body and its response as they pass the `guard`: one bounded, the other with the
headers that every response carries.
"""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final

import attrs
import trio
from starlette.types import Message, Receive, Send

from mist.broker.outbox import Outbox
from mist.http.exchange import HandedOver, HandsOver
from mist.http.problems import Problem
from mist.transports.http1 import SAFEGUARDS

__all__ = [
    "REQUEST_ID",
    "GuardLimits",
    "GuardedBody",
    "GuardedResponse",
    "common_headers",
    "too_large",
]

Headers = tuple[tuple[bytes, bytes], ...]

REQUEST_ID: Final = b"x-request-id"

_VARY: Final = (b"vary", b"Origin")
_ALWAYS: Final[Headers] = (*SAFEGUARDS, _VARY)
_SHARED: Final[Headers] = (
    *(header for header in SAFEGUARDS if header[0] != b"cross-origin-resource-policy"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"access-control-expose-headers", b"Retry-After, X-Request-Id"),
    _VARY,
)

_ALLOWED_ORIGIN: Final = b"access-control-allow-origin"
_NAMES: Final = frozenset(
    {REQUEST_ID, _ALLOWED_ORIGIN, *(name for name, _ in (*_ALWAYS, *_SHARED))}
)


@attrs.frozen
class GuardLimits:
    """Bounds of a request.

    Attributes:
        body: bytes.
        body_seconds: for all of it to arrive.
    """

    body: int
    body_seconds: float


def common_headers(request_id: bytes, origin: bytes | None) -> Headers:
    """What every response to a request carries.

    Args:
        origin: of the page that may read it; None where no page asks, or it may not.
    """
    if origin is None:
        return ((REQUEST_ID, request_id), *_ALWAYS)
    return ((REQUEST_ID, request_id), *_SHARED, (_ALLOWED_ORIGIN, origin))


def too_large(limit: int) -> Problem:
    """What is raised where a body has more bytes than that."""
    return Problem(413, "payload_too_large", f"a body has at most {limit} bytes")


class GuardedBody:
    """A request's body as it comes, bounded in size and time.

    Attributes:
        failed: whether a bound was reached, or the peer is gone.
    """

    def __init__(self, receive: Receive, exchange: Any, limits: GuardLimits) -> None:
        self._receive = receive
        self._exchange = exchange
        self._limits = limits
        self._size = 0
        self._complete = False
        self._deadline: float | None = None
        self.failed = False

    async def __call__(self) -> Message:
        if self._complete:  # what comes now is the end of the connection, whenever that is
            return await self._receive()
        # Mostly it is all there, and no deadline needed.
        message = None if self._exchange is None else self._exchange.receive_nowait()
        try:
            return self._checked(await self._in_time() if message is None else message)
        except Problem:
            self.failed = True
            raise

    async def _in_time(self) -> Message:
        if self._deadline is None:
            self._deadline = trio.current_time() + self._limits.body_seconds
        try:
            with trio.fail_at(self._deadline):
                return await self._receive()
        except trio.TooSlowError:
            raise Problem(
                408, "request_timeout", "the body did not come in time", {"Connection": "close"}
            ) from None

    def _checked(self, message: Message) -> Message:
        if message["type"] == "http.disconnect":
            raise Problem(400, "bad_request", "the body is incomplete, or framed wrongly")
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._size > self._limits.body:
            raise too_large(self._limits.body)
        return message


class GuardedResponse:
    """What is sent, with what every response carries; `send`, and the scope's extension.

    Attributes:
        status: 0 until there is one.
    """

    def __init__(self, send: Send, exchange: HandsOver | None, headers: Headers) -> None:
        self._send = send
        self._exchange = exchange
        self._headers = headers
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._completed(message.get("headers", ()))
        await self._send(message)

    def respond(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Awaitable[None]:
        """See `HandsOver`."""
        assert self._exchange is not None
        self.status = status
        common = self._headers
        present = dict(headers).keys()
        if not present.isdisjoint(_NAMES):
            common = tuple(header for header in common if header[0] not in present)
        return self._exchange.respond(status, [*headers, *common], body)

    def hand_over(
        self, outbox: Outbox, headers: Iterable[tuple[bytes, bytes]], *, chunked: bool = False
    ) -> HandedOver:
        """See `HandsOver`."""
        assert self._exchange is not None
        self.status = 200
        return self._exchange.hand_over(outbox, self._completed(headers), chunked=chunked)

    def _completed(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        found = list(headers)
        present = {name.lower() for name, _ in found}
        found += [header for header in self._headers if header[0] not in present]
        return found
