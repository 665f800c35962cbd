"""The probe: others that use the server at a steady rate, in a process of its own.

    line    a message each 2 ms from one TCP connection to another, timed from the write to the
            read: it is written whether or not those before it have come
    http    a request each 20 ms that publishes one message, timed from when it was due, so that
            those that wait behind a slow one count as waiting

Its process is told over a pipe when a phase begins and ends. At the end it waits for all that
was sent in the phase; what hasn't come after `TIMEOUT` counts as having taken that long.
"""

import json
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import attrs

from mist.bench.connections import Endpoint
from mist.bench.dialect import Line
from mist.bench.errors import BenchError, HungUp
from mist.bench.http.dialect import Http
from mist.bench.process import held_signals

__all__ = ["TIMEOUT", "Probe", "Waits", "start_probe"]

TIMEOUT: Final = 120.0  # seconds
_MESSAGES: Final = 0.002  # seconds from one to the next
_REQUESTS: Final = 0.02
_TAG: Final = "probe"
_CHUNK: Final = 65_536
_ANSWER: Final = b"HTTP/1.1 2"


@attrs.frozen
class Waits:
    """What the probe saw of a phase.

    Attributes:
        line, http: seconds, one a message or request.
        late: seconds by which messages were written later than due: where that is much, this
            machine was too busy to measure.
        unanswered: messages and requests that had not come after `TIMEOUT`.
        hung_up: requests on which the server hung up; they were made again.
    """

    line: list[float]
    http: list[float]
    late: list[float]
    unanswered: int
    hung_up: int

    def plus(self, other: "Waits") -> "Waits":
        """Both phases as one."""
        return Waits(
            self.line + other.line,
            self.http + other.http,
            self.late + other.late,
            self.unanswered + other.unanswered,
            self.hung_up + other.hung_up,
        )


