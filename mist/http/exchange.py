"""One request and its response, between a connection and an ASGI application.

The scope has one extension, `scope["extensions"]["mist.connection"]`, for what ASGI's `receive`
and `send` lack. A response that is all there is written in one call:

    exchange = scope["extensions"]["mist.connection"]
    await exchange.respond(200, headers, body)

And a response may be handed over to the outbox of a session, which then writes on the connection
without a task, by non-blocking calls, as it does for WebSockets:

    body = exchange.hand_over(outbox, [(b"content-type", b"text/event-stream")])
    outbox.reply(ready_event)           deliveries follow by themselves
    await body.until_gone()             the peer has hung up; cancel it to end sooner
    await body.finish(grace)            what is queued is written, then the response ends

`hand_over` queues the response's head, and so comes before anything else is queued, and instead
of `http.response.start`. The body ends with the connection, or with `chunked=True` is a chunked
one: whatever is queued must then be framed by `mist.transports.http1.chunk`, `finish` ends it,
and the connection is kept alive. An application that fails before it hands over answers as usual.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol
from urllib.parse import unquote_to_bytes

import trio
from starlette.types import Message

from mist.broker.outbox import Outbox
from mist.transports.connection import Connection
from mist.transports.http1 import (
    LAST_CHUNK,
    BadRequest,
    RequestHead,
    RequestReader,
    ResponseWriter,
)
from mist.transports.streams import ByteStream

__all__ = ["Disconnected", "Exchange", "HandedOver", "HandsOver"]

_READ: Final = 65_536  # bytes
_READ_CHUNKED: Final = 16_384  # bytes, which may be thousands of chunks
_READ_AHEAD: Final = 65_536  # bytes taken of what follows a request that is being answered
_FULL: Final = 1.0  # seconds until it is looked again whether that counts any more
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}
_DISCONNECT: Final = "http.disconnect"


class Disconnected(OSError):
    """The response can't be written: the peer is gone, or has stopped reading."""


