"""The HTTP listeners' transport: connections let in, turned away, ended where they take too long.

Time limits: a request's head has to arrive within some seconds of the connection's first turn, or
of the response before; a response must be taken at some pace. Those of a body are the guard's.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Final

import trio

from mist.config import Listen
from mist.http.connection import BRIEF, READ, App, Connection, Shared, refuse
from mist.newcomers import Newcomers
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.forwarding import Proxies
from mist.transports.handshake import is_upgrade
from mist.transports.http1 import BadRequest, RequestReader
from mist.transports.streams import ByteStream, close_now, peer_address
from mist.transports.tls_handshake import ready_stream
from mist.transports.websocket import WebSocketTransport
from mist.turns import Account, Turns

__all__ = ["HttpTransport"]

log = logging.getLogger("mist.http")

_MAX_LATE: Final = 64  # connections at a time that are answered while draining
_MAX_EXCESS: Final = 64  # connections at a time that are listened to only to be refused


class HttpTransport:
    """Serves HTTP on each stream it is given.

    Args:
        app: an ASGI application. In its `scope["state"]` are `listen`, the listener, `peer`, the
            address, and `account`, whom turns of that address are charged to; see
            `mist.http.exchange` for its extension.
        limiter: limits connections.
        listen: the listener.
        turns: in which requests begin where many come at once; None where they needn't.
        newcomers: where connections wait for their first requests; None for where all wait.
        proxies: whose word on whom they ask for counts; None where there are none.
        websocket: what answers WebSocket handshakes; where None they are requests like others,
            whose offer to change the protocol is ignored (RFC 9110, section 7.8).
        max_header: bytes of a request's line and headers.
        handshake_seconds: for TLS.
        idle_seconds: for a request's line and headers to be there, counted from the
            connection's first turn, or from the response before, and once more where its first
            one had to wait for another; `sweep` sees to it.
        note_refused: called for each connection that is refused by a limit, but for WebSockets.
        note_failed: called for each mistake of our own that cost a `request` or a `session`.

    Attributes:
        shared: what its connections share.
    """

    def __init__(
        self,
        app: App,
        limiter: ConnectionLimiter,
        listen: Listen,
        *,
        turns: Turns | None = None,
        newcomers: Newcomers | None = None,
        proxies: Proxies | None = None,
        websocket: WebSocketTransport | None = None,
        max_header: int = 16_384,
        handshake_seconds: float = 10.0,
        idle_seconds: float = 10.0,
        note_refused: Callable[[], None] = lambda: None,
        note_failed: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.shared = Shared(
            app,
            limiter,
            listen,
            turns or Turns(),
            newcomers or Newcomers(),
            proxies,
            websocket is not None,
            max_header,
            idle_seconds,
            note_refused,
            note_failed,
        )
        self._websocket = websocket
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
        late = self.shared.draining
        self._late += late
        ticket = None if late else self.shared.limiter.enter(address)
        crowded = self._late > _MAX_LATE if late else ticket is None
        try:
            if crowded:
                await self._turn_away(stream, address, nursery)
            elif await self._is_ready(stream, address, late=late):
                connection = Connection(self.shared, stream, address, nursery)
                head = await connection.run()
                if head is not None:
                    early = connection.reader.buffered > 0
                    assert self._websocket is not None
                    served = self._websocket.upgrade(stream, head, address, nursery, early=early)
                    del connection, head  # a WebSocket may stay for long
                    await served
        except Exception:
            # Our own mistake, not the peer's: told in full, and it costs this connection only.
            log.exception("connection failed")
            self.shared.note_failed("session")
        finally:
            self._late -= late
            if ticket is not None:
                self.shared.limiter.leave(ticket)
            await close_now(stream)

    async def _is_ready(self, stream: trio.abc.Stream, address: str, *, late: bool) -> bool:
        turns = self.shared.turns
        with nullcontext() if late else self.shared.limiter.aside():  # nothing waits for late ones
            return await ready_stream(stream, self._handshake_seconds, turns, address)

    async def _turn_away(
        self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery
    ) -> None:
        """Say that there are too many: to a WebSocket's client in its own way."""
        self._excess += 1
        try:
            if self._websocket is not None and self._excess <= _MAX_EXCESS:
                reader, head = RequestReader(self.shared.max_header), None
                with trio.move_on_after(BRIEF):
                    while data := await ByteStream(stream).receive(READ):
                        reader.receive_data(data)
                        head = reader.next_head()
                        if head is not None:
                            break
                if head is not None and is_upgrade(head):
                    early = reader.buffered > 0
                    await self._websocket.upgrade(
                        stream, head, address, nursery, early=early, crowded=True
                    )
                    return
            self.shared.note_refused()
            await refuse(ByteStream(stream), 429)
        except BadRequest as error:
            self.shared.note_refused()
            await refuse(ByteStream(stream), error.status, bodiless=error.bodiless)
        finally:
            self._excess -= 1

    async def sweep(self) -> None:
        """End connections that take too long, WebSockets among them. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._websocket is not None:
                nursery.start_soon(self._websocket.sweep)
            await self._end_idle()

    async def _end_idle(self) -> None:
        """End connections whose next request doesn't come in time.

        One timer for all: a deadline of each connection's own, set and cleared for each request,
        would be a tenth of what a small request costs.
        """
        account = Account()
        while True:
            now = trio.current_time()
            due = now + self.shared.idle_seconds  # of one that begins to wait after this
            overdue = []
            for scope, until in self.shared.waiting.items():
                if until > now:
                    due = until
                    break
                overdue.append(scope)
            await self.shared.turns.drive(self._end(overdue, now), account)
            await trio.sleep_until(due)

    def _end(self, scopes: Iterable[trio.CancelScope], now: float) -> Iterator[None]:
        """End connections that wait until then at most, in steps: there may be thousands."""
        waiting = self.shared.waiting
        for scope in scopes:
            if scope in waiting and waiting[scope] <= now:  # no request has come meanwhile
                scope.cancel()
            yield

    async def drain(self) -> None:
        """Close connections that wait for a request, and each after the response it is at.

        A few that connect now are answered, once each, and nothing waits for them: a load
        balancer is told that the server is not ready, rather than refused.
        """
        self.shared.draining = True
        await self.shared.turns.drive(self._end(list(self.shared.waiting), math.inf), Account())
        await trio.lowlevel.checkpoint()
