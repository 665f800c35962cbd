"""A connection to Redis: commands and replies, with a deadline on every wait.

The one scope of `Connection.call` covers the sending and the replies, so a Redis that is stopped, a
network that swallows packets and a connection that is open at one end only all end in it. What
megabytes take is added as they move: a peer that is slow gets time, one that is frozen does not.
"""

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import hiredis
import trio

from mist.engine.addresses import Address
from mist.engine.contract import EngineUnavailable
from mist.engine.redis.replies import reason

__all__ = ["Command", "Connection", "ConnectionLost", "Reply", "dial"]

Command: TypeAlias = Sequence[bytes | str | int]
Reply: TypeAlias = "bytes | int | list[Reply] | hiredis.ReplyError | None"

_SENT_AT_ONCE: Final = 1 << 20  # bytes
_READ_AT_ONCE: Final = 1 << 18  # bytes
_LONG: Final = 1 << 14  # bytes of an argument
_SLOWEST: Final = 4 << 20  # bytes a second of large values
_NOT_YET: Final = object()

# Its stub knows only tuples of one.
_pack: Callable[[tuple[bytes | str | int, ...]], bytes] = cast(Any, hiredis).pack_command


def _pieces(command: Command) -> Sequence[bytes]:
    """A command in Redis' protocol.

    Where an argument is long, not by hiredis, which copies it several times: 1.2 ms for a
    megabyte, that this one takes 0.05 for.
    """
    if all(not isinstance(each, bytes) or len(each) < _LONG for each in command):
        return (_pack(tuple(command)),)
    pieces = [b"*%d\r\n" % len(command)]
    for each in command:
        value = each if isinstance(each, bytes) else str(each).encode()
        pieces += (b"$%d\r\n" % len(value), value, b"\r\n")
    return pieces


class ConnectionLost(Exception):
    """The other end has closed, or what it sent is not Redis' protocol."""


class Connection:
    """One stream to a Redis. One call at a time.

    Attributes:
        address: of the server.
        run: names the process of the server; empty until it is known.
        checked: when its role was last looked at, by trio's clock.
    """

    def __init__(self, stream: trio.abc.Stream, address: Address) -> None:
        self.address = address
        self.run = ""
        self.checked = 0.0
        self._stream = stream
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)

    async def call(self, commands: Sequence[Command], *scopes: trio.CancelScope) -> list[Reply]:
        """Send commands, all at once, and wait for the reply of each.

        Not to be used again where this raises, or is cancelled: replies may be under way.

        Args:
            scopes: have deadlines, which are moved as bytes are.

        Raises:
            ConnectionLost: see there.
        """
        data = b"".join([piece for each in commands for piece in _pieces(each)])
        replies: list[Reply] = []
        try:
            if len(data) <= _SENT_AT_ONCE:
                await self._send_at_once(data)
            else:
                await self._send(memoryview(data), scopes)
            while len(replies) < len(commands):
                reply = self._reader.gets()
                if reply is not _NOT_YET:
                    replies.append(reply)
                    continue
                some = await self._stream.receive_some(_READ_AT_ONCE)
                if not some:
                    raise ConnectionLost("it has closed the connection")
                for scope in scopes:
                    scope.deadline += len(some) / _SLOWEST
                self._reader.feed(bytes(some))
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            raise ConnectionLost("the connection is broken") from None
        except hiredis.ProtocolError:
            raise ConnectionLost("what it sent is not Redis' protocol") from None
        return replies

    async def _send_at_once(self, data: bytes) -> None:
        """Send as much as the kernel takes, without a checkpoint: the reply is waited for next.

        trio makes a pass of the event loop behind what is sent. Of an idle node, whose calls are
        far between, that was a quarter of all passes.
        """
        sent = 0
        if isinstance(self._stream, trio.SocketStream):
            try:
                sent = os.write(self._stream.socket.fileno(), data)
            except BlockingIOError:
                pass
            except OSError:
                raise ConnectionLost("the connection is broken") from None
        if sent < len(data):
            await self._stream.send_all(data[sent:])

    async def _send(self, data: memoryview, scopes: Sequence[trio.CancelScope]) -> None:
        for start in range(0, len(data), _SENT_AT_ONCE):
            some = data[start : start + _SENT_AT_ONCE]
            await self._stream.send_all(some)
            for scope in scopes:
                scope.deadline += len(some) / _SLOWEST

    async def authenticate(self, user: str, password: str) -> None:
        """Say who this is, where there is a password; the caller has a deadline.

        Raises:
            EngineUnavailable: it is refused.
            ConnectionLost: see there.
        """
        if not password:
            return
        names = (user,) if user else ()
        (reply,) = await self.call([("AUTH", *names, password)])
        if isinstance(reply, hiredis.ReplyError):
            # Not its text: some servers repeat what they were sent.
            raise EngineUnavailable(f"{self.name} refuses the user or password")

    async def ask(self, *commands: Command) -> list[Reply]:
        """Have commands done, none of which may fail; the caller has a deadline.

        Raises:
            EngineUnavailable: one of them did.
            ConnectionLost: see there.
        """
        replies = await self.call(commands)
        for each in replies:
            if isinstance(each, hiredis.ReplyError):
                raise EngineUnavailable(f"{self.name}: {reason(each)}")
        return replies

    @property
    def name(self) -> str:
        """Names the server, for messages."""
        return f"Redis at {self.address}"

    async def close(self) -> None:
        """Close at once, without a word to the other end. A checkpoint, also when cancelled."""
        await trio.aclose_forcefully(self._stream)


async def dial(address: Address, context: ssl.SSLContext | None) -> Connection:
    """Open a connection; the caller has a deadline.

    Args:
        context: for TLS; None is without.

    Raises:
        EngineUnavailable: says why not.
    """
    try:
        stream: trio.abc.Stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise EngineUnavailable(f"can't connect to Redis at {address}: {_why(error)}") from None
    if context is None:
        return Connection(stream, address)
    secure = trio.SSLStream(stream, context, server_hostname=address.host, https_compatible=True)
    try:
        await secure.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(secure)
        if isinstance(error, trio.BrokenResourceError | ssl.SSLError | OSError):
            cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
            why = getattr(cause, "verify_message", "") or "no TLS there"
            raise EngineUnavailable(f"can't connect to Redis at {address}: {why}") from None
        raise
    return Connection(secure, address)


def _why(error: OSError) -> str:
    """In short. Where a name has several addresses, the cause is a group of the errors of each."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError):
        error = cause
    if isinstance(error, socket.gaierror):
        return (error.strerror or "no such host").lower()
    return os.strerror(error.errno).lower() if error.errno else "it can't be reached"
