"""Many clients in one process, which lose their connections and resume all at once.

A process of its own (`start_clients`), told over a pipe what its clients do. Each has a room, whose
messages are numbered; it knows the last it got, and resumes behind that: over the line, by a
WebSocket, or as an event stream. What comes must be the next number, or it is an error. Where
it is refused, since the server has no place for it or no history now, it tries again; where there
are several servers, at the next one.

Plain sockets and one selector: a task or a thread for each would measure this process.
"""

import base64
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from mist.bench.process import raise_file_limit

__all__ = ["KINDS", "TOKEN", "Clients", "Settings", "room_of", "start_clients"]

KINDS: Final = ("line", "frames", "events")
TOKEN: Final = "storm-token"
_AGAIN: Final = 0.25  # seconds after a refused connection; a client of ours waits 0 to 0.5
_GIVE_UP: Final = 120.0  # seconds
_FOR_NOW: Final = ("History is unavailable", "Registry is unavailable")
_CLOSED: Final = b"closed"  # in the place of the payload of a frame that ends a connection


@attrs.frozen
class Settings:
    """Which clients a process has.

    Attributes:
        servers: of each, the ports of its listeners for lines, WebSockets and HTTP.
        first, count: the numbers of its clients.
        rooms: how many there are.
    """

    servers: Sequence[tuple[int, int, int]]
    first: int
    count: int
    rooms: int


def room_of(number: int, rooms: int) -> str:
    """The room of a client."""
    return f"room-{number % rooms}"


class Clients:
    """A process with clients, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tell(self, word: str, *arguments: object) -> None:
        """Begin something; `answer` waits for it."""
        assert self._process.stdin is not None
        print(json.dumps([word, *arguments]), file=self._process.stdin, flush=True)

    def answer(self) -> dict:
        """How that went."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the clients' process has ended"
        return json.loads(line)


