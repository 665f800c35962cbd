"""How bytes travel: a stream opened, TLS and WebSocket laid over it where the URL says so.

Foreign errors end here: whatever goes wrong becomes `ConnectError` while connecting and
`ConnectionLost` afterwards, or a `Rejected` where trying again can't help.
"""

import abc
import ssl
from typing import Final

import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
)

from mist.client.address import Address
from mist.client.errors import AccessDenied, Rejected
from mist.errors import ClientError, ConnectError, ConnectionLost

__all__ = ["LineWire", "Wire", "open_wire", "rejection"]

_READ_SIZE: Final = 65_536  # bytes
_MAX_FRAME: Final = 16_777_216  # characters in a WebSocket message, deliveries included
_BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Wire(abc.ABC):
    """Pieces out, chunks in."""

    @abc.abstractmethod
    async def send(self, pieces: list[bytes]) -> None:
        """Write pieces in order. Cancelled or failed, it has written any part of them.

        Raises:
            ConnectionLost: the connection broke.
        """

    @abc.abstractmethod
    async def receive(self) -> bytes:
        """What comes next; never empty.

        Raises:
            ConnectionLost: the connection ended.
            Rejected: the server ended it for a reason that lasts.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close, with a goodbye where there is one."""


class LineWire(Wire):
    """A stream of bytes as it is."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, pieces: list[bytes]) -> None:
        try:
            await self._stream.send_all(b"".join(pieces))
        except _BROKEN as error:
            raise ConnectionLost(f"connection lost: {_reason(error)}") from error

    async def receive(self) -> bytes:
        try:
            data = await self._stream.receive_some(_READ_SIZE)
        except _BROKEN as error:
            raise ConnectionLost(f"connection lost: {_reason(error)}") from error
        if not data:
            raise ConnectionLost("connection lost: closed by the server")
        return bytes(data)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        except _BROKEN:
            await trio.aclose_forcefully(self._stream)


class _FrameWire(Wire):
    """A WebSocket: a piece is a text message."""

    def __init__(self, websocket: WebSocketConnection, stream: trio.abc.Stream) -> None:
        self._websocket = websocket
        self._stream = stream

    async def send(self, pieces: list[bytes]) -> None:
        try:
            for piece in pieces:
                await self._websocket.send_message(piece.decode())
        except ConnectionClosed:
            # The reader knows better why, and has yet to look: it ends the connection.
            await trio.sleep_forever()

    async def receive(self) -> bytes:
        try:
            message = await self._websocket.get_message()
        except ConnectionClosed as closed:
            raise _closing(closed) from closed
        return message if isinstance(message, bytes) else message.encode()

    async def aclose(self) -> None:
        try:
            await self._websocket.aclose()
        finally:
            await trio.aclose_forcefully(self._stream)


def _closing(closed: ConnectionClosed) -> ClientError:
    """What a close code means for a client."""
    if closed.reason is None:
        return ConnectionLost()
    code, reason = closed.reason.code, closed.reason.reason or closed.reason.name.lower()
    if code in (4401, 4403):
        return AccessDenied(reason)
    if code == 4400:
        return Rejected(reason)
    return ConnectionLost(f"connection lost: {reason} ({code})")


def rejection(rejected: ConnectionRejected) -> ClientError:
    """What an HTTP status in the place of a WebSocket means."""
    status = rejected.status_code
    if status in (401, 403):
        return AccessDenied(f"access denied (HTTP {status})")
    if status == 400:
        return Rejected("bad request (HTTP 400)")
    return ConnectError(f"the server refused the WebSocket (HTTP {status})")


def _reason(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, OSError):
        return (cause.strerror or str(cause)).lower()
    return "connection broken"


async def open_wire(
    address: Address,
    tasks: trio.Nursery,
    *,
    ssl_context: ssl.SSLContext | None = None,
    token: str | None = None,
) -> Wire:
    """Connect.

    Args:
        address: where to.
        tasks: for the WebSocket library's reader. It raises `ConnectionRejected` in there;
            give it to `rejection`.
        ssl_context: for `tcps` and `wss`; None is the system's certificates.
        token: sent in the X-Auth-Token header of a WebSocket request.

    Raises:
        ConnectError, Rejected: see the module.
    """
    stream = await _open_stream(address, ssl_context)
    if address.protocol == "tcp":
        return LineWire(stream)
    try:
        headers = [] if token is None else [(b"X-Auth-Token", token.encode())]
        websocket = await wrap_client_stream(
            tasks,
            stream,  # type: ignore[arg-type,unused-ignore]  # any stream will do
            address.authority,
            address.resource,
            subprotocols=["mist.v1"],
            extra_headers=headers,
            max_message_size=_MAX_FRAME,
            receive_buffer_size=_READ_SIZE,
        )
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return _FrameWire(websocket, stream)


async def _open_stream(address: Address, context: ssl.SSLContext | None) -> trio.abc.Stream:
    where = address.path or address.authority
    stream: trio.abc.Stream
    try:
        if address.path:
            stream = await trio.open_unix_socket(address.path)
        else:
            stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise ConnectError(f"{where}: {_reason(error)}") from error
    if not address.tls:
        return stream
    context = ssl.create_default_context() if context is None else context
    secure = trio.SSLStream(stream, context, server_hostname=address.host, https_compatible=True)
    try:
        await secure.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            raise Rejected(f"{where}: {error.__cause__.verify_message}") from error
        if isinstance(error, _BROKEN):
            raise ConnectError(f"{where}: TLS handshake failed") from error
        raise
    return secure
