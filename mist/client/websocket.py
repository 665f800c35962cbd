"""WebSocket transport: the handshake, and a text message for each piece.

wsproto implements the protocol. There is no reader task here: the task that waits for the server
is the one that notices when it hangs up, during the handshake and later.
"""

from collections import deque
from contextlib import suppress
from typing import Final

import anyio
import anyio.abc
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import RemoteProtocolError

from mist.client.errors import AccessDenied, Rejected
from mist.client.transport import Transport, read_some, write_all
from mist.errors import ClientError, ConnectError, ConnectionLost

__all__ = ["WebSocketTransport", "open_websocket"]

_MAX_MESSAGE: Final = 16_777_216  # characters; a server's limit may be raised, and JSON escapes
_HTTP: Final = b"HTTP/"
_NORMAL: Final = 1000
_TOO_BIG: Final = 1009


async def open_websocket(
    stream: anyio.abc.ByteStream, *, host: str, resource: str, token: str | None
) -> "WebSocketTransport":
    """Do the handshake on a new stream. Failed or cancelled, the stream can't be used further.

    Args:
        stream: connected, and encrypted where it is to be.
        host: the Host header.
        resource: path and query.
        token: sent in the X-Auth-Token header.

    Raises:
        ConnectionLost: the server hung up before it answered.
        ConnectError: it, or a proxy, answered with an HTTP status; the text names it.
        AccessDenied, Rejected: likewise, with a permanent one.
    """
    websocket = WSConnection(ConnectionType.CLIENT)
    headers = [] if token is None else [(b"X-Auth-Token", token.encode())]
    request = Request(host=host, target=resource, subprotocols=["mist.v1"], extra_headers=headers)
    transport = WebSocketTransport(websocket, stream)
    await transport.transmit(websocket.send(request))
    data = await transport.read()
    if not (data.startswith(_HTTP) or _HTTP.startswith(data)):
        # A server of another protocol may never send the end of a response head.
        raise ConnectError("the server does not speak WebSocket")
    while True:
        broken: Exception | None = None
        try:
            websocket.receive_data(data)  # bounded: its HTTP parser ends a head that is too long
        except (RemoteProtocolError, ValueError) as error:
            broken = error
        # What is malformed may come after a complete head.
        for event in websocket.events():
            if isinstance(event, AcceptConnection):
                await transport.take_events()
                return transport
            if isinstance(event, RejectConnection):
                # The head is enough: its body may be long, or cut short.
                raise _rejection(event.status_code)
        if broken is not None:
            raise ConnectError(f"the server does not speak WebSocket: {broken}") from broken
        data = await transport.read()


def _rejection(status: int) -> ClientError:
    """The error for an HTTP status in place of a WebSocket."""
    if status in (401, 403):
        return AccessDenied(f"access denied (HTTP {status})")
    if status == 400:
        return Rejected("bad request (HTTP 400)")
    return ConnectError(f"the server refused the WebSocket (HTTP {status})")


class WebSocketTransport(Transport):
    """An open WebSocket."""

    def __init__(self, websocket: WSConnection, stream: anyio.abc.ByteStream) -> None:
        self._websocket = websocket
        self._stream = stream
        self._write_lock = anyio.Lock()  # the reader writes too: it answers pings
        self._arrived: deque[bytes] = deque()
        self._parts: list[bytes] = []  # of an incomplete message
        self._size = 0  # characters in them
        self._end: ClientError | None = None

    async def send(self, pieces: list[bytes]) -> None:
        if not self._is(ConnectionState.OPEN):
            # The reader will find the reason, and end the connection.
            await anyio.sleep_forever()
        frames = [self._websocket.send(TextMessage(data=piece.decode())) for piece in pieces]
        await self.transmit(b"".join(frames))

    async def receive(self) -> bytes:
        while not self._arrived:
            if self._end is not None:
                raise self._end
            self._websocket.receive_data(await self.read())
            await self.take_events()
        return self._arrived.popleft()

    async def take_events(self) -> None:
        """Handle the events read so far; some may have come with the handshake."""
        for event in self._websocket.events():
            match event:
                case TextMessage(data=text):
                    await self._take_part(text.encode(), len(text), event.message_finished)
                case BytesMessage(data=raw):
                    await self._take_part(bytes(raw), len(raw), event.message_finished)
                case Ping():
                    await self._answer(event.response())
                case CloseConnection(code=code, reason=reason):
                    self._end = _closing(code, reason)
                    await self._answer(event.response())
            if self._end is not None:
                return

    async def _take_part(self, part: bytes, size: int, last: bool) -> None:
        self._size += size
        if self._size > _MAX_MESSAGE:
            text = f"the server sent a message of more than {_MAX_MESSAGE:,} characters"
            self._end = ConnectionLost(f"connection lost: {text}")
            self._parts.clear()
            await self._answer(CloseConnection(_TOO_BIG, "message too big"))
            return
        if part:  # otherwise a peer could make us keep any number of empty ones
            self._parts.append(part)
        if last:
            self._arrived.append(b"".join(self._parts))
            self._parts.clear()
            self._size = 0

    async def _answer(self, event: Event) -> None:
        if not self._is(ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            return
        with suppress(ConnectionLost):  # what arrived before is read first
            await self.transmit(self._websocket.send(event))

    async def aclose(self) -> None:
        try:
            if self._is(ConnectionState.OPEN):
                await self.transmit(self._websocket.send(CloseConnection(_NORMAL)))
                while self._is(ConnectionState.LOCAL_CLOSING):
                    self._websocket.receive_data(await self.read())
                    for _ in self._websocket.events():
                        pass
        except ConnectionLost:
            pass
        finally:
            await anyio.aclose_forcefully(self._stream)

    def _is(self, *states: ConnectionState) -> bool:
        return self._websocket.state in states

    # the stream

    async def read(self) -> bytes:
        """The next bytes; never empty. Raises `ConnectionLost` at their end."""
        return await read_some(self._stream)

    async def transmit(self, data: bytes) -> None:
        """Write bytes. Raises `ConnectionLost` where the stream is broken."""
        async with self._write_lock:
            await write_all(self._stream, data)


def _closing(code: int, reason: str | None) -> ClientError:
    """The error for a close code."""
    text = reason or "closed by the server"
    if code == 4401:
        unknown = "the token is unknown, or was revoked"
        return AccessDenied(f"access denied: {unknown if text == 'unauthorized' else text}")
    if code == 4403:
        return AccessDenied(f"access denied: {text}")
    if code == 4400:
        return Rejected(text)
    return ConnectionLost(f"connection lost: {text} ({int(code)})")
