"""The attackers' connections: they read all they are sent, and know what of it counts.

One thread reads for all of them, at a lower priority where threads can have one: in
truth attackers have machines of their own.
"""

import os
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Final

import attrs

from mist.bench.errors import BenchError, HungUp
from mist.bench.fairness.probe import TIMEOUT

__all__ = ["Crowd", "Peer", "TookTooLong"]

_CHUNK: Final = 1 << 18
_NICE: Final = 10
_WAKE: Final = 0.01  # seconds after which a new connection is read from, at the latest


class TookTooLong(BenchError):
    """The server has not done something within `TIMEOUT`."""


@attrs.define(eq=False)
class Peer:
    """A connection that is read from.

    Attributes:
        mark: what counts of what it is sent.
        refusal: what counts as refused.
        marks, refusals: how many there were.
        due: marks that `Crowd.wait` waits for.
        hung_up: whether the server ended it.
    """

    sock: socket.socket
    mark: bytes
    refusal: bytes
    marks: int = 0
    refusals: int = 0
    due: int = 0
    hung_up: bool = False
    _tails: tuple[bytes, bytes] = (b"", b"")

    def send(self, data: bytes, marks: int = 1) -> None:
        """Send something that brings so many marks.

        Raises:
            TookTooLong: the server doesn't read it.
            BenchError: it has hung up.
        """
        self.due += marks
        try:
            self.sock.sendall(data)
        except TimeoutError as error:
            raise TookTooLong("the server stopped reading") from error
        except OSError as error:
            raise HungUp(f"the server cut an attacker off: {error.strerror}") from error

    def read(self, buffer: bytearray) -> None:
        """Take a chunk."""
        try:
            size = self.sock.recv_into(buffer)
        except OSError:
            size = 0
        if not size:
            self.hung_up = True
            return
        chunk = bytes(memoryview(buffer)[:size])
        marked, refused = [tail + chunk for tail in self._tails]
        self.marks += marked.count(self.mark)
        self.refusals += refused.count(self.refusal)
        # Each a byte shorter than what is counted, so that nothing is counted twice.
        self._tails = marked[1 - len(self.mark) :], refused[1 - len(self.refusal) :]


class Crowd:
    """All connections of the attackers; a context manager that closes them."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self._selector = selectors.DefaultSelector()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ended = True
        self._thread.join()
        for peer in self.peers:
            peer.sock.close()
        self._selector.close()

    def add(self, sock: socket.socket, mark: bytes, refusal: bytes) -> Peer:
        """Read from a connection from now on."""
        sock.settimeout(TIMEOUT)
        peer = Peer(sock, mark, refusal)
        self.peers.append(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)
        return peer

    def leave(self) -> None:
        """Close all connections."""
        with self._changed:
            for peer in self.peers:
                with suppress(KeyError):
                    self._selector.unregister(peer.sock)
                peer.sock.close()
            self.peers.clear()

    def wait(self) -> None:
        """Wait until each connection has the marks that are due.

        Raises:
            TookTooLong: they have not come in time.
            HungUp: the server ended one.
        """

        def there() -> bool:
            if any(peer.hung_up for peer in self.peers):
                raise HungUp("the server cut an attacker off")
            return all(peer.marks >= peer.due for peer in self.peers)

        with self._changed:
            if not self._changed.wait_for(there, TIMEOUT):
                raise TookTooLong("the server took too long")

    @property
    def refusals(self) -> int:
        """How much was refused, in all."""
        return sum(peer.refusals for peer in self.peers)

    def _read(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        buffer = bytearray(_CHUNK)
        while not self._ended:
            if not self._selector.get_map():
                time.sleep(_WAKE)
                continue
            ready = self._selector.select(_WAKE)
            with self._changed:
                for key, _ in ready:
                    peer: Peer = key.data
                    if peer.sock.fileno() < 0:
                        continue
                    peer.read(buffer)
                    if peer.hung_up:
                        self._selector.unregister(peer.sock)
                self._changed.notify_all()
