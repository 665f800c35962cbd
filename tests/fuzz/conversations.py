"""Has a server take inputs, and counts those that it took.

A *conversation* is one connection: a valid beginning, inputs, and a question behind every few of
them, the wilder the fewer; then the client ends its side, and reads what comes to its end. Over
HTTP that would end what waits for an answer, so there it is done once all was answered, or nothing
comes. An input counts as taken where a question behind it was answered: the server has read it,
and gone on. Not counted are the input that a connection was closed for, what was sent to a closed
connection, and what stands behind something without an end.

The same seed makes the same inputs, whichever thread has its turn.
"""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from select import POLLIN, POLLOUT, poll
from typing import Final

import attrs

from tests.fuzz.dialects import Dialect
from tests.fuzz.mutation import Dice
from tests.servers import port_of

__all__ = ["Figures", "converse", "goes_on"]

# By wildness: the inputs of a conversation, and after how many there is a question. Wild ones end
# early in most protocols, and what stands behind their end is made and sent for nothing.
_LENGTHS: Final = {0.0: (96, 8), 0.1: (64, 4), 1.0: (16, 1)}
_ENDLESS: Final = (96, 8)  # where nothing ends a conversation
_THREADS: Final = 8
_WASTED: Final = 20  # times as many inputs as would do, after which it is given up
_TIMEOUT: Final = 60.0  # seconds in which a server has to end a conversation
_SILENCE: Final = 0.5  # seconds, after which nothing more will be answered over HTTP
_TENTHS: Final = 10
_READ: Final = 262_144  # bytes


@attrs.define
class Figures:
    """What a fuzz of one protocol came to.

    Attributes:
        taken, sent: inputs.
        conversations: connections.
        seconds: from the first to the last.
        memory: the server's, after each tenth of the inputs; MiB.
        stuck: seeds of conversations that the server did not begin, or did not end in time.
    """

    taken: int = 0
    sent: int = 0
    conversations: int = 0
    seconds: float = 0.0
    memory: list[float] = attrs.field(factory=list)
    stuck: list[str] = attrs.field(factory=list)

    def __str__(self) -> str:
        return (
            f"{self.taken} of {self.sent} inputs taken, {self.conversations} connections, "
            f"{self.seconds:.0f} s, memory {' '.join(f'{each:.0f}' for each in self.memory)} MiB"
        )

    @property
    def growth(self) -> float:
        """Of memory since the first tenth, when it had what it would hold; MiB."""
        return self.memory[-1] - self.memory[0]


def converse(dialect: Dialect, url: str, pid: int, count: int, seed: str) -> Figures:
    """Have a server take so many inputs.

    Args:
        dialect: what to speak.
        url: the listener's.
        pid: of the server's process.
        count: inputs to be taken.
        seed: of all that is sent.
    """
    figures = Figures()
    lock = threading.Lock()
    started = time.monotonic()

    def work() -> None:
        while True:
            with lock:
                spent = figures.sent > _WASTED * (count + 1_000)
                if figures.taken >= count or figures.stuck or spent:
                    return
                own_seed = f"{seed}/{figures.conversations}"
                figures.conversations += 1
            rng = Dice(own_seed)
            taken = _conversation(dialect, url, rng)
            with lock:
                figures.sent += _lengths(dialect, rng)[0]
                if taken is None:
                    figures.stuck.append(own_seed)
                else:
                    figures.taken += taken
                while len(figures.memory) < min(figures.taken * _TENTHS // count, _TENTHS):
                    figures.memory.append(_memory(pid))

    with ThreadPoolExecutor(_THREADS) as threads:
        for thread in [threads.submit(work) for _ in range(_THREADS)]:
            thread.result()
    figures.seconds = time.monotonic() - started
    return figures


def goes_on(dialect: Dialect, url: str) -> bool:
    """Whether a server begins a conversation, answers in it, and ends it with its client."""
    answer = dialect.answer(0)
    return answer in (_exchange(url, dialect, dialect.question(0), answer) or b"")


def _lengths(dialect: Dialect, rng: Dice) -> tuple[int, int]:
    return _ENDLESS if dialect.endless else _LENGTHS[rng.wildness]


def _conversation(dialect: Dialect, url: str, rng: Dice) -> int | None:
    """One connection; how many of its inputs were taken, None where it did not end."""
    inputs, asked = _lengths(dialect, rng)
    pieces = []
    for number in range(1, inputs + 1):
        pieces.append(dialect.input(rng))
        if number % asked == 0:
            pieces.append(dialect.question(number))
    received = _exchange(url, dialect, b"".join(pieces), dialect.answer(inputs))
    if received is None:
        return None
    answered = (n for n in range(inputs, 0, -asked) if dialect.answer(n) in received)
    return next(answered, 0)


def _exchange(url: str, dialect: Dialect, data: bytes, last: bytes) -> bytes | None:
    """Begin, send all of it and end.

    Args:
        last: stands in the last answer.

    Returns:
        All that came back; None where the server does not begin, or does not end it, too.
    """
    with socket.create_connection(("127.0.0.1", port_of(url)), timeout=_TIMEOUT) as sock:
        connection = _Connection(sock)
        if not connection.begin(dialect):
            return None
        if dialect.ends_early:
            ended = connection.exchange(data, _TIMEOUT, end=True)
        else:
            connection.exchange(data, _SILENCE, last=last)
            ended = connection.exchange(b"", _TIMEOUT, end=True)
        return bytes(connection.received) if ended else None


class _Connection:
    """A socket of which all that comes is kept.

    Attributes:
        received: that.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.received = bytearray()
        self._sock = sock
        self._poll = poll()

    def begin(self, dialect: Dialect) -> bool:
        """Send a dialect's beginning, and read its answer; False where there is none."""
        self._sock.sendall(dialect.begin())
        while dialect.begun not in self.received:
            try:
                piece = self._sock.recv(_READ)
            except OSError:
                return False
            if not piece:
                return False
            self.received += piece
        self._sock.setblocking(False)
        return True

    def exchange(
        self, data: bytes, silence: float, *, end: bool = False, last: bytes = b""
    ) -> bool:
        """Send, and receive meanwhile, to the end of what comes.

        Args:
            data: to send; no more of it once the server has closed the connection.
            silence: seconds without anything, after which nothing is waited for any more.
            end: whether to end the client's side behind it.
            last: what comes last, if it is known.

        Returns:
            Whether it was the end, or `last`, rather than silence.
        """
        left = memoryview(data)
        while True:
            if left:
                left = left[self._send(left) :]
            if end and not left:
                end = False
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
            self._poll.register(self._sock, POLLIN | POLLOUT if left else POLLIN)
            if not self._poll.poll(silence * 1_000):
                return False
            piece = self._receive()
            if piece == b"":
                return True
            if piece and last and last in self.received[-len(piece) - len(last) :]:
                return True

    def _send(self, left: memoryview) -> int:
        """How much of it is done with."""
        try:
            return self._sock.send(left)
        except BlockingIOError:
            return 0
        except OSError:  # closed, and what comes tells why
            return len(left)

    def _receive(self) -> bytes | None:
        """What has come: nothing at the end, None where there is nothing yet."""
        try:
            piece = self._sock.recv(_READ)
        except BlockingIOError:
            return None
        except OSError:  # reset: it was closed with something unread
            return b""
        self.received += piece
        return piece


def _memory(pid: int) -> float:
    """A process's resident memory, MiB."""
    with open(f"/proc/{pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
