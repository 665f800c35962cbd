"""The HTTP listeners' connections: hypercorn over streams that are accepted here.

hypercorn reads requests, writes responses and keeps connections alive; accepting, limits on
connections, TLS and the end of it all are as for every other listener. HTTP/1.1 only: HTTP/2
would bring its own limits to be minded, and whoever wants it has a proxy in front. WebSockets
are the business of their own listener.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from hypercorn.utils import wrap_app

from mist.config import Listen
from mist.http.http1 import Connection, refusal
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.streams import peer_address, ready_stream

__all__ = ["HttpTransport"]

log = logging.getLogger("mist.http")

_STALLED: Final = 30.0  # seconds without a byte taken, after which a reader is taken for gone
_MOST_LATE: Final = 64  # connections at a time that are answered while draining
_LINGER: Final = 1.0  # seconds for a peer to stop sending what nobody will read


class HttpTransport:
    """Serves HTTP on each stream it is given.

    Args:
        app: an ASGI application. In its `scope["state"]` are `listen`, the listener, and
            `peer`, the address.
        limiter: who may connect.
        listen: the listener.
        max_header: bytes of a request's line and headers.
        handshake_seconds: for TLS.
        idle_seconds: for a request's line and headers to be there, counted from the
            connection's beginning, or from the response before.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        limiter: ConnectionLimiter,
        listen: Listen,
        *,
        max_header: int = 16_384,
        handshake_seconds: float = 10.0,
        idle_seconds: float = 10.0,
    ) -> None:
        self._app = wrap_app(app, 0, "asgi")
        self._limiter = limiter
        self._listen = listen
        self._handshake_seconds = handshake_seconds
        self._context = WorkerContext(None)
        self._draining = False
        self._late = 0  # connections that came while draining
        self._config = HypercornConfig()
        self._config.h11_max_incomplete_size = max_header
        self._config.keep_alive_timeout = idle_seconds
        self._config.include_server_header = False
        self._config.accesslog = None
        self._config.errorlog = log

    async def handle(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        """Serve one connection until it ends. Raises nothing but `trio.Cancelled`.

        Args:
            stream: as accepted.
            nursery: as for other transports; nothing is started in it.
        """
        address = peer_address(stream)
        late = self._draining
        self._late += late
        ticket = None if late else self._limiter.enter(address)
        try:
            if self._late > _MOST_LATE if late else ticket is None:
                with trio.move_on_after(1.0):
                    await stream.send_all(_too_many())
                    await _Patient(stream).aclose()
            elif await ready_stream(stream, self._handshake_seconds):
                await self._serve(stream, address)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Exception:
            # Our own mistake, not the peer's: told in full, and it costs this connection only.
            log.exception("connection failed")
        finally:
            self._late -= late
            if ticket is not None:
                self._limiter.leave(ticket)
            await trio.aclose_forcefully(stream)

    async def drain(self) -> None:
        """Close connections that wait for a request, and each after the response it is at.

        A few that come now are answered, once each, and nobody waits for them: a load balancer
        shall hear that the server is not ready, and not guess it from refused connections.
        """
        self._draining = True
        self._config.keep_alive_max_requests = 0
        draining, self._context = self._context, WorkerContext(None)
        await draining.terminated.set()

    async def _serve(self, stream: trio.abc.Stream, address: str) -> None:
        state = LifespanState({"listen": self._listen, "peer": address})
        connection = Connection(
            self._app,
            self._config,
            self._context,
            ConnectionState(state),
            _Patient(stream),  # type: ignore[arg-type]
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_at_cancellation, stream)
            await connection.run()
            nursery.cancel_scope.cancel()


async def _close_at_cancellation(stream: trio.abc.Stream) -> None:
    # hypercorn shields its writes: only a closed stream ends one that its reader doesn't take.
    try:
        await trio.sleep_forever()
    finally:
        await trio.aclose_forcefully(stream)


class _Patient(trio.abc.Stream):
    """A stream whose writes don't wait for ever, and whose end loses nothing.

    Where a socket is closed while there is something unread, the peer's kernel may throw away
    what was written last (RFC 9112, 9.6): the very answer that says why. So what still comes
    is taken, for a moment.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._reading = trio.Lock()
        self._closing = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            piece, view = view[:65_536], view[65_536:]
            with trio.move_on_after(_STALLED) as scope:
                await self._stream.send_all(piece)
            if scope.cancelled_caught:
                await trio.aclose_forcefully(self._stream)
                raise trio.BrokenResourceError("the peer has stopped reading")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        async with self._reading:
            while True:
                data = await self._stream.receive_some(max_bytes)
                if not data or not self._closing:
                    return data

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        if not self._closing:
            self._closing = True
            with trio.move_on_after(_LINGER):
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self.send_eof()
                    await self.receive_some()  # returns at the end of what comes
        with trio.move_on_after(_LINGER):
            await self._stream.aclose()


def _too_many() -> bytes:
    headers, body = refusal(429)
    lines = [b"HTTP/1.1 429 Too Many Requests", *[b"%b: %b" % header for header in headers]]
    return b"\r\n".join([*lines, b"", body])
