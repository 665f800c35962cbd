"""The HTTP listeners' connections: requests read, answered by an ASGI application, kept alive.

A connection is one task: it reads a request, runs the application, writes the response and
begins again. It reads ahead only where the application waits for more of the body or for the end
of the connection, and then within a bound, so that a peer that sends faster than it is answered
waits itself. HTTP/1.1 only: HTTP/2 is for a proxy in front.

Time limits: a request's head has to arrive within some seconds of the connection's beginning, or
of the response before; a response must be taken at some pace. Those of a body are the guard's.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, Final

import trio
from starlette.requests import ClientDisconnect

from mist.config import Listen
from mist.http.exchange import Disconnected, Exchange
from mist.http.problems import Problem
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
from mist.transports.streams import ByteStream, close_now, peer_address, ready_stream
from mist.transports.websocket import WebSocketTransport
from mist.turns import Turns

__all__ = ["HttpTransport"]

log = logging.getLogger("mist.http")

App = Callable[[Any, Any, Any], Awaitable[None]]

_READ: Final = 16_384  # bytes read of a head at a time
_MAX_LATE: Final = 64  # connections at a time that are answered while draining
_MAX_EXCESS: Final = 64  # connections at a time that are listened to only to be refused
_BRIEF: Final = 1.0  # seconds for that, and for the answer
_CLOSE: Final = {"Connection": "close"}
_CODES: Final = {
    429: ("too_many_connections", "too many connections"),
    431: ("headers_too_large", "a request's line and headers are too long"),
    500: ("internal_error", "a mistake of the server's; it is logged"),
    501: ("not_implemented", "no such transfer coding"),
}


class HttpTransport:
    """Serves HTTP on each stream it is given.

    Args:
        app: an ASGI application. In its `scope["state"]` are `listen`, the listener, `peer`, the
            address, and `account`, whom turns of that address are charged to; see
            `mist.http.exchange` for its extension.
        limiter: limits connections.
        listen: the listener.
        turns: in which requests begin where many come at once; None where they needn't.
        proxies: whose word on whom they ask for counts; None where there are none.
        websocket: what answers WebSocket handshakes; where None they are requests like others,
            whose offer to change the protocol is ignored (RFC 9110, section 7.8).
        max_header: bytes of a request's line and headers.
        handshake_seconds: for TLS.
        idle_seconds: for a request's line and headers to be there, counted from the
            connection's first turn, or from the response before, and once more where its first
            one had to wait for another; `sweep` sees to it.
    """

    def __init__(
        self,
        app: App,
        limiter: ConnectionLimiter,
        listen: Listen,
        *,
        turns: Turns | None = None,
        proxies: Proxies | None = None,
        websocket: WebSocketTransport | None = None,
        max_header: int = 16_384,
        handshake_seconds: float = 10.0,
        idle_seconds: float = 10.0,
    ) -> None:
        self.app = app
        self.listen = listen
        self.turns = turns or Turns()
        self.websocket = websocket
        self.proxies = proxies
        self.max_header = max_header
        self.idle_seconds = idle_seconds
        self.draining = False
        self.date = _Date()
        # Connections between two requests, and until when each may wait, the first one first.
        self.waiting: dict[trio.CancelScope, float] = {}
        self.limiter = limiter
        self._handshake_seconds = handshake_seconds
        self._late = 0  # connections that came while draining
        self._excess = 0  # connections that are being refused

    async def handle(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        """Serve one connection until it ends. Raises nothing but `trio.Cancelled`.

        Args:
            stream: as accepted.
            nursery: for what writes an outbox; outlives the connection.
        """
        address = peer_address(stream)
        late = self.draining
        self._late += late
        ticket = None if late else self.limiter.enter(address)
        crowded = self._late > _MAX_LATE if late else ticket is None
        try:
            if crowded:
                await self._turn_away(stream, address, nursery)
            elif await ready_stream(stream, self._handshake_seconds):
                connection = _Connection(self, stream, address, nursery)
                head = await connection.run()
                if head is not None:
                    early = connection.reader.buffered > 0
                    assert self.websocket is not None
                    served = self.websocket.upgrade(stream, head, address, nursery, early=early)
                    del connection, head  # a WebSocket may stay for long
                    await served
        except Exception:
            # Our own mistake, not the peer's: told in full, and it costs this connection only.
            log.exception("connection failed")
        finally:
            self._late -= late
            if ticket is not None:
                self.limiter.leave(ticket)
            await close_now(stream)

    async def _turn_away(
        self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery
    ) -> None:
        """Say that there are too many: to a WebSocket's client in its own way."""
        self._excess += 1
        try:
            if self.websocket is not None and self._excess <= _MAX_EXCESS:
                reader, head = RequestReader(self.max_header), None
                with trio.move_on_after(_BRIEF):
                    while data := await ByteStream(stream).receive(_READ):
                        reader.receive_data(data)
                        head = reader.next_head()
                        if head is not None:
                            break
                if head is not None and is_upgrade(head):
                    early = reader.buffered > 0
                    await self.websocket.upgrade(
                        stream, head, address, nursery, early=early, crowded=True
                    )
                    return
            await _refuse(ByteStream(stream), 429)
        except BadRequest as error:
            await _refuse(ByteStream(stream), error.status, bodiless=error.bodiless)
        finally:
            self._excess -= 1

    async def sweep(self) -> None:
        """End connections that take too long, WebSockets among them. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            if self.websocket is not None:
                nursery.start_soon(self.websocket.sweep)
            await self._end_idle()

    async def _end_idle(self) -> None:
        """End connections whose next request doesn't come in time.

        One timer for all: a deadline of each connection's own, set and cleared for each request,
        would be a tenth of what a small request costs.
        """
        while True:
            now = trio.current_time()
            due = now + self.idle_seconds  # of one that begins to wait after this
            for scope, until in self.waiting.items():
                if until > now:
                    due = until
                    break
                scope.cancel()
            await trio.sleep_until(due)

    async def drain(self) -> None:
        """Close connections that wait for a request, and each after the response it is at.

        A few that connect now are answered, once each, and nothing waits for them: a load
        balancer is told that the server is not ready, rather than refused.
        """
        self.draining = True
        for scope in list(self.waiting):
            scope.cancel()
        await trio.lowlevel.checkpoint()


class _Connection:
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
        "_stream",
        "_transport",
        "reader",
    )

    def __init__(
        self,
        transport: HttpTransport,
        stream: trio.abc.Stream,
        address: str,
        nursery: trio.Nursery,
    ) -> None:
        self._transport = transport
        self._stream = ByteStream(stream)
        self._address = address
        self._account = transport.turns.account(f"http {address}")
        self._live = False  # whether a request was answered: newcomers come behind others
        self._nursery = nursery
        # Where it is a trusted proxy's: then each request is somebody else's.
        proxies = transport.proxies
        self._proxies = None if proxies is None or not proxies.trust(address) else proxies
        self.reader = RequestReader(transport.max_header)
        self._scope = trio.CancelScope()  # cancelled where no request comes any more

    async def run(self) -> RequestHead | None:
        """Answer requests until the connection is closed.

        Returns:
            A WebSocket's handshake, which has not been answered; then it is not closed.
        """
        websocket = self._transport.websocket
        try:
            with self._scope:
                while (head := await self._next_head()) is not None:
                    if head.upgrade and websocket is not None and is_upgrade(head):
                        return head
                    if not await self._answer(head):
                        break
        except BadRequest as error:
            await _refuse(self._stream, error.status, bodiless=error.bodiless)
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
        transport, scope = self._transport, self._scope
        there: bytes | None = None
        if not self._live and self._stream.is_socket:
            # Before it is waited for: of thousands that begin in one moment, what they say would
            # wake them all in one pass, only to wait for their turns then.
            await transport.turns.begin(late=True)
            there = self._stream.receive_now(_READ)
        has_turn = self._live or there is not None
        transport.waiting[scope] = trio.current_time() + transport.idle_seconds
        try:
            while head is None:
                data = await self._stream.receive(_READ) if there is None else there
                there = None
                if not data:
                    await transport.turns.leave()
                    return None
                if not has_turn and transport.turns.over:  # thousands may begin in one moment
                    # It is not the peer who is waited for, so it has as long again.
                    del transport.waiting[scope]
                    await transport.turns.begin(late=True)
                    transport.waiting[scope] = trio.current_time() + transport.idle_seconds
                has_turn = True
                self.reader.receive_data(data)
                head = self.reader.next_head()
        finally:
            transport.waiting.pop(scope, None)
        return None if scope.cancel_called else head

    async def _answer(self, head: RequestHead) -> bool:
        """Run the application. Whether the connection can be used again."""
        transport = self._transport
        exchange = Exchange(
            self._stream,
            self.reader,
            head,
            self._nursery,
            keep_alive=not transport.draining,
            date=transport.date,
        )
        state = {
            "listen": transport.listen,
            "peer": self._address,
            "account": self._account,
        }
        tls, claim = transport.listen.tls, None
        if self._proxies is not None:
            try:
                tls, claim = self._forward(self._proxies, head, state)
            except Problem as problem:
                await _send(self._stream, problem, bodiless=head.method == "HEAD")
                return False
        scope = exchange.scope(state, tls=tls)
        try:
            if self._live:
                await transport.turns.begin()
            await transport.app(scope, exchange.receive, exchange.send)
            self._live = True
        except Exception as error:
            if not (exchange.broken or exchange.ended) or not _is_disconnect(error):
                log.exception("request failed")
            if not (exchange.broken or exchange.response.begun):
                await _refuse(self._stream, 500, bodiless=head.method == "HEAD")
        finally:
            if claim is not None:
                transport.limiter.release(claim)
        if exchange.handed_over is not None:
            exchange.handed_over.abandon()
            exchange.handed_over = None  # a reference cycle, which would wait for the collector
        return exchange.reusable and not transport.draining

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
        transport = self._transport
        try:
            forwarded = proxies.read(head.headers, self._address)
        except BadForwarding as error:
            raise Problem(400, error.code, str(error), _CLOSE) from None
        if forwarded is None:
            return transport.listen.tls, None
        claim = transport.limiter.claim(forwarded.address)
        if claim is None:
            raise Problem(429, *_CODES[429], {**_CLOSE, "Retry-After": "5"})
        state["peer"] = forwarded.address
        state["prefix"] = forwarded.prefix
        state["account"] = transport.turns.account(f"http {forwarded.address}")
        if forwarded.host is not None:
            head.headers[:] = [each for each in head.headers if each[0] != b"host"]
            head.headers.append((b"host", forwarded.host))
        return transport.listen.tls if forwarded.tls is None else forwarded.tls, claim


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


def _is_disconnect(error: BaseException) -> bool:
    """Whether that is all that an application's error says."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_disconnect, error.exceptions))
    return isinstance(error, Disconnected | ClientDisconnect)


async def _refuse(stream: ByteStream, status: int, *, bodiless: bool = False) -> None:
    """Answer what never became a request, and close."""
    code, detail = _CODES.get(status, ("bad_request", "that is no HTTP request"))
    headers = {**_CLOSE, **({"Retry-After": "5"} if status == 429 else {})}
    await _send(stream, Problem(status, code, detail, headers), bodiless=bodiless)


async def _send(stream: ByteStream, problem: Problem, *, bodiless: bool) -> None:
    """Answer with a problem, and close."""
    response = problem.response()
    length = (b"content-length", b"%d" % len(response.body))
    wire = response_head(response.status_code, [*response.raw_headers, length, *SAFEGUARDS])
    with trio.move_on_after(_BRIEF):
        try:
            await stream.send(wire if bodiless else wire + bytes(response.body))
        except trio.BrokenResourceError:
            return
    await stream.aclose()
