"""A server that makes mistakes on purpose: the driver has to notice each."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mist.bench.connections import Endpoint
from mist.bench.dialect import Line
from mist.bench.load import Target

__all__ = ["Fault", "faulty_server"]

Fault = Callable[[int, bytes], list[bytes]]
"""What subscribers get for the n-th publish, given its line: mostly just that line."""


class _Server:
    def __init__(self, fault: Fault, replayed: bytes) -> None:
        self._fault = fault
        self._replayed = replayed
        self._lock = threading.Lock()
        self._published = 0
        self._subscribers: list[socket.socket] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._threads.append(threading.Thread(target=self._serve, args=[sock]))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as lines:
            try:
                for line in lines:
                    with self._lock:
                        self._carry_out(sock, line)
            except OSError:
                return

    def _carry_out(self, sock: socket.socket, line: bytes) -> None:
        if line.startswith(b"publish "):
            deliveries = b"".join(self._fault(self._published, line))
            self._published += 1
            if b"hang up" in deliveries:
                for subscriber in self._subscribers:
                    subscriber.shutdown(socket.SHUT_RDWR)
                self._subscribers.clear()
            for subscriber in self._subscribers if deliveries else ():
                subscriber.sendall(deliveries)
        elif line == b"ping\n":
            sock.sendall(b"pong\n")
        elif line.startswith(b"subscribe "):
            self._subscribers.append(sock)
            sock.sendall(self._replayed)


@contextmanager
def faulty_server(fault: Fault, replayed: bytes = b"") -> Iterator[Target]:
    """A server of mist's line protocol that delivers what `fault` makes of it.

    Args:
        replayed: what each subscription is answered with.
    """
    server = _Server(fault, replayed)
    try:
        endpoint = Endpoint("127.0.0.1", server.port, Line())
        yield Target(endpoint, endpoint)
    finally:
        server.close()