@contextmanager
def start_clients(settings: Settings) -> Iterator[Clients]:
    """A process with clients that are not connected yet; gone at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(attrs.asdict(settings))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Clients(process)
        finally:
            process.kill()


@attrs.define(eq=False)
class _Client:
    """One client.

    Attributes:
        seen: the number of the last message of its room.
        id: of that message.
        ready_at: when it had what it is to have since the last beginning.
        errors, wrong: how often something was not as it must be, and what it was at first.
        server: which one is dialled next; they are gone round.
        refused: whether the server has said that it can't serve it now.
    """

    kind: str
    room: str
    server: int
    seen: int = 0
    id: int = 0
    ready_at: float = 0.0
    errors: int = 0
    wrong: str = ""
    sock: socket.socket | None = None
    held: bytes = b""
    said: bool = False  # what it has to say
    answered: bool = False  # the handshake
    refused: bool = False

    def request(self, epoch: str) -> bytes:
        """What it begins with."""
        since = f"{epoch}:{self.id}"
        if self.kind == "line":
            return f"ids on\nsubscribe {self.room} {since}\n".encode()
        head = "Host: localhost\r\n" + f"X-Auth-Token: {TOKEN}\r\n"
        if self.kind == "events":
            path = f"/v1/stream?tags={self.room}"
            # Of HTTP/1.0, whose streams are not in chunks.
            return f"GET {path} HTTP/1.0\r\n{head}Last-Event-ID: {since}\r\n\r\n".encode()
        key = base64.b64encode(os.urandom(16)).decode()
        return (
            f"GET /subscribe/websocket HTTP/1.1\r\n{head}Connection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        ).encode()

    def take(self, data: bytes, epoch: str) -> bytes:
        """What has come; what it answers."""
        self.held += data
        if self.kind == "frames":
            return self._take_frames(epoch)
        lines = self.held.split(b"\n")
        self.held = lines.pop()
        for line in lines:
            if self.kind == "line":
                self._take_line(line)
            elif line.startswith(b"data: "):
                self._take_json(json.loads(line[6:]))
            elif line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                self._refuse(line, for_now=b" 503 " in line)
        return b""

    def _take_line(self, line: bytes) -> None:
        word, *rest = line.split(b" ", 3)
        if word == b"message":
            self._got(int(rest[0]), int(rest[2]))
        else:
            self._refuse(line, for_now=line == b"error History is unavailable")

    def _take_frames(self, epoch: str) -> bytes:
        answer = b""
        if not self.answered:
            head, end, rest = self.held.partition(b"\r\n\r\n")
            if not end:
                return b""
            if b" 101 " not in head:
                self._refuse(head, for_now=b" 503 " in head)
                return b""
            self.answered, self.held = True, rest
            since = {"epoch": epoch, "id": self.id}
            answer = _masked({"command": "subscribe", "tags": [self.room], "since": since})
        while (frame := _frame(self.held)) is not None:
            payload, self.held = frame
            if payload == _CLOSED:
                self.refused = True
                return b""
            self._take_json(json.loads(payload))
        return answer

    def _take_json(self, found: dict) -> None:
        if "data" in found:
            self._got(found["id"], int(found["data"]))
        elif found.get("error") in _FOR_NOW:
            self.refused = True
        elif not found.get("recovered"):
            self._wrong(json.dumps(found))

    def _got(self, id_: int, number: int) -> None:
        if number != self.seen + 1:
            self._wrong(f"{number} behind {self.seen}")
        self.seen, self.id = number, id_

    def _refuse(self, what: bytes, *, for_now: bool) -> None:
        if for_now:
            self.refused = True
        else:
            self._wrong(what.decode())

    def _wrong(self, what: str) -> None:
        self.errors += 1
        self.wrong = self.wrong or f"{self.kind}: {what}"


def _masked(message: dict) -> bytes:
    payload = json.dumps(message).encode()
    assert len(payload) < 126
    return bytes([0x81, 0x80 | len(payload), 0, 0, 0, 0]) + payload


def _frame(held: bytes) -> tuple[bytes, bytes] | None:
    """The payload of the first frame of a server's, and what follows; None where it isn't whole."""
    if len(held) < 2:
        return None
    size, start = held[1], 2
    if size > 125:
        start = 4 if size == 126 else 10
        if len(held) < start:
            return None
        size = int.from_bytes(held[2:start])
    if len(held) < start + size:
        return None
    assert held[0] in (0x81, 0x88, 0x89), held[:2]
    if held[0] == 0x88:
        return _CLOSED, held[start + size :]
    if held[0] == 0x89:  # a ping, which comes long before an answer is due
        return _frame(held[start + size :])
    return held[start : start + size], held[start + size :]


class _Driver:
    """All clients of this process."""

    def __init__(self, settings: Settings) -> None:
        self._servers = settings.servers
        numbers = range(settings.first, settings.first + settings.count)
        self._clients = [
            _Client(KINDS[n % len(KINDS)], room_of(n // len(KINDS), settings.rooms), n)
            for n in numbers
        ]
        self._selector = selectors.DefaultSelector()
        self._epoch = ""
        self._target = 0
        self._missing = 0
        self._refused = 0
        self._again: list[tuple[float, _Client]] = []

    def connect(
        self, epoch: str, target: int, servers: Sequence[tuple[int, int, int]] | None = None
    ) -> dict:
        """Connect all at once, and wait until each has got so many messages.

        Args:
            servers: in the place of those before; see `Settings`.
        """
        self._epoch = epoch
        self._servers = servers or self._servers
        self._refused = 0
        began = self._begin(target)
        for client in self._clients:
            self._dial(client)
        return self._wait(began)

    def wait(self, target: int) -> dict:
        """Wait until each has got so many."""
        return self._wait(self._begin(target))

    def cut(self) -> dict:
        """Lose all connections at once. Each is made again at the next server."""
        self._again.clear()
        for client in self._clients:
            self._close(client)
            client.server += 1
        return {}

    def _begin(self, target: int) -> float:
        self._target = target
        self._missing = sum(client.seen < target for client in self._clients)
        began = time.monotonic()
        for client in self._clients:
            client.ready_at = began
        return began

    def _wait(self, began: float) -> dict:
        while self._missing and time.monotonic() < began + _GIVE_UP:
            self._turn()
        times = sorted(client.ready_at - began for client in self._clients)
        return {
            "missing": self._missing,
            "too_many": sum(client.seen > self._target for client in self._clients),
            "errors": sum(client.errors for client in self._clients),
            "wrong": [client.wrong for client in self._clients if client.wrong][:5],
            "refused": self._refused,
            "p50": times[len(times) // 2],
            "last": times[-1],
        }

    def _turn(self) -> None:
        for key, events in self._selector.select(0.05):
            client = key.data
            if events & selectors.EVENT_WRITE:
                self._say(client)
            else:
                self._read(client)
        now = time.monotonic()
        while self._again and self._again[0][0] <= now:
            self._dial(self._again.pop(0)[1])

    def _dial(self, client: _Client) -> None:
        sock = client.sock = socket.socket()
        sock.setblocking(False)
        client.held, client.answered, client.refused = b"", False, False
        port = self._servers[client.server % len(self._servers)][KINDS.index(client.kind)]
        sock.connect_ex(("127.0.0.1", port))
        self._selector.register(sock, selectors.EVENT_WRITE, client)

    def _say(self, client: _Client) -> None:
        assert client.sock is not None
        try:
            client.sock.send(client.request(self._epoch))  # fits into an empty buffer
        except OSError:
            self._lost(client)
        else:
            self._selector.modify(client.sock, selectors.EVENT_READ, client)

    def _read(self, client: _Client) -> None:
        assert client.sock is not None
        try:
            data = client.sock.recv(262_144)
        except OSError:
            data = b""
        if not data:
            self._lost(client)
            return
        before = client.seen
        answer = client.take(data, self._epoch)
        try:
            client.sock.send(answer)
        except OSError:
            client.refused = True
        if before < self._target <= client.seen:
            client.ready_at = time.monotonic()
            self._missing -= 1
        if client.refused:
            self._lost(client)

    def _lost(self, client: _Client) -> None:
        """The server refused or ended a connection: once more, a little later."""
        self._close(client)
        self._refused += 1
        client.server += 1
        self._again.append((time.monotonic() + _AGAIN, client))

    def _close(self, client: _Client) -> None:
        if client.sock is not None:
            self._selector.unregister(client.sock)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
            client.sock = None


def main(arguments: Sequence[str]) -> None:
    """Do what the pipe says, until its end."""
    raise_file_limit()
    # Elsewhere clients have machines of their own, and take no processor from the server.
    os.nice(10)
    driver = _Driver(Settings(**json.loads(arguments[0])))
    for line in sys.stdin:
        word, *values = json.loads(line)
        print(json.dumps(getattr(driver, word)(*values)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
