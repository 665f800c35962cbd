"""What fails: the engine, which is started again; and a node, whose clients go to another one."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mist.bench.connections import ask
from mist.bench.dialect import Line
from mist.bench.errors import BenchError, HungUp, UnexpectedBytes
from mist.bench.nodes.figure import Measured
from mist.bench.nodes.realm import Realm, RunningNode

__all__ = ["measure_engine_killed", "measure_node_killed"]

_TAG: Final = "outage"
_DOWN: Final = 1.0  # seconds without an engine, by which nodes ask as rarely as they ever do
_TIMEOUT: Final = 30.0  # seconds until all has to go on
_PERIOD: Final = 0.002  # seconds between two messages
_AGAIN: Final = 0.005  # seconds until a refused store is repeated
_BEFORE: Final = 20  # messages that a client has before its node is killed


def measure_engine_killed(realm: Realm, *, rounds: int) -> list[Measured]:
    """Seconds from when a killed engine answers again until a node acknowledges a `store`.

    Raises:
        BenchError: the engine does not start again, or the node goes on refusing.
    """
    with realm.one.line.connect() as publisher:
        publisher.settimeout(_TIMEOUT)
        _store(publisher)  # so that nothing but the outage is measured
        values = [_restart(realm, publisher) for _ in range(rounds)]
    note = f"down for {_DOWN:.0f} s before"
    return [Measured("engine back, until a store", "s", values, note)]


def _restart(realm: Realm, publisher: socket.socket) -> float:
    realm.engine.kill()
    time.sleep(_DOWN)
    realm.engine.start()
    start = time.perf_counter()
    _store(publisher)
    return time.perf_counter() - start


def _store(publisher: socket.socket) -> None:
    """Store a message, again and again until it is acknowledged."""
    deadline = time.perf_counter() + _TIMEOUT
    while not (answer := ask(publisher, b"store %b x\n" % _TAG.encode(), b"\n")).startswith(
        b"stored "
    ):
        if not answer.startswith(Line.refusal):
            raise UnexpectedBytes(answer)
        if time.perf_counter() > deadline:
            raise BenchError(f"no store is acknowledged after {_TIMEOUT:.0f} s")
        time.sleep(_AGAIN)


def measure_node_killed(realm: Realm, *, rounds: int) -> list[Measured]:
    """Seconds from when a node is killed until its client has its next message elsewhere.

    The client dials another node as soon as it notices, and goes on after the last message that
    it had; whether all come, and once, is checked.

    Raises:
        BenchError: a message is missing, or came twice, or none comes.
    """
    with _publishing(realm.one):
        values = [_move(realm) for _ in range(rounds)]
    note = f"published every {_PERIOD * 1e3:.0f} ms"
    return [Measured("node killed, until the next message", "s", values, note)]


def _move(realm: Realm) -> float:
    with realm.another() as node:
        node.wait_until_ready()
        with _Client(node) as client:
            client.subscribe()
            for _ in range(_BEFORE):
                client.read()
            start = time.perf_counter()
            os.kill(node.server.pid, signal.SIGKILL)
            while client.read():
                pass
        with _Client(realm.other) as moved:
            moved.subscribe(client)
            if not moved.read():
                raise HungUp("the server hung up on a subscriber")
            return time.perf_counter() - start


class _Client:
    """A subscriber that has ids, and checks that messages are consecutive. A context manager.

    Attributes:
        last_id: of the newest message it has; 0 before the first.
        last: that message's number.
    """

    def __init__(self, node: RunningNode) -> None:
        self.last_id = 0
        self.last = 0
        self._sock = node.line.connect()
        self._sock.settimeout(_TIMEOUT)
        self._lines = self._sock.makefile("rb")

    def subscribe(self, before: "_Client | None" = None) -> None:
        """Subscribe to what is published from now on, or after what another client had last."""
        since = ""
        if before is not None:
            self.last_id, self.last = before.last_id, before.last
            since = f" {before.last_id}"
        self._sock.sendall(f"ids on\nsubscribe {_TAG}{since}\n".encode())

    def read(self) -> bool:
        """Take a message; False where the server is gone.

        Raises:
            BenchError: it isn't the next one, or none comes.
        """
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            return False
        except TimeoutError as error:
            raise BenchError(f"no message after {_TIMEOUT:.0f} s") from error
        if not line.endswith(b"\n"):
            return False
        # message 17 outage 3
        word, id_, _, number = line.split() if line.count(b" ") == 3 else (line, b"", b"", b"")
        if word != b"message" or not number.isdigit():
            raise UnexpectedBytes(line)
        if self.last and int(number) != self.last + 1:
            raise BenchError(f"message {int(number)} came after {self.last}")
        self.last_id, self.last = int(id_), int(number)
        return True

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._sock.close()


@contextmanager
def _publishing(node: RunningNode) -> Iterator[None]:
    """Have numbered messages published at a node meanwhile, in a thread.

    Raises:
        BenchError: at the end, where that went wrong.
    """
    ended = threading.Event()
    errors: list[Exception] = []

    def publish(sock: socket.socket) -> None:
        number = 0
        try:
            while not ended.wait(_PERIOD):
                number += 1
                sock.sendall(f"publish {_TAG} {number}\n".encode())
            ask(sock, Line.fence, Line.fenced)
        except (BenchError, OSError) as error:
            errors.append(error)

    with node.line.connect() as sock:
        thread = threading.Thread(target=publish, args=[sock], name="publishing")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
    if errors:
        raise BenchError(f"publishing meanwhile: {errors[0]}") from errors[0]
