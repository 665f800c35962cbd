"""One connection of a benchmark: a publisher that plays a script, a subscriber that checks one.

Set up on blocking sockets, one question and answer after the other; non-blocking once they
belong to a load.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from mist.bench.dialect import Dialect
from mist.bench.errors import BenchError, HungUp, NotThere, UnexpectedBytes
from mist.bench.receiver import Receiver
from mist.bench.script import Script

__all__ = ["Endpoint", "Publisher", "Subscriber", "ask"]

_CONNECT: Final = 10.0  # seconds for a connection, and for an answer


@attrs.frozen
class Endpoint:
    """Where to connect, and how to speak there."""

    host: str
    port: int
    dialect: Dialect = attrs.field(repr=False)

    def connect(self) -> socket.socket:
        """A connection on which the server has answered; still blocking.

        Raises:
            BenchError: there is none, or it said something else.
        """
        try:
            found = socket.create_connection((self.host, self.port), timeout=_CONNECT)
        except OSError as error:
            raise NotThere(f"{self.host}:{self.port}: {error.strerror or error}") from error
        try:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.dialect.check_welcome(ask(found, *self.dialect.opening()))
        except BaseException:
            found.close()
            raise
        return found

    def subscribed(self, *subscriptions: bytes) -> socket.socket:
        """A connection on which these subscriptions are in force; still blocking.

        Raises:
            BenchError: there is none, or one of them was refused.
        """
        found = self.connect()
        try:
            dialect = self.dialect
            question = b"".join(subscriptions) + dialect.fence
            dialect.check(ask(found, question, dialect.fenced))
        except BaseException:
            found.close()
            raise
        return found


def ask(sock: socket.socket, question: bytes, answer: bytes) -> bytes:
    """Send, and read until what came ends with `answer`. For a blocking socket.

    Raises:
        BenchError: it ended otherwise, or not within ten seconds.
    """
    got = b""
    try:
        sock.sendall(question)
        while not got.endswith(answer):
            chunk = sock.recv(65_536)
            if not chunk:
                raise UnexpectedBytes(got) if got else HungUp("the server hung up")
            got += chunk
    except TimeoutError as error:
        raise (UnexpectedBytes(got) if got else BenchError("no answer")) from error
    except OSError as error:
        raise HungUp(f"the connection broke: {error.strerror}") from error
    return got


class Publisher:
    """Plays a script.

    Attributes:
        granted: messages it may have sent.
        fences: proofs that came.
    """

    def __init__(self, sock: socket.socket, script: Script, dialect: Dialect) -> None:
        self.granted = 0
        self.fences = 0
        self.sock = sock
        self.script = script
        self._dialect = dialect
        self._sent = 0  # bytes of the script
        self._tail = b""  # of what it was told
        sock.setblocking(False)

    @property
    def behind(self) -> bool:
        """Whether the kernel has not taken all that was granted yet."""
        return self._sent < self.granted * self.script.publish_size

    def send(self) -> None:
        """Send what is granted, or as much of it as the kernel takes at once."""
        piece = self.script.slice_to_publish(self._sent, self.granted)
        try:
            self._sent += self.sock.send(piece)
        except BlockingIOError:
            return
        except OSError as error:
            raise HungUp(f"the server cut a publisher off: {error.strerror}") from error

    def send_fence(self) -> None:
        """Ask for the proof that all was handled. Everything must have been sent."""
        _send_all(self.sock, self._dialect.fence)

    def read(self, buffer: memoryview) -> None:
        """Take answers; the buffer holds what is read, and may be used again afterwards."""
        dialect = self._dialect
        data = self._tail + _receive(self.sock, buffer, "a publisher")
        dialect.check(data)
        self.fences += data.count(dialect.fenced)
        # No fence is sent before the last one was answered, so none is counted twice.
        self._tail = b"" if dialect.fenced in data else data[-len(dialect.fenced) :]


class Subscriber:
    """Reads and checks deliveries.

    Attributes:
        got: what came.
        on_read: called after every read, when it is set.
    """

    def __init__(self, sock: socket.socket, scripts: Sequence[Script], dialect: Dialect) -> None:
        self.sock = sock
        self.got = Receiver(scripts, dialect)
        self.on_read: Callable[[], None] | None = None
        self._dialect = dialect
        sock.setblocking(False)

    def send_fence(self) -> None:
        """Ask for the proof that all that was queued has left, where there is such a thing."""
        if self._dialect.fence:
            _send_all(self.sock, self._dialect.fence)
        else:
            self.got.fences += 1

    def read(self, buffer: memoryview) -> None:
        """Take a chunk; the buffer holds what is read, and may be used again afterwards."""
        answer = self.got.feed(_receive(self.sock, buffer, "a subscriber"))
        if self.on_read is not None:
            self.on_read()
        if answer:
            _send_all(self.sock, answer)


def _receive(sock: socket.socket, buffer: memoryview, whose: str) -> memoryview:
    try:
        size = sock.recv_into(buffer)
    except BlockingIOError:
        size = 0
    except OSError as error:
        raise HungUp(f"the server cut {whose} off: {error.strerror}") from error
    else:
        if not size:
            raise HungUp(f"the server hung up on {whose}")
    return buffer[:size]


def _send_all(sock: socket.socket, data: bytes) -> None:
    """Send a few bytes on a non-blocking socket that may be full of requests."""
    deadline = time.perf_counter() + _CONNECT
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError as error:
            if time.perf_counter() > deadline:
                raise BenchError("the server stopped reading") from error
            select.select([], [], [], 0.001)
        except OSError as error:
            raise HungUp(f"the connection broke: {error.strerror}") from error
