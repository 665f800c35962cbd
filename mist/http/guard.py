"""What every request has to pass before a route sees it, and what every response carries.

Who asks is not the question here (see `access`), but from where and how: the name under which
the server was called, the page that calls, the kind and size and speed of a body, how often.
A page can make a browser send requests anywhere; that none of them does harm is decided here.
"""

import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from typing import Any, Final

import attrs
import trio
from starlette.datastructures import Headers, MutableHeaders
from structlog.contextvars import bound_contextvars

from mist.config import Listen
from mist.config.addresses import parse_host
from mist.http.bodies import ARROW, FORM, JSON, NDJSON
from mist.http.problems import Problem
from mist.http.rates import Rates
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins

__all__ = ["Guard", "GuardLimits"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("mist.http")

_CHANGING: Final = {"POST", "PUT", "PATCH", "DELETE"}
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Dont-Chunk, Idempotency-Key, Last-Event-ID, X-Auth-Token, "
    "X-Request-Id, X-SILENCE-LOGGER"
)
_PREFLIGHT_SECONDS: Final = "600"


@attrs.frozen
class GuardLimits:
    """Bounds of a request.

    Attributes:
        body: bytes.
        body_seconds: for all of it to arrive.
    """

    body: int
    body_seconds: float


class Guard:
    """An ASGI application around another.

    Args:
        app: what gets the requests that pass.
        limiter: knows which addresses are limited.
        origins: which pages may ask.
        names: public names of this server.
        limits: bounds of a request.
        rates: requests of each address; none from loopback and trusted proxies. Shared by the
            guards of all listeners, or an address would have as many rates as there are.
    """

    def __init__(
        self,
        app: App,
        limiter: ConnectionLimiter,
        origins: Origins,
        names: Collection[str],
        limits: GuardLimits,
        rates: Rates,
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._origins = origins
        self._names = frozenset(names)
        self._limits = limits
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8)
        body = _Body(receive, self._limits)
        response = _Response(send, self._cors(headers), request_id)
        started = time.perf_counter()
        with bound_contextvars(request=request_id):
            try:
                self._check(scope, headers)
                if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                    await _answer_preflight(response, 200 if _is_bus(scope) else 204)
                else:
                    await self._app(scope, body, response)
            except Problem as problem:
                await problem.response()(scope, receive, response)
            except Exception:
                if not body.failed:
                    raise
                # The peer's fault, found out when an answer had begun: that ends unfinished,
                # and the connection with it.
            finally:
                log.debug(
                    "%s %s",
                    scope["method"],
                    scope["path"],
                    extra={
                        "status": response.status,
                        "seconds": round(time.perf_counter() - started, 6),
                        "peer": scope["state"]["peer"],
                    },
                )

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises a Problem where the request may not pass."""
        listen: Listen = scope["state"]["listen"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_our_name(hosts[0], listen):
            raise Problem(421, "misdirected_request", "this server has another name")
        if scope["method"] in _CHANGING:
            if not self._is_our_page(headers):
                raise Problem(403, "origin_not_allowed", "pages of this origin may not do that")
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            # No page can send a foreign server a DELETE without asking first (Fetch, 3.2.2).
            expected = _kinds_taken(scope, headers)
            if (
                expected is not None
                and kind not in expected
                and (kind or scope["method"] != "DELETE")
            ):
                raise Problem(415, "unsupported_media_type", f"expected {' or '.join(expected)}")
        asker = self._limiter.counted(scope["state"]["peer"])
        wait = self._rates.take(asker) if asker else 0.0
        if wait:
            raise too_often(wait)
        length = headers.get("content-length", "")
        if length and "transfer-encoding" in headers:
            # A proxy may go by the one and we by the other (RFC 9112, 11.2).
            detail = "a body has one length"
            raise Problem(400, "bad_request", detail, {"Connection": "close"})
        if length.isdigit() and int(length) > self._limits.body:
            raise _too_large(self._limits.body)

    def _is_our_name(self, host: str, listen: Listen) -> bool:
        """Whether a Host header names this server. DNS rebinding can't bring an address."""
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdigit():
            name = host
        try:
            name = parse_host(name)
        except ValueError:
            return False
        if name in self._names or name == listen.host:
            return True
        if name == "localhost" or name.endswith(".localhost"):  # which no resolver gives away
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not listen.is_local

    def _is_our_page(self, headers: Headers) -> bool:
        origins = headers.getlist("origin")
        if len(origins) > 1:
            return False
        if headers.get("sec-fetch-site") == "same-origin":
            return True  # only a browser can say so, and the Host is one of ours
        return self._origins.allow(origins[0] if origins else None)

    def _cors(self, headers: Headers) -> dict[str, str]:
        origin = headers.get("origin")
        if origin is None or not self._origins.allow(origin):
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": "Retry-After, X-Request-Id",
        }