class Probe:
    """A probe's process, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._read()

    def begin(self) -> None:
        """A phase begins, with the next message."""
        self._write("begin")
        self._read()

    def end(self) -> Waits:
        """The phase ends; what was sent in it is awaited."""
        self._write("end")
        return Waits(**json.loads(self._read()))

    def _write(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BenchError("the probe has ended") from error

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the probe has ended")
        return line


@contextmanager
def start_probe(tcp_port: int, http_port: int) -> Iterator[Probe]:
    """A probe of a server on 127.0.0.1; it is gone at the end of the block.

    Raises:
        BenchError: it can't connect.
    """
    with held_signals() as let_signals_in:
        process = subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", __name__, str(tcp_port), str(http_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                let_signals_in()
                yield Probe(process)
            finally:
                process.kill()


@attrs.define(eq=False)
class _Sent:
    """What was sent on one connection and comes back in order.

    Attributes:
        waiting: when each was sent that has not come.
        next: number of the next one.
        waits: seconds, of those of the phase that came.
    """

    waiting: deque[float] = attrs.field(factory=deque)
    next: int = 0
    waits: list[float] = attrs.field(factory=list)
    _began: int = 0
    _end: float = math.inf

    def begin(self) -> None:
        """A phase begins with the next one."""
        self._began, self._end = self.next, math.inf
        self.waits = []

    def end(self, unsent: int = 0) -> None:
        """The phase ends, with those that are due and could not be sent yet."""
        self._end = self.next + unsent

    def sent(self, since: float) -> None:
        """One is sent; it counts from `since`."""
        self.waiting.append(since)
        self.next += 1

    def came(self, count: int) -> None:
        """The next ones have come."""
        now = time.perf_counter()
        for _ in range(count):
            number = self.next - len(self.waiting)
            wait = now - self.waiting.popleft()
            if self._began <= number < self._end:
                self.waits.append(wait)

    @property
    def missing(self) -> int:
        """How many of a phase that has ended have not come."""
        came = self.next - len(self.waiting)
        return max(int(self._end) - max(came, self._began), 0)

    def give_up(self) -> int:
        """Count those as come now, and say how many they are."""
        missing = self.missing
        self.waits += [TIMEOUT] * missing
        return missing


class _Driver:
    """The probe itself."""

    def __init__(self, tcp: Endpoint, http: Endpoint) -> None:
        dialect = http.dialect
        assert isinstance(dialect, Http)
        self._message = Line().publish([_TAG], b"x" * 32)
        self._request = dialect.post([f"{_TAG}-http"], b"x" * 32)
        self._subscriber = tcp.subscribed(Line().subscribe([_TAG]))
        self._publisher = tcp.connect()
        self._endpoint = http
        self._http = http.connect()
        for sock in (self._subscriber, self._publisher, self._http):
            sock.setblocking(False)
        self._line, self._requests = _Sent(), _Sent()
        self._late: list[float] = []
        self._hung_up = 0
        self._due_message = self._due_request = time.perf_counter()
        self._overdue: deque[float] = deque()  # requests, while one is on its way
        self._unwritten = b""
        self._tails: dict[socket.socket, bytes] = {}

    def run(self) -> None:
        """Until the other end of the pipe is gone."""
        print("ready", flush=True)
        while word := self._until_told():
            if word == b"begin\n":
                self._line.begin()
                self._requests.begin()
                self._late = []
                self._hung_up = 0
                print("begun", flush=True)
            else:
                print(json.dumps(attrs.asdict(self._end())), flush=True)

    def _until_told(self) -> bytes:
        while not self._turn():
            pass
        return os.read(sys.stdin.fileno(), _CHUNK)  # one word: each is answered

    def _end(self) -> Waits:
        """Wait for what was sent in the phase, and go on sending."""
        line, requests = self._line, self._requests
        line.end()
        requests.end(len(self._overdue))
        late = self._late.copy()
        until = time.perf_counter() + TIMEOUT
        while (line.missing or requests.missing) and time.perf_counter() < until:
            self._turn()
        unanswered = line.give_up() + requests.give_up()
        return Waits(line.waits, requests.waits, late, unanswered, self._hung_up)

    def _turn(self) -> bool:
        """Send what is due and read what has come; whether there is something to be told."""
        now = time.perf_counter()
        while self._due_message <= now:
            self._late.append(now - self._due_message)
            self._due_message += _MESSAGES
            self._unwritten += self._message
            self._line.sent(now)
        while self._due_request <= now:
            self._overdue.append(self._due_request)
            self._due_request += _REQUESTS
        if self._overdue and not self._requests.waiting:
            self._requests.sent(self._overdue.popleft())
            self._http.sendall(self._request)
        if self._unwritten:
            with suppress(BlockingIOError):
                self._unwritten = self._unwritten[self._publisher.send(self._unwritten) :]
        due = min(self._due_message, self._due_request) - time.perf_counter()
        everything = (self._subscriber, self._publisher, self._http, sys.stdin)
        ready, _, _ = select.select(everything, [], [], max(due, 0))
        for sock in ready:
            if sock is self._subscriber:
                self._line.came(self._count(sock, self._message))
            elif sock is self._publisher:
                self._count(sock, self._message)
            elif sock is self._http:
                try:
                    self._requests.came(self._count(sock, _ANSWER))
                except (HungUp, ConnectionError):
                    self._ask_again()
        return sys.stdin in ready

    def _ask_again(self) -> None:
        """What was asked and not answered, on another connection."""
        self._http.close()
        self._hung_up += 1
        self._tails.pop(self._http, None)
        self._http = self._endpoint.connect()
        self._http.setblocking(False)
        if self._requests.waiting:
            self._http.sendall(self._request)

    def _count(self, sock: socket.socket, mark: bytes) -> int:
        data = sock.recv(_CHUNK)
        if not data:
            raise HungUp("the server hung up on the probe")
        data = self._tails.get(sock, b"") + data
        found = data.count(mark)
        if found:
            data = data[data.rindex(mark) + len(mark) :]
        self._tails[sock] = data[1 - len(mark) :]
        return found


def _main(tcp_port: int, http_port: int) -> None:
    host = "127.0.0.1"
    tcp = Endpoint(host, tcp_port, Line())
    http = Endpoint(host, http_port, Http(f"{host}:{http_port}"))
    _Driver(tcp, http).run()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