class HandsOver(Protocol):
    """What `scope["extensions"]["mist.connection"]` is."""

    def respond(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Awaitable[None]:
        """See `Exchange.respond`."""

    def hand_over(
        self, outbox: Outbox, headers: Iterable[tuple[bytes, bytes]], *, chunked: bool = False
    ) -> "HandedOver":
        """See `Exchange.hand_over`."""


class Exchange:
    """See the module.

    Args:
        stream: of the connection.
        reader: which has just given out `head`.
        head: the request's.
        nursery: for what writes an outbox; outlives the connection.
        keep_alive: whether the server would answer another request.
        date: the value of the `Date` header, for now.

    Attributes:
        ended: whether nothing more can be read: the peer has ended its side, or its body is
            framed wrongly. It may still read.
        broken: whether nothing more can be written.
        response: as far as it has come.
        handed_over: set where an outbox writes the response.
    """

    __slots__ = (
        "_body_given",
        "_continued",
        "_date",
        "_nursery",
        "_reader",
        "_reading",
        "_stream",
        "broken",
        "ended",
        "handed_over",
        "head",
        "response",
    )

    def __init__(
        self,
        stream: ByteStream,
        reader: RequestReader,
        head: RequestHead,
        nursery: trio.Nursery,
        *,
        keep_alive: bool,
        date: Callable[[], bytes],
    ) -> None:
        self.head = head
        self.ended = self.broken = False
        self.handed_over: HandedOver | None = None
        self.response = ResponseWriter(
            to_head=head.method == "HEAD",
            http_version=head.http_version,
            keep_alive=keep_alive and head.keep_alive,
        )
        self._stream = stream
        self._reader = reader
        self._nursery = nursery
        self._date = date
        self._body_given = False
        self._continued = False
        self._reading: trio.Lock | None = None

    def scope(self, state: dict[str, Any], *, tls: bool) -> dict[str, Any]:
        """The ASGI scope.

        Args:
            state: what the application is told of the connection. It is the scope's from now on.
            tls: whether it is encrypted.
        """
        head = self.head
        path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.http_version,
            "method": head.method,
            "scheme": "https" if tls else "http",
            "path": (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "client": (state["peer"], 0),
            "server": None,
            "state": state,
            "extensions": {"mist.connection": self},
        }

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request after this one."""
        if self.ended or self.broken:
            return False
        if not (self.response.complete and self.response.keep_alive):
            return False
        try:
            self._reader.read_body()  # nobody has, and all of it may be here
        except BadRequest:
            return False
        return self._reader.body_complete

    # ASGI

    def receive_nowait(self) -> Message | None:
        """What `receive` gives, where it needn't wait for the peer."""
        if self.ended or self.broken or self.response.complete:
            return {"type": _DISCONNECT}
        if self._body_given:
            return None
        reader = self._reader
        try:
            piece = reader.read_body()
        except BadRequest:
            self.ended = True
            return {"type": _DISCONNECT}
        self._body_given = reader.body_complete
        if not piece and not self._body_given:
            return None
        return {"type": "http.request", "body": piece, "more_body": not self._body_given}

    async def receive(self) -> Message:
        """The next piece of the body; after all of it, the end of the connection.

        A body that is framed wrongly is the end of the connection, too.
        """
        message = self.receive_nowait()
        if message is None:
            if self._reading is None:
                self._reading = trio.Lock()
            async with self._reading:
                while (message := self.receive_nowait()) is None:
                    await self._read_on()
        return message

    async def _read_on(self) -> None:
        """Take more of what the peer sends; what follows the request, within a bound."""
        if not (self._body_given or self._continued or self.response.begun):
            self._continued = True
            if self.head.expects_continue:
                await self._write(_CONTINUE)
        if self._body_given and self.response.keep_alive and self._reader.buffered >= _READ_AHEAD:
            # The kernel holds the rest back; that the peer is gone shows in the response.
            await trio.sleep(_FULL)
            return
        size = _READ if self.head.length is not None else _READ_CHUNKED
        data = await self._stream.receive(size)
        if not data:
            self.ended = True
        elif not self._body_given or self.response.keep_alive:
            self._reader.receive_data(data)

    async def send(self, message: Message) -> None:
        """Take a part of the response, and write it. A checkpoint unless it is the last one.

        Raises:
            Disconnected: see there.
            RuntimeError, ValueError: the application is wrong.
        """
        response = self.response
        match message["type"]:
            case "http.response.start":
                self._start(message["status"], message.get("headers", ()), lower=False)
            case "http.response.body":
                more = message.get("more_body", False)
                wire = response.body(bytes(message.get("body", b"")), more=more, date=self._date())
                await self._write(wire)
                if more:
                    await trio.lowlevel.checkpoint()
            case kind:
                raise RuntimeError(f"an HTTP response has no {kind}")

    def respond(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Awaitable[None]:
        """Write a whole response. Await it at once; as `send` with the last part of one.

        Args:
            headers: names in lower case.
            body: all of it.

        Raises:
            Disconnected, RuntimeError, ValueError: as `send`.
        """
        self._start(status, headers, lower=True)
        return self._write(self.response.body(body, more=False, date=self._date()))

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]], *, lower: bool) -> None:
        if not self._reader.body_arrived:
            self.response.keep_alive = False  # nobody waits for what isn't read
        self.response.start(status, headers, lower=lower)

    async def _write(self, wire: bytes) -> None:
        if self.broken:
            raise Disconnected
        if not wire:
            return
        # Cancelled in the middle, nothing may follow what was written.
        self.broken = True
        try:
            await self._stream.send(wire)
        except trio.BrokenResourceError as error:
            raise Disconnected from error
        self.broken = False

    # a session's outbox

    def hand_over(
        self, outbox: Outbox, headers: Iterable[tuple[bytes, bytes]], *, chunked: bool = False
    ) -> "HandedOver":
        """Answer 200, with a body that an outbox writes from now on. See the module.

        Args:
            outbox: with nothing queued; its `flush` is set.
            headers: of the response.
            chunked: whether what is queued is framed as chunks; not for HTTP/1.0.

        Raises:
            RuntimeError: the response has started.
        """
        response = self.response
        response.start(200, headers)
        if not (chunked and self._reader.body_arrived):
            response.keep_alive = False
        framing = response.head_of_stream(self._date(), chunked=chunked)
        outbox.reply(framing)
        connection = Connection(self._stream.stream, outbox, self._nursery)
        self.handed_over = HandedOver(self, connection, chunked=chunked)
        connection.flush()
        return self.handed_over


class HandedOver:
    """A response that the outbox of a session writes.

    Attributes:
        connection: the stream joined with the outbox.
    """

    __slots__ = ("_chunked", "_exchange", "connection")

    def __init__(self, exchange: Exchange, connection: Connection, *, chunked: bool) -> None:
        self._exchange = exchange
        self._chunked = chunked
        self.connection = connection

    async def until_gone(self) -> None:
        """Wait until the peer has ended its side; what it sends meanwhile is not lost."""
        while (await self._exchange.receive())["type"] != _DISCONNECT:
            pass

    async def finish(self, grace: float) -> None:
        """Have what is queued written, and end the response. Nothing is written after this.

        The connection is kept alive after a chunked body that the peer has taken; else it is
        closed. Finishes even where it is cancelled.

        Args:
            grace: seconds for the peer to take what is queued.
        """
        response, connection = self._exchange.response, self.connection
        if self._chunked and not connection.outbox.closed:
            connection.outbox.reply(LAST_CHUNK)
            if await connection.flushed(grace):
                response.complete = True
        if not (response.complete and response.keep_alive):
            await connection.finish(grace, linger=True)
            self._exchange.broken = True
        self.abandon()

    def abandon(self) -> None:
        """Write nothing any more: the application has ended, or failed."""
        self.connection.abandon()
