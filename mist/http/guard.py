"""What every request has to pass before a route sees it, and what every response carries.

Who asks is not the question here (see `access`), but from where and how: the name under which
the server was called, the page that calls, the kind and size and speed of a body, how often.
A page can make a browser send requests anywhere; that none of them does harm is decided here.
"""

import logging
import re
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import ip_address
from random import Random
from typing import Final

import trio
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from mist.config import Listen
from mist.config.addresses import parse_host
from mist.http.answers import write
from mist.http.bodies import ARROW, FORM, JSON, NDJSON
from mist.http.exchange import Disconnected
from mist.http.fields import Fields
from mist.http.guarded import (
    REQUEST_ID,
    GuardedBody,
    GuardedResponse,
    GuardLimits,
    common_headers,
    too_large,
)
from mist.http.problems import Problem, mistake
from mist.http.rates import MAX_POLL_DELAY, Rates, too_often
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins

__all__ = ["Guard"]

log = logging.getLogger("mist.http")

# What structlog's `bound_contextvars(request=…)` binds, at a tenth of what that costs.
_request_id: ContextVar[str] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}request")

_CHANGING: Final = {"POST", "PUT", "PATCH", "DELETE"}
# What orchestrators ask, by an address, or by a name that only they know.
_UNDER_ANY_NAME: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_TOKENS: Final = "/v1/tokens/"
_TOKEN_ID: Final = re.compile(r"[0-9a-f]{16}")
_GIVEN_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Dont-Chunk, Idempotency-Key, Last-Event-ID, traceparent, "
    "tracestate, X-Auth-Token, X-Request-Id, X-SILENCE-LOGGER"
)
_PREFLIGHT_SECONDS: Final = "600"
_NAMES_REMEMBERED: Final = 1_024  # Host headers
_MAX_HOST: Final = 261  # characters: a name has 253 at most, and a port follows


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
        declares: whether `app` has a route for a request's path and method. What it has none for
            passes whatever its body is, to be refused there.
    """

    def __init__(
        self,
        app: ASGIApp,
        limiter: ConnectionLimiter,
        origins: Origins,
        names: Collection[str],
        limits: GuardLimits,
        rates: Rates,
        declares: Callable[[Scope], bool] = lambda scope: True,
    ) -> None:
        self._app = app
        self._declares = declares
        self._limiter = limiter
        self._origins = origins
        self._rates = rates
        self._numbers = Random()  # noqa: S311  # of requests: no secrets, and no system call each
        self.configure(names, limits)

    def configure(self, names: Collection[str], limits: GuardLimits) -> None:
        """Change what it was made with, for the requests that come from now on."""
        self._names = frozenset(names)
        self._is_our_name = lru_cache(_NAMES_REMEMBERED)(self._names_us)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        fields = Fields(scope["headers"])
        request_id = fields.get(REQUEST_ID)
        if request_id is None or not _GIVEN_ID.fullmatch(request_id):
            request_id = b"%016x" % self._numbers.getrandbits(64)
        headers = common_headers(request_id, self._reader(fields))
        exchange = scope.get("extensions", {}).get("mist.connection")
        body = GuardedBody(receive, exchange, self._limits)
        response = GuardedResponse(send, exchange, headers)
        if exchange is not None:
            scope["extensions"] = {**scope["extensions"], "mist.connection": response}
        is_logged = log.isEnabledFor(logging.DEBUG)
        started = time.perf_counter() if is_logged else 0.0
        token = _request_id.set(request_id.decode())
        try:
            await self._serve(scope, fields, body, response)
        finally:
            if is_logged:
                log.debug(
                    "%s %s",
                    scope["method"],
                    _shown_path(scope),
                    extra={
                        "status": response.status,
                        "seconds": round(time.perf_counter() - started, 6),
                        "peer": scope["state"]["peer"],
                    },
                )
            _request_id.reset(token)

    async def _serve(
        self, scope: Scope, fields: Fields, body: GuardedBody, response: GuardedResponse
    ) -> None:
        try:
            if wait := self._check(scope, fields):
                await trio.sleep(wait)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in fields:
                await _answer_preflight(response, 200 if _is_bus(scope) else 204)
            else:
                await self._app(scope, body, response)
        except Problem as problem:
            if response.status:  # found out when an answer had begun
                if not body.failed:
                    raise
                return  # the peer's fault: the answer ends unfinished, and the connection with it
            await write(problem.response(), scope, body, response)
        except Exception as error:
            if body.failed:
                return
            if not (response.status or isinstance(error, Disconnected)):
                await write(mistake().response(), scope, body, response)
            raise

    def _check(self, scope: Scope, fields: Fields) -> float:
        """Raises a Problem where the request may not pass; seconds after which it may."""
        listen: Listen = scope["state"]["listen"]
        host = fields.get(b"host", b"")
        # A longer one is not ours, and shall not be remembered.
        is_ours = len(host) <= _MAX_HOST and self._is_our_name(host, listen)
        if b"host" in fields.repeated or not is_ours:
            if b"host" in fields.repeated or scope["path"] not in _UNDER_ANY_NAME:
                raise _misdirected()
            # So that what a page has resolve to this machine is no service on it.
            scope["state"]["other_name"] = True
        is_bus = _is_bus(scope)
        if scope["method"] in _CHANGING:
            if not self._is_our_page(fields):
                raise Problem(403, "origin_not_allowed", "pages of this origin may not do that")
            kind = scope["state"]["media_type"] = fields.media_type
            # No page can send a foreign server a DELETE without asking first (Fetch, 3.2.2).
            expected = _kinds_taken(scope, fields, is_bus=is_bus)
            if (
                expected is not None
                and kind not in expected
                and (kind or scope["method"] != "DELETE")
                and self._declares(scope)
            ):
                raise Problem(415, "unsupported_media_type", f"expected {' or '.join(expected)}")
        asker = self._limiter.counted(scope["state"]["peer"])
        delay = MAX_POLL_DELAY if is_bus else 0.0
        wait = self._rates.take(asker, delay) if asker else 0.0
        if wait > delay:
            raise too_often(wait)
        length = fields.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self._limits.body:
            raise too_large(self._limits.body)
        return wait

    def _names_us(self, raw: bytes, listen: Listen) -> bool:
        """Whether a Host header names this server. DNS rebinding can't bring an address."""
        host = raw.decode("latin-1")
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

    def _is_our_page(self, fields: Fields) -> bool:
        if b"origin" in fields.repeated:
            return False
        if fields.get(b"sec-fetch-site") == b"same-origin":
            return True  # only a browser can say so, and the Host is one of ours
        return self._origins.allow(fields.origin)

    def _reader(self, fields: Fields) -> bytes | None:
        """The origin of a page that may read the response; None where it may not, or none asks."""
        allowed = b"origin" in fields and self._origins.allow(fields.origin)
        return fields[b"origin"] if allowed else None


