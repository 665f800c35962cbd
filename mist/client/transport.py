"""Transport contract of the client, and the plain byte stream (TCP, TLS, Unix socket).

Foreign errors end here and in `mist.client.dial`: every failure becomes `ConnectError` while
connecting and `ConnectionLost` afterwards, or `Rejected` where trying again can't help.
"""

import abc
import errno
import os
import ssl
from collections.abc import Iterator
from typing import Final

import anyio
import anyio.abc

from mist.errors import ConnectionLost

__all__ = [
    "BROKEN",
    "StreamTransport",
    "Transport",
    "read_some",
    "reason",
    "unreachable",
    "write_all",
]

_READ_SIZE: Final = 65_536  # bytes
_NOBODY_LISTENS: Final = (errno.ECONNREFUSED, errno.ENOENT)  # the latter at a Unix socket's path
# What TLS finds wrong is an OSError.
BROKEN: Final = (
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
)


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

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream

    async def send(self, pieces: list[bytes]) -> None:
        await write_all(self._stream, b"".join(pieces))

    async def receive(self) -> bytes:
        return await read_some(self._stream)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        except BROKEN:
            await anyio.aclose_forcefully(self._stream)


async def read_some(stream: anyio.abc.ByteStream) -> bytes:
    """The next bytes of a stream; never empty. Raises `ConnectionLost` at its end."""
    try:
        return await stream.receive(_READ_SIZE)
    except anyio.EndOfStream:
        raise ConnectionLost("connection lost: closed by the server") from None
    except BROKEN as error:
        raise ConnectionLost(f"connection lost: {reason(error)}") from error


async def write_all(stream: anyio.abc.ByteStream, data: bytes) -> None:
    """Write to a stream. Raises `ConnectionLost` where it is broken."""
    try:
        await stream.send(data)
    except BROKEN as error:
        raise ConnectionLost(f"connection lost: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The system's text for an error, or that of TLS, fit to print."""
    cause = error.__cause__ if isinstance(error, anyio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLError) and cause.reason:
        # Its own text names a line of Python's source.
        return f"TLS: {cause.reason.replace('_', ' ').lower()}"
    if isinstance(cause, OSError):
        return (cause.strerror or str(cause)).lower()
    return "connection broken"


def unreachable(error: OSError) -> str:
    """Why no address of a server could be reached, fit to print; with advice where there is any."""
    # anyio tries several addresses, and its own error says no more than that all of them failed.
    causes = list(_causes(error))
    text = ", ".join(dict.fromkeys(_words(each) for each in causes))
    if all(each.errno in _NOBODY_LISTENS for each in causes):
        return f"{text}; is `mist serve` running?"
    return text


def _words(error: OSError) -> str:
    # An event loop may repeat the address; a name that isn't found has a number of its own.
    number = error.errno or 0
    return os.strerror(number).lower() if number > 0 else reason(error)


def _causes(error: BaseException) -> Iterator[OSError]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    elif isinstance(error, OSError):
        if error.errno is None and error.__cause__ is not None:
            yield from _causes(error.__cause__)
        else:
            yield error
