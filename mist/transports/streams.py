"""Streams without a session: fresh ones, refused ones, and those of HTTP requests."""

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

__all__ = ["ByteStream", "Wait", "close_now", "peer_address", "send"]

_STALLED: Final = 30.0  # seconds without progress after which a reader is taken for gone
_PIECE: Final = 65_536  # bytes in which that progress is seen where there is no socket to ask
_LINGER: Final = 1.0  # seconds for a peer to stop sending what nobody will read

Wait = Callable[[int], Awaitable[None]]
"""Waits until a socket is readable, by its descriptor."""


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


async def close_now(stream: trio.abc.Stream) -> None:
    """Close a stream without a goodbye. Idempotent; a checkpoint only where it is no socket.

    trio's `aclose_forcefully` takes a cancel scope and a turn of the event loop, even where the
    stream is closed already.
    """
    if isinstance(stream, trio.SocketStream):
        stream.socket.close()
    else:
        await trio.aclose_forcefully(stream)


async def send(stream: trio.abc.Stream, wire: bytes, seconds: float) -> bool:
    """Send something, in bounded time. Whether that could be done."""
    with trio.move_on_after(seconds):
        try:
            await stream.send_all(wire)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True
    return False


class ByteStream:
    """A stream that is read and written by non-blocking system calls where it is a socket.

    trio's own calls take several times what the system calls do; that counts where a connection
    carries one small request after another. Not to be read by two tasks at once.

    Args:
        stream: as accepted; a TLS stream has done its handshake.
    """

    __slots__ = ("_socket", "stream")

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None

    def receive_now(self, size: int) -> bytes | None:
        """As `receive`, where that is known at once; else None, as where it is no socket."""
        if self._socket is None:
            return None
        try:
            return os.read(_descriptor(self._socket), size)
        except BlockingIOError:
            return None
        except (OSError, trio.ClosedResourceError):
            return b""

    @property
    def is_socket(self) -> bool:
        """Whether it is a socket, without TLS."""
        return self._socket is not None

    async def receive(self, size: int, wait: Wait = trio.lowlevel.wait_readable) -> bytes:
        """What arrives, at most `size` bytes; empty at the end, also when the peer is gone.

        Args:
            wait: where there is a socket.
        """
        sock = self._socket
        try:
            if sock is None:
                return bytes(await self.stream.receive_some(size))
            while True:
                await wait(_descriptor(sock))
                try:
                    return os.read(_descriptor(sock), size)
                except BlockingIOError:
                    continue
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def send(self, data: bytes) -> None:
        """Write all of it. A checkpoint only where the peer doesn't take it at once.

        Raises:
            trio.BrokenResourceError: the peer is gone, or has not read for half a minute.
        """
        sock = self._socket
        try:
            view = memoryview(data)
            if sock is not None:
                # Mostly the kernel takes it all at once, and nothing else is needed.
                try:
                    written = os.write(_descriptor(sock), data)
                except BlockingIOError:
                    written = 0
                if written == len(data):
                    return
                view = await self._write(sock, view[written:])
            while view:
                piece, view = view[:_PIECE], view[_PIECE:]
                with trio.fail_after(_STALLED):
                    await self.stream.send_all(piece)
        except (OSError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise trio.BrokenResourceError("the peer does not read") from error

    async def _write(self, sock: trio.socket.SocketType, view: memoryview) -> memoryview:
        while view:
            with trio.fail_after(_STALLED):
                await trio.lowlevel.wait_writable(_descriptor(sock))
            with suppress(BlockingIOError):
                view = view[os.write(_descriptor(sock), view) :]
        return view

    async def aclose(self) -> None:
        """Close, and lose nothing of what was written.

        Where a socket is closed while there is something unread, the peer's kernel may throw away
        what was written last (RFC 9112, section 9.6): the very answer that says why. So what still
        arrives is taken, for a second at most.
        """
        with trio.move_on_after(_LINGER):
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                if self._socket is not None:
                    # Not trio's `send_eof`: where it fails, from Python 3.13 on, its error and the
                    # frames that it came through are a cycle, with all that is in them.
                    self._socket.shutdown(trio.socket.SHUT_WR)
                elif isinstance(self.stream, trio.abc.HalfCloseableStream):
                    await self.stream.send_eof()
                while await self.receive(_PIECE):
                    pass
        if self._socket is None:
            with trio.move_on_after(_LINGER):
                await self.stream.aclose()
        await close_now(self.stream)


def _descriptor(sock: trio.socket.SocketType) -> int:
    """The file descriptor of a socket, which is not to be kept over an await.

    Who a stream was handed to may close it, and then the number is another connection's.

    Raises:
        trio.ClosedResourceError: it is closed.
    """
    fd = sock.fileno()
    if fd < 0:
        raise trio.ClosedResourceError("the socket is closed")
    return fd
