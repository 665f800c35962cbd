"""Transport contract of the client, and the plain byte stream (TCP, TLS, Unix socket).

Foreign errors end here and in `mist.client.dial`: every failure becomes `ConnectError` while
connecting and `ConnectionLost` afterwards, or `Rejected` where trying again can't help.
"""

import abc
from typing import Final

import trio

from mist.errors import ConnectionLost

__all__ = ["BROKEN", "StreamTransport", "Transport", "read_some", "reason", "write_all"]

_READ_SIZE: Final = 65_536  # bytes
BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Transport(abc.ABC):
    """Carries encoded requests to the server and brings back chunks of its replies."""

    @abc.abstractmethod
    async def send(self, pieces: list[bytes]) -> None:
        """Write pieces in order. Cancelled or failed, any part of them was written.

        Raises:
            ConnectionLost: the connection broke.
        """

    @abc.abstractmethod
    async def receive(self) -> bytes:
        """The next chunk; never empty.

        Raises:
            ConnectionLost: the connection ended.
            Rejected: the server ended it for a permanent reason.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close, with a closing handshake where the protocol has one."""


class StreamTransport(Transport):
    """A plain stream of bytes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, pieces: list[bytes]) -> None:
        await write_all(self._stream, b"".join(pieces))

    async def receive(self) -> bytes:
        return await read_some(self._stream)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        except BROKEN:
            await trio.aclose_forcefully(self._stream)


async def read_some(stream: trio.abc.Stream) -> bytes:
    """The next bytes of a stream; never empty. Raises `ConnectionLost` at its end."""
    try:
        data = await stream.receive_some(_READ_SIZE)
    except BROKEN as error:
        raise ConnectionLost(f"connection lost: {reason(error)}") from error
    if not data:
        raise ConnectionLost("connection lost: closed by the server")
    return bytes(data)


async def write_all(stream: trio.abc.Stream, data: bytes) -> None:
    """Write to a stream. Raises `ConnectionLost` where it is broken."""
    try:
        await stream.send_all(data)
    except BROKEN as error:
        raise ConnectionLost(f"connection lost: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The system's text for an error, fit to print."""
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, OSError):
        return (cause.strerror or str(cause)).lower()
    return "connection broken"
