"""What the transports do with a fresh stream, before there is a session for it."""

import ssl

import trio

__all__ = ["peer_address", "ready_stream", "send"]


def peer_address(stream: trio.abc.Stream) -> str:
    """The peer's IP address as text; empty for unix sockets, memory streams, gone peers."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        name = stream.socket.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


async def ready_stream(stream: trio.abc.Stream, seconds: float) -> bool:
    """Do what a stream needs before it carries bytes: the TLS handshake, in bounded time.

    Returns:
        False where that failed; the peer's fault, and no news.
    """
    if not isinstance(stream, trio.SSLStream):
        return True
    with trio.move_on_after(seconds):
        try:
            await stream.do_handshake()
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError):
            return False
        return True
    return False


async def send(stream: trio.abc.Stream, wire: bytes, seconds: float) -> bool:
    """Send something, in bounded time. Whether that could be done."""
    with trio.move_on_after(seconds):
        try:
            await stream.send_all(wire)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True
    return False
