"""Has a server take inputs, and counts those that it took.

A *conversation* is one connection: a valid beginning, inputs, and a question behind every few of
them; then the client ends its side, and reads what comes to its end. Over HTTP that would end what
waits for an answer, so there it is done once all was answered, or nothing comes. An input counts
as taken where a question behind it was answered: the server has read it, and gone on. What was sent
to a connection that had been closed, or stands behind something without an end, doesn't count.

The same seed makes the same inputs, whichever thread has its turn.
"""

import socket
import threading
import time
from contextlib import suppress
from typing import Final

import attrs

from tests.fuzz.dialects import Dialect
from tests.fuzz.mutation import Dice
from tests.servers import port_of

__all__ = ["Figures", "converse"]

_INPUTS: Final = 96  # of one conversation
_ASKED: Final = 4  # inputs, behind which there is a question
_THREADS: Final = 8
_WASTED: Final = 20  # times as many connections as would do, after which it is given up
_TIMEOUT: Final = 60.0  # seconds in which a server has to end a conversation
_SILENCE: Final = 0.5  # seconds, after which nothing more will be answered over HTTP
_FIRST: Final = 0.1  # of all inputs, after which memory has what it will hold


@attrs.define
class Figures:
    """What a fuzz of one protocol came to.

    Attributes:
        taken, sent: inputs.
        conversations: connections.
        seconds: from the first to the last.
        early, late: the server's memory after a tenth of the inputs and at the end; MiB.
        stuck: seeds of conversations that the server did not end in time.
    """

    taken: int = 0
    sent: int = 0
    conversations: int = 0
    seconds: float = 0.0
    early: float = 0.0
    late: float = 0.0
    stuck: list[str] = attrs.field(factory=list)

    def __str__(self) -> str:
        return (
            f"{self.taken} of {self.sent} inputs taken, {self.conversations} connections, "
            f"{self.seconds:.0f} s, memory {self.early:.0f} -> {self.late:.0f} MiB"
        )


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
                spent = figures.conversations > _WASTED * (1 + count // _INPUTS)
                if figures.taken >= count or figures.stuck or spent:
                    return
                own_seed = f"{seed}/{figures.conversations}"
                figures.conversations += 1
            taken = _conversation(dialect, url, own_seed)
            with lock:
                figures.sent += _INPUTS
                if taken is None:
                    figures.stuck.append(own_seed)
                else:
                    figures.taken += taken
                if not figures.early and figures.taken >= _FIRST * count:
                    figures.early = _memory(pid)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures.seconds = time.monotonic() - started
    figures.late = _memory(pid)
    return figures


def _conversation(dialect: Dialect, url: str, seed: str) -> int | None:
    """One connection; how many of its inputs were taken, None where it did not end."""
    rng = Dice(seed)
    pieces = []
    for number in range(_INPUTS):
        pieces.append(dialect.input(rng))
        if number % _ASKED == _ASKED - 1:
            pieces.append(dialect.question(number))
    received = _exchange(url, dialect, b"".join(pieces))
    if received is None:
        return None
    for number in range(_INPUTS - 1, 0, -_ASKED):
        if dialect.answer(number) in received:
            return number + 1
    return 0


def _exchange(url: str, dialect: Dialect, data: bytes) -> bytes | None:
    """Send all of it and end; all that came back, None where the server doesn't end, too."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port_of(url)), timeout=_TIMEOUT) as sock:
        sock.sendall(dialect.begin())
        while not received.endswith(dialect.begun):
            piece = sock.recv(1)
            assert piece, bytes(received)
            received += piece
        sending = threading.Thread(target=_send, args=(sock, data, dialect.ends_early))
        sending.start()
        try:
            if not dialect.ends_early:
                _receive(sock, received, _SILENCE, dialect.answer(_INPUTS - 1))
                _end(sock)
            ended = _receive(sock, received, _TIMEOUT)
        finally:
            _end(sock, socket.SHUT_RDWR)
            sending.join()
    return bytes(received) if ended else None


def _receive(sock: socket.socket, received: bytearray, silence: float, last: bytes = b"") -> bool:
    """Add what comes to `received`, to its end or to `last`; False where nothing comes for long."""
    sock.settimeout(silence)
    try:
        while piece := sock.recv(262_144):
            received += piece
            if last and last in received[-len(piece) - len(last) :]:
                break
    except TimeoutError:
        return False
    except OSError:  # reset: it was closed with something unread
        pass
    return True


def _send(sock: socket.socket, data: bytes, end: bool) -> None:
    with suppress(OSError):  # the server has closed it
        sock.sendall(data)
        if end:
            _end(sock)


def _end(sock: socket.socket, side: int = socket.SHUT_WR) -> None:
    with suppress(OSError):
        sock.shutdown(side)


def _memory(pid: int) -> float:
    """A process's resident memory, MiB."""
    with open(f"/proc/{pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
