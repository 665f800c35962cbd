"""Dialing: open a stream, then TLS and the WebSocket handshake where the URL says so."""

import ssl

import anyio
import anyio.abc
from anyio.streams.tls import TLSStream

from mist.client.address import Address
from mist.client.errors import Rejected
from mist.client.fork import cut_off_in_children
from mist.client.transport import BROKEN, StreamTransport, Transport, reason, unreachable
from mist.client.websocket import open_websocket
from mist.errors import ConnectError

__all__ = ["open_transport"]


async def open_transport(
    address: Address, *, ssl_context: ssl.SSLContext | None = None, token: str | None = None
) -> Transport:
    """Connect to a server.

    Args:
        address: the server.
        ssl_context: for `tcps` and `wss`; None is the system's certificates.
        token: what a WebSocket handshake presents.

    Raises:
        ConnectError, ConnectionLost: the attempt failed; another one may succeed.
        Rejected: another attempt would fail too.
    """
    stream = await _open_stream(address, ssl_context)
    if address.protocol == "tcp":
        return StreamTransport(stream)
    try:
        return await open_websocket(
            stream, host=address.authority, resource=address.resource, token=token
        )
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise


async def _open_stream(address: Address, context: ssl.SSLContext | None) -> anyio.abc.ByteStream:
    where = address.path or address.authority
    opened: anyio.abc.SocketStream | anyio.abc.UNIXSocketStream
    try:
        if address.path:
            opened = await anyio.connect_unix(address.path)
        else:
            opened = await anyio.connect_tcp(address.host, address.port)
    except OSError as error:
        raise ConnectError(f"{where}: {unreachable(error)}") from error
    except UnicodeError as error:
        raise Rejected(f"{where}: not a host name: {error}") from error
    cut_off_in_children(opened)
    if not address.tls:
        return opened
    context = ssl.create_default_context() if context is None else context
    try:
        return await TLSStream.wrap(
            opened, hostname=address.host, ssl_context=context, standard_compatible=False
        )
    except BaseException as error:
        await anyio.aclose_forcefully(opened)
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted: {error.verify_message}"
            raise Rejected(f"{where}: {why}") from error
        if isinstance(error, BROKEN):
            raise ConnectError(f"{where}: TLS handshake failed{_why(error)}") from error
        raise


def _why(error: BaseException) -> str:
    """What TLS found wrong; a listener without it may just end the connection."""
    words = reason(error) if isinstance(error, ssl.SSLError) else "the connection was closed"
    return f", {words}; is it a listener with TLS?"