def _misdirected() -> Problem:
    detail = "this server has another name: give it this one with --server-name, if it is one"
    return Problem(421, "misdirected_request", detail)


def _shown_path(scope: Scope) -> str:
    """The path for the log: as sent, where an encoded space can't begin another field."""
    path: str = scope["path"]
    if path.startswith(_TOKENS) and not _TOKEN_ID.fullmatch(path, len(_TOKENS)):
        return f"{_TOKENS}-"  # a client may send a token's text as its id by mistake
    raw: bytes = scope["raw_path"]
    return raw.decode("latin-1")


def _kinds_taken(scope: Scope, fields: Fields, *, is_bus: bool) -> Collection[str] | None:
    """The kinds of body that there may be; None where it may be anything."""
    # None of these can a page send to a foreign server without asking first; but for a form,
    # which therefore needs a header that can't be sent so, either.
    path: str = scope["path"]
    if scope["method"] == "PUT" and path.startswith("/v1/log/stage/"):
        return (ARROW,)
    if is_bus:
        return (JSON, FORM) if b"x-auth-token" in fields else (JSON,)
    if path.startswith("/api/") and not _may_be_a_page(fields):
        return None  # guble's clients send what they like
    return (JSON, NDJSON)


def _may_be_a_page(fields: Fields) -> bool:
    """Whether a page may have sent this, and without having asked first."""
    # A browser says where it comes from; and it asks, before it sends a credential of the page's.
    told = b"origin" in fields or b"sec-fetch-site" in fields or b"referer" in fields
    return told and b"x-auth-token" not in fields and b"authorization" not in fields


def _is_bus(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith("/message-bus/")


async def _answer_preflight(send: Send, status: int) -> None:
    # Without an allowed origin the browser ignores these, and refuses.
    headers = [
        (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", _ALLOWED_HEADERS.encode()),
        (b"access-control-max-age", _PREFLIGHT_SECONDS.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