def _kinds_taken(scope: Scope, headers: Headers) -> Collection[str] | None:
    """The kinds of body that there may be; None where it may be anything."""
    # None of these can a page send to a foreign server without asking first; but for a form,
    # which therefore needs a header that can't be sent so, either.
    if scope["method"] == "PUT" and str(scope["path"]).startswith("/v1/log/stage/"):
        return (ARROW,)
    if _is_bus(scope):
        return (JSON, FORM) if "x-auth-token" in headers else (JSON,)
    if str(scope["path"]).startswith("/api/") and not _may_be_a_page(headers):
        return None  # guble's clients send what they like
    return (JSON, NDJSON)


def _may_be_a_page(headers: Headers) -> bool:
    """Whether a page may have sent this, and without having asked first."""
    # A browser says where it comes from; and it asks, before it sends a credential of the page's.
    told = "origin" in headers or "sec-fetch-site" in headers or "referer" in headers
    return told and "x-auth-token" not in headers and "authorization" not in headers


def _is_bus(scope: Scope) -> bool:
    return str(scope["path"]).startswith("/message-bus/")


async def _answer_preflight(send: Send, status: int) -> None:
    # Without an allowed origin the browser ignores these, and refuses.
    headers = [
        (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", _ALLOWED_HEADERS.encode()),
        (b"access-control-max-age", _PREFLIGHT_SECONDS.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def too_often(wait: float) -> Problem:
    """The answer to one who asks too often.

    Args:
        wait: seconds after which it may be tried again.
    """
    headers = {"Retry-After": str(int(wait) + 1)}
    return Problem(429, "too_many_requests", "too many requests", headers)


def _too_large(limit: int) -> Problem:
    return Problem(413, "payload_too_large", f"a body has at most {limit} bytes")


class _Body:
    """A request's body as it comes, bounded in size and time.

    Attributes:
        failed: whether a bound was reached, or the peer is gone.
    """

    def __init__(self, receive: Receive, limits: GuardLimits) -> None:
        self._receive = receive
        self._limits = limits
        self._size = 0
        self._complete = False
        self._deadline: float | None = None
        self.failed = False

    async def __call__(self) -> Message:
        if self._complete:  # what comes now is the end of the connection, whenever that is
            return await self._receive()
        try:
            return await self._next()
        except Problem:
            self.failed = True
            raise

    async def _next(self) -> Message:
        if self._deadline is None:
            self._deadline = trio.current_time() + self._limits.body_seconds
        try:
            with trio.fail_at(self._deadline):
                message = await self._receive()
        except trio.TooSlowError:
            raise Problem(
                408, "request_timeout", "the body did not come in time", {"Connection": "close"}
            ) from None
        if message["type"] == "http.disconnect":
            raise Problem(400, "bad_request", "the body is incomplete")  # for the log
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._size > self._limits.body:
            raise _too_large(self._limits.body)
        return message


class _Response:
    """What is sent, with what every response carries."""

    def __init__(self, send: Send, headers: dict[str, str], request_id: str) -> None:
        self._send = send
        self._headers = {
            **headers,
            "X-Request-Id": request_id,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        self.status = 0  # until there is one

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers.setdefault(name, value)
        await self._send(message)
