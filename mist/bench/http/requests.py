"""`POST /v1/messages`, one at a time: what a request costs, with a history and without.

Three shapes of one message each, from kind to hard:

    repeated    one connection that is kept for a round, one tag list
    unique      the same, and each message with three tags never seen before
    fresh       one tag list, and a connection of its own for each request

And shapes of many messages each, on one connection:

    list        a list of 100 messages with one tag list
    lines       NDJSON of 1,000 of them
    lines_unique    the same, and each message with three tags never seen before

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

__all__ = ["BULK_SHAPES", "SHAPES", "Requests", "measure_requests", "read_answer"]

SHAPES: Final = ("repeated", "unique", "fresh")
BULK_SHAPES: Final = ("list", "lines", "lines_unique")
_WARM: Final = 20  # requests ahead of each round
_FEWER: Final = 10  # so many times fewer requests in a round where each has many messages
_MAX_ANSWER: Final = 65_536  # bytes
_KEPT, _PASSED_ON = b"HTTP/1.1 200 ", b"HTTP/1.1 202 "  # with a history, and without


@attrs.frozen(kw_only=True)
class _Shape:
    """How requests are written.

    Attributes:
        messages: of each.
        unique: whether each message has tags never seen before.
        lines: whether messages stand on lines, rather than in a list.
        fresh: whether each request has a connection of its own.
    """

    messages: int = 1
    unique: bool = False
    lines: bool = False
    fresh: bool = False


_SHAPES: Final = {
    "repeated": _Shape(),
    "unique": _Shape(unique=True),
    "fresh": _Shape(fresh=True),
    "list": _Shape(messages=100),
    "lines": _Shape(messages=1_000, lines=True),
    "lines_unique": _Shape(messages=1_000, lines=True, unique=True),
}


@attrs.frozen(kw_only=True)
class Requests:
    """What one shape came to on one server.

    Attributes:
        shape: of `SHAPES` or `BULK_SHAPES`.
        messages: of each request.
        history: `none`, `sqlite`, or `unknown`: a server that was given has one.
        durability: of a history of our own; else None.
        file_system: that the log is on; None where there is none, or it can't be told.
        size: bytes of data in a message.
        rounds: of requests.
    """

    shape: str
    messages: int = 1
    history: str
    durability: str | None
    file_system: str | None
    size: int
    rounds: Rounds


def measure_requests(
    site: Site,
    *,
    shapes: Sequence[str] = SHAPES,
    beside_history: bool = False,
    requests: int = 300,
    rounds: int = 3,
    size: int = 100,
) -> list[Requests]:
    """Publish by HTTP, each request sent when the one before was answered.

    Args:
        site: a server with an HTTP endpoint.
        shapes: which of `SHAPES` and `BULK_SHAPES`.
        beside_history: whether another is started that keeps what is published (`power`).
        requests: of each shape in each round; a tenth of them where each has many messages.
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
            for shape in shapes:
                for server in servers:
                    server.take(shape, requests)
        return [server.result(shape) for shape in shapes for server in servers]


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
        self._rounds = {shape: Rounds() for shape in _SHAPES}

    def take(self, name: str, count: int) -> None:
        """A round of a shape; of requests with many messages a tenth."""
        shape, warm = _SHAPES[name], _WARM
        if shape.messages > 1:
            count, warm = max(count // _FEWER, 1), max(warm // _FEWER, 1)
        wires = self._write(shape, warm + count)
        with self._endpoint.connect() as sock:
            send = self._send_each_anew if shape.fresh else partial(self._send_all, sock)
            send(wires[:warm])
            done = measure_round(count, lambda: send(wires[warm:]), self._cpu)
        self._rounds[name].rounds.append(done)

    def _write(self, shape: _Shape, count: int) -> list[bytes]:
        lists = self._unique_lists() if shape.unique else itertools.repeat((TAG,))
        data = b"x" * self._size
        if shape.messages == 1:
            return [self._http.post(next(lists), data, close=shape.fresh) for _ in range(count)]
        return [
            self._http.post_many(
                list(itertools.islice(lists, shape.messages)), data, lines=shape.lines
            )
            for _ in range(count)
        ]

    def _unique_lists(self) -> Iterator[tuple[str, ...]]:
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
            messages=_SHAPES[shape].messages,
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
