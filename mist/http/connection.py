"""One HTTP connection: requests read, answered by an ASGI application, kept alive.

A connection is one task: it reads a request, runs the application, writes the response and
begins again. It reads ahead only where the application waits for more of the body or for the end
of the connection, and then within a bound, so that a peer that sends faster than it is answered
waits itself. HTTP/1.1 only: HTTP/2 is for a proxy in front.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import partial
from typing import Any, Final

import attrs
import trio
from starlette.requests import ClientDisconnect

from mist.config import Listen
from mist.http.exchange import Disconnected, Exchange
from mist.http.problems import Problem
from mist.newcomers import Newcomers
from mist.origins import origin_of
from mist.transports.connection_limiter import ConnectionLimiter, Ticket
from mist.transports.forwarding import BadForwarding, Proxies
from mist.transports.handshake import is_upgrade
from mist.transports.http1 import (
    SAFEGUARDS,
    BadRequest,
    RequestHead,
    RequestReader,
    response_head,
)
from mist.transports.streams import ByteStream
from mist.turns import Turns

__all__ = ["BRIEF", "READ", "App", "Connection", "Shared", "refuse"]

log = logging.getLogger("mist.http")

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

READ: Final = 16_384
"""Bytes read of a head at a time."""

BRIEF: Final = 1.0
"""Seconds for an answer to what never became a request."""

_CLOSE: Final = {"Connection": "close"}
_CODES: Final = {
    429: ("too_many_connections", "too many connections"),
    431: ("headers_too_large", "a request's line and headers are too long"),
    500: ("internal_error", "a mistake of the server's; it is logged"),
    501: ("not_implemented", "no such transfer coding"),
}


class _Date:
    """The value of the `Date` header, written once a second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def __call__(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


@attrs.define(eq=False)
class Shared:
    """What all connections of one listener share.

    Attributes:
        app, limiter, listen, turns, newcomers, proxies: as for an `HttpTransport`.
        upgrades: whether a WebSocket's handshake is answered; else it is a request like others.
        max_header: bytes of a request's line and headers.
        idle_seconds: for a request's line and headers to be there, see there.
        note_refused: called for each connection that is refused by a limit.
        note_failed: as for an `HttpTransport`.
        draining: whether each connection ends with the response that it is at.
        waiting: connections between two requests, and until when each may wait, the first one
            first.
        date: the value of the `Date` header.
    """

    app: App
    limiter: ConnectionLimiter
    listen: Listen
    turns: Turns
    newcomers: Newcomers
    proxies: Proxies | None
    upgrades: bool
    max_header: int
    idle_seconds: float
    note_refused: Callable[[], None] = lambda: None
    note_failed: Callable[[str], None] = lambda what: None
    draining: bool = False
    waiting: dict[trio.CancelScope, float] = attrs.field(factory=dict)
    date: Callable[[], bytes] = attrs.field(factory=_Date)


class Connection:
    """One connection, from its first byte to the last request's response.

    Attributes:
        reader: what has arrived, and was not read.
    """

    __slots__ = (
        "_account",
        "_address",
        "_live",
        "_nursery",
        "_proxies",
        "_scope",
        "_shared",
        "_stream",
        "reader",
    )

    def __init__(
        self,
        shared: Shared,
        stream: trio.abc.Stream,
        address: str,
        nursery: trio.Nursery,
    ) -> None:
        self._shared = shared
        self._stream = ByteStream(stream)
        self._address = address
        self._account = shared.turns.account(origin_of(address))
        self._live = False  # whether a request was answered: newcomers come behind others
        self._nursery = nursery
        # Where it is a trusted proxy's: then each request is somebody else's.
        proxies = shared.proxies
        self._proxies = None if proxies is None or not proxies.trust(address) else proxies
        self.reader = RequestReader(shared.max_header)
        self._scope = trio.CancelScope()  # cancelled where no request comes any more

    async def run(self) -> RequestHead | None:
        """Answer requests until the connection is closed.

        Returns:
            A WebSocket's handshake, which has not been answered; then it is not closed.
        """
        try:
            with self._scope:
                while (head := await self._next_head()) is not None:
                    if head.upgrade and self._shared.upgrades and is_upgrade(head):
                        return head
                    if not await self._answer(head):
                        break
        except BadRequest as error:
            await refuse(self._stream, error.status, bodiless=error.bodiless)
        else:
            await self._stream.aclose()
        return None

    async def _next_head(self) -> RequestHead | None:
        """The next request's; None where the connection is to end.

        Raises:
            BadRequest: it is none.
        """
        head = self.reader.next_head()
        if head is not None:
            await trio.lowlevel.checkpoint()  # others have their turn between two of a pipeline
            return head
        shared, scope = self._shared, self._scope
        there: bytes | None = None
        if not self._live and self._stream.is_socket:
            # Its time counts from its first turn, and by then what it says is mostly there.
            await shared.turns.begin(self._account, late=True)
            there = self._stream.receive_now(READ)
        has_turn = self._live or there is not None
        wait = (
            trio.lowlevel.wait_readable
            if self._live
            else partial(shared.newcomers.readable, origin=origin_of(self._address))
        )
        shared.waiting[scope] = trio.current_time() + shared.idle_seconds
        try:
            while head is None:
                data = await self._stream.receive(READ, wait) if there is None else there
                there = None
                if not data:
                    await shared.turns.leave()
                    return None
                if not has_turn and shared.turns.over:  # thousands may begin in one moment
                    # It is not the peer who is waited for, so it has as long again.
                    del shared.waiting[scope]
                    await shared.turns.begin(self._account, late=True)
                    shared.waiting[scope] = trio.current_time() + shared.idle_seconds
                has_turn = True
                self.reader.receive_data(data)
                head = self.reader.next_head()
        finally:
            shared.waiting.pop(scope, None)
        return None if scope.cancel_called else head

    async def _answer(self, head: RequestHead) -> bool:
        """Run the application. Whether the connection can be used again."""
        shared = self._shared
        exchange = Exchange(
            self._stream,
            self.reader,
            head,
            self._nursery,
            keep_alive=not shared.draining,
            date=shared.date,
        )
        state = {
            "listen": shared.listen,
            "peer": self._address,
            "account": self._account,
        }
        tls, claim = shared.listen.tls, None
        if self._proxies is not None:
            try:
                tls, claim = self._forward(self._proxies, head, state)
            except Problem as problem:
                await _send(self._stream, problem, bodiless=head.method == "HEAD")
                return False
        elif shared.proxies is not None and not self._live:
            shared.proxies.note_untrusted(head.headers, self._address)
        scope = exchange.scope(state, tls=tls)
        try:
            if self._live:
                await shared.turns.begin()
            await shared.app(scope, exchange.receive, exchange.send)
            self._live = True
        except Exception as error:
            if not (exchange.broken or exchange.ended) or not _is_disconnect(error):
                log.exception("request failed")
                shared.note_failed("request")
            if not (exchange.broken or exchange.response.begun):
                await refuse(self._stream, 500, bodiless=head.method == "HEAD")
        finally:
            if claim is not None:
                shared.limiter.release(claim)
        if exchange.handed_over is not None:
            exchange.handed_over.abandon()
            exchange.handed_over = None  # a reference cycle, which would wait for the collector
        return exchange.reusable and not shared.draining

    def _forward(
        self, proxies: Proxies, head: RequestHead, state: dict[str, Any]
    ) -> tuple[bool, Ticket | None]:
        """Take a request for that of the client for which a trusted proxy asks.

        Args:
            state: of its scope; is told the client's address, and `prefix`: what the proxy has
                taken from the path.

        Returns:
            Whether the client used TLS; and what counts the client, to be given back.

        Raises:
            Problem: the proxy can't be understood (400), or the client has too many (429).
        """
        shared = self._shared
        try:
            forwarded = proxies.read(head.headers, self._address)
        except BadForwarding as error:
            raise Problem(400, error.code, str(error), _CLOSE) from None
        if forwarded is None:
            return shared.listen.tls, None
        claim = shared.limiter.claim(forwarded.address)
        if claim is None:
            shared.note_refused()
            raise Problem(429, *_CODES[429], {**_CLOSE, "Retry-After": "5"})
        state["peer"] = forwarded.address
        state["prefix"] = forwarded.prefix
        state["account"] = shared.turns.account(origin_of(forwarded.address))
        if forwarded.host is not None:
            head.headers[:] = [each for each in head.headers if each[0] != b"host"]
            head.headers.append((b"host", forwarded.host))
        return shared.listen.tls if forwarded.tls is None else forwarded.tls, claim


def _is_disconnect(error: BaseException) -> bool:
    """Whether that is all that an application's error says."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_disconnect, error.exceptions))
    return isinstance(error, Disconnected | ClientDisconnect)


async def refuse(stream: ByteStream, status: int, *, bodiless: bool = False) -> None:
    """Answer what never became a request, and close."""
    code, detail = _CODES.get(status, ("bad_request", "that is no HTTP request"))
    headers = {**_CLOSE, **({"Retry-After": "5"} if status == 429 else {})}
    await _send(stream, Problem(status, code, detail, headers), bodiless=bodiless)


async def _send(stream: ByteStream, problem: Problem, *, bodiless: bool) -> None:
    """Answer with a problem, and close."""
    response = problem.response()
    length = (b"content-length", b"%d" % len(response.body))
    wire = response_head(response.status_code, [*response.raw_headers, length, *SAFEGUARDS])
    with trio.move_on_after(BRIEF):
        try:
            await stream.send(wire if bodiless else wire + bytes(response.body))
        except trio.BrokenResourceError:
            return
    await stream.aclose()
