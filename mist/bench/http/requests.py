"""`POST /v1/messages`, one at a time: what a request costs, with a history and without.

Three shapes, from kind to hard:

    repeated    one connection that is kept for a round, one tag list
    unique      likewise, and each message with three tags never seen before
    fresh       one tag list, and a connection of its own for each request

All servers run at once and shapes are measured in turns, so that whatever else the machine
does falls on each alike. Nobody is subscribed: what deliveries cost is another figure.
"""

import itertools
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from mist.bench.errors import BenchError, HungUp, UnexpectedBytes
from mist.bench.history.disk import file_system, scratch
from mist.bench.history.stored import serving
from mist.bench.http.rounds import Rounds, measure_round
from mist.bench.script import TAG
from mist.bench.site import Site

__all__ = ["SHAPES", "Requests", "measure_requests", "read_answer"]

SHAPES: Final = ("repeated", "unique", "fresh")
_WARM: Final = 20  # requests ahead of each round
_MAX_ANSWER: Final = 65_536  # bytes
_KEPT, _PASSED_ON = b"HTTP/1.1 200 ", b"HTTP/1.1 202 "  # with a history, and without


@attrs.frozen(kw_only=True)
class Requests:
    """What one shape came to on one server.

    Attributes:
        shape: of `SHAPES`.
        history: `none`, `sqlite`, or `unknown`: a server that was given has one.
        durability: of a history of our own; else None.
        file_system: that the log is on; None where there is none, or it can't be told.
        size: bytes of data in a message.
        rounds: of requests.
    """

    shape: str
    history: str
    durability: str | None
    file_system: str | None
    size: int
    rounds: Rounds


def measure_requests(
    site: Site,
    *,
    beside_history: bool = False,
    requests: int = 300,
    rounds: int = 3,
    size: int = 100,
) -> list[Requests]:
    """Publish by HTTP, one message a request, each sent when the one before was answered.

    Args:
        site: a server with an HTTP endpoint.
        beside_history: whether another is started that keeps what is published (`power`).
        requests: of each shape in each round.
        size: bytes of data in a message.

    Raises:
        BenchError: there is no HTTP endpoint, or a request was refused.
    """
    with ExitStack() as stack:
        servers = [_Server(site, size)]
        if beside_history:
            folder = stack.enter_context(scratch(None))
            kept = stack.enter_context(serving(folder / "http.db", "power"))
            servers.append(_Server(kept, size, "power", folder))
        for _ in range(rounds):
            for shape in SHAPES:
                for server in servers:
                    server.take(shape, requests)
        return [server.result(shape) for shape in SHAPES for server in servers]


class _Server:
    """One server, and what came of it so far."""

    def __init__(
        self, site: Site, size: int, durability: str | None = None, folder: Path | None = None
    ) -> None:
        self._endpoint, self._http = site.http_endpoint()
        self._cpu = site.cpu
        self._size = size
        self._durability = durability
        self._history = "none"
        self._folder = folder
        self._numbers = itertools.count(time.time_ns())  # new at a server that was given, too
        self._rounds = {shape: Rounds() for shape in SHAPES}

    def take(self, shape: str, count: int) -> None:
        """A round of a shape."""
        fresh = shape == "fresh"
        wires = self._write(shape, _WARM + count)
        with self._endpoint.connect() as sock:
            send = self._send_each_anew if fresh else partial(self._send_all, sock)
            send(wires[:_WARM])
            done = measure_round(count, lambda: send(wires[_WARM:]), self._cpu)
        self._rounds[shape].rounds.append(done)

    def _write(self, shape: str, count: int) -> list[bytes]:
        lists = self._unique_lists() if shape == "unique" else itertools.repeat((TAG,))
        data = b"x" * self._size
        close = shape == "fresh"
        return [self._http.post(next(lists), data, close=close) for _ in range(count)]

    def _unique_lists(self) -> Iterator[Sequence[str]]:
        for number in self._numbers:
            yield TAG, f"order:{number}", f"user:{number}", f"request:{number}"

    def _send_all(self, sock: socket.socket, wires: Sequence[bytes]) -> None:
        for wire in wires:
            self._exchange(sock, wire)

    def _send_each_anew(self, wires: Sequence[bytes]) -> None:
        for wire in wires:
            with self._endpoint.connect() as sock:
                self._exchange(sock, wire)

    def _exchange(self, sock: socket.socket, wire: bytes) -> None:
        try:
            sock.sendall(wire)
        except OSError as error:
            raise HungUp(f"the connection broke: {error.strerror}") from error
        answer = read_answer(sock)
        if answer.startswith(_KEPT):
            self._history = "sqlite" if self._durability else "unknown"
        elif not answer.startswith(_PASSED_ON):
            raise UnexpectedBytes(answer)

    def result(self, shape: str) -> Requests:
        return Requests(
            shape=shape,
            history=self._history,
            durability=self._durability,
            file_system=None if self._folder is None else file_system(self._folder),
            size=self._size,
            rounds=self._rounds[shape],
        )


def read_answer(sock: socket.socket) -> bytes:
    """One answer that says its length, head and body, from a blocking socket.

    Raises:
        BenchError: there is none, it says no length, or there is more than it says.
    """
    got = b""
    try:
        while (missing := _missing(got)) > 0:
            piece = sock.recv(_MAX_ANSWER)
            if not piece:
                raise UnexpectedBytes(got) if got else HungUp("the server hung up")
            got += piece
    except TimeoutError as error:
        raise (UnexpectedBytes(got) if got else BenchError("no answer")) from error
    except OSError as error:
        raise HungUp(f"the connection broke: {error.strerror}") from error
    if missing < 0:
        raise UnexpectedBytes(got)
    return got


def _missing(got: bytes) -> int:
    """How many bytes of an answer are still to come, at least."""
    head, end, body = got.partition(b"\r\n\r\n")
    if not end:
        return 1
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    length = rest.partition(b"\r\n")[0].strip()
    if not found or not length.isdigit():
        raise UnexpectedBytes(got)
    return int(length) - len(body)
