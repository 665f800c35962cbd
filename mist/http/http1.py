"""hypercorn's HTTP/1.1, with what it leaves open closed:

the head        is bounded however it arrives, not only where it comes in pieces
upgrades        are ignored, as HTTP allows (RFC 9110, 7.8): no HTTP/2, no WebSocket
targets         may be whole URLs (RFC 9112, 3.2.2)
errors          of what never became a request have a body, as others do
bodies          that nobody reads keep nobody waiting
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup, _handle
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveEvent,
    ASGISendEvent,
    ConnectionState,
    Scope,
)

from mist.http.problems import Problem

__all__ = ["Connection", "refusal"]

_URL: Final = re.compile(rb"https?://(?P<host>[^/?#]*)(?P<rest>.*)", re.IGNORECASE)
_CODES: Final = {
    429: ("too_many_connections", "too many connections"),
    431: ("headers_too_large", "a request's line and headers are too long"),
    501: ("not_implemented", "no such transfer coding"),
}


def refusal(status: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of the answer to what never became a request."""
    code, detail = _CODES.get(status, ("bad_request", "that is no HTTP request"))
    headers = {"Connection": "close", **({"Retry-After": "5"} if status == 429 else {})}
    response = Problem(status, code, detail, headers).response()
    return response.raw_headers, bytes(response.body)


class _Inbox:
    """What a request's application gets: its body, and the end of the connection.

    hypercorn's own is a queue that the end has to find room in. Where nobody reads the body,
    there is none, and the connection would stay for ever.
    """

    def __init__(self) -> None:
        # One piece, and one in the hands of whoever waits to put it, is all that is held.
        self._inlet, self._outlet = trio.open_memory_channel[ASGIReceiveEvent](1)

    async def put(self, event: ASGIReceiveEvent) -> None:
        if event["type"] == "http.disconnect":
            self._inlet.close()
            return
        with suppress(trio.ClosedResourceError):  # the end has come meanwhile
            await self._inlet.send(event)

    async def get(self) -> ASGIReceiveEvent:
        try:
            return await self._outlet.receive()
        except trio.EndOfChannel:
            return {"type": "http.disconnect"}


class _Tasks(TaskGroup):
    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        inbox = _Inbox()
        self.spawn(
            _handle,
            app,
            config,
            scope,
            inbox.get,
            send,
            trio.to_thread.run_sync,
            trio.from_thread.run,
        )
        return inbox.put


class _Parser(h11.Connection):
    """h11's, which has nothing more to say once a connection is to end.

    What stands behind the last request would be an error otherwise, and its answer lost; or
    hypercorn would wait for its turn, which never comes.

    Attributes:
        ended: whether nothing that comes counts any more.
    """

    ended = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.ended or self.their_state is h11.MUST_CLOSE:
            return h11.NEED_DATA
        return super().next_event()


class _Http1(H11Protocol):
    connection: _Parser

    def __init__(self, app: AppWrapper, config: Config, *rest: Any) -> None:
        super().__init__(app, config, *rest)
        self.connection = _Parser(
            h11.SERVER, max_incomplete_event_size=config.h11_max_incomplete_size
        )

    async def handle(self, event: Event) -> None:
        if isinstance(event, Closed):
            self.connection.ended = True
            await self.can_read.set()
        elif self.connection.ended or self.connection.their_state is h11.MUST_CLOSE:
            return  # it would only be kept
        await super().handle(event)

    async def _maybe_recycle(self) -> None:
        if self.connection.ended:
            await self._close_stream()
        else:
            await super()._maybe_recycle()

    async def _check_protocol(self, event: h11.Request) -> None:
        """No way into HTTP/2 without TLS, which hypercorn would offer here."""

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        size = sum([len(name) + len(value) + 4 for name, value in headers])
        # h11 minds only heads that come in pieces.
        if len(request.target) + size > self.config.h11_max_incomplete_size:
            await self._send_error_response(431, bodiless=request.method == b"HEAD")
            await self.send(Closed())
            return
        kept = [header for header in headers if header[0] != b"upgrade"]
        target = request.target
        url = _URL.fullmatch(target)
        if url is not None:
            # As if to a proxy; then the name in it counts (RFC 9112, 3.2.2).
            target = url["rest"] if url["rest"].startswith(b"/") else b"/" + url["rest"]
            kept = [header for header in kept if header[0] != b"host"]
            kept.append((b"host", url["host"]))
        if len(kept) != len(headers) or target is not request.target:
            request = h11.Request(
                method=request.method,
                target=target,
                headers=kept,
                http_version=request.http_version,
            )
        await super()._create_stream(request)

    async def _send_error_response(self, status_code: int, *, bodiless: bool = False) -> None:
        headers, body = refusal(status_code)
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        if not bodiless:
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class Connection(TCPServer):
    """hypercorn's, but that TLS is done, the peer is known, and HTTP/1.1 is all there is.

    Args:
        app, config, context: as for hypercorn's.
        state: for the application; among it `listen` and `peer`.
        stream: as accepted, its TLS handshake done.
    """

    async def run(self) -> None:
        try:
            async with _Tasks() as group:
                self._task_group = group
                self.protocol = _Http1(  # type: ignore[assignment]
                    self.app,
                    self.config,
                    self.context,
                    group,
                    ConnectionState(self.state),
                    self.state["listen"].tls,
                    (self.state["peer"], 0),
                    None,
                    self.protocol_send,
                )
                await self.protocol.initiate()
                await self.idle_task.restart(group, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass
        finally:
            await self.protocol.handle(Closed())
            await self._close()
