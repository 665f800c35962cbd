"""Revocation: a token is revoked at one node, and its session is at the other."""

import secrets
import socket
import time
from typing import Final

from mist.bench.connections import ask
from mist.bench.dialect import Line
from mist.bench.errors import BenchError, UnexpectedBytes
from mist.bench.latency import Quantiles
from mist.bench.nodes.figure import Measured
from mist.bench.nodes.realm import Realm
from mist.bench.script import TAG

__all__ = ["measure_revocation"]

_CLOSE: Final = 0x88  # the first byte of a WebSocket's close frame
_TIMEOUT: Final = 10.0  # seconds until a session has to be ended


def measure_revocation(realm: Realm, *, count: int) -> list[Measured]:
    """From the command at one node until the other has closed the WebSocket, `count` times.

    Raises:
        BenchError: a session goes on.
    """
    with realm.one.line.connect() as admin:
        seconds = [_revoke(realm, admin) for _ in range(count)]
    found = Quantiles.of(seconds)
    note = f"of {count:,}"
    return [
        Measured(f"revocation, {name}", "ms", [microseconds / 1e3], note)
        for name, microseconds in (
            ("p50", found.p50_us),
            ("p99", found.p99_us),
            ("longest", found.max_us),
        )
    ]


def _revoke(realm: Realm, admin: socket.socket) -> float:
    """Seconds until the session of a token of its own has ended."""
    token = secrets.token_hex(16)
    _command(admin, f"register {TAG} {token}")
    endpoint = realm.other.websocket(token)
    with endpoint.subscribed(endpoint.dialect.subscribe([TAG])) as session:
        session.settimeout(_TIMEOUT)
        start = time.perf_counter()
        admin.sendall(f"unregister {token}\n".encode() + Line.fence)
        _await_close(session)
        seconds = time.perf_counter() - start
    _read_fence(admin)
    return seconds


def _await_close(session: socket.socket) -> None:
    try:
        got = session.recv(256)
    except ConnectionResetError:
        return
    except TimeoutError as error:
        raise BenchError(f"a revoked session goes on after {_TIMEOUT:.0f} s") from error
    if got and got[0] != _CLOSE:
        raise UnexpectedBytes(got)


def _command(admin: socket.socket, command: str) -> None:
    answer = ask(admin, f"{command}\n".encode() + Line.fence, Line.fenced)
    if answer != Line.fenced:
        raise UnexpectedBytes(answer)


def _read_fence(admin: socket.socket) -> None:
    answer = ask(admin, b"", Line.fenced)
    if answer != Line.fenced:
        raise UnexpectedBytes(answer)
