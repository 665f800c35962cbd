"""What a connection by a JWT costs the server beside one by a registered token: µs of CPU.

python -m tests.benchmarks.jwt [--rounds N] [--connections N]

Every connection has a JWT of its own, which was never seen before; what its signature takes the
server is measured in it (`jwt_server`), and subtracted. `again` is the same JWT each time, as of a
client that reconnects. Connections open a WebSocket, subscribe to one tag, are answered, and leave,
one after another.
"""

import argparse
import itertools
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mist.bench.process import Started, cpu_seconds, start_server
from tests.auth.jwt.issuer import SECRET, claims, sign, write_jwks
from tests.benchmarks.jwt_server import BYTES

KEYS = {"HS256": "secret", "EdDSA": "ed", "ES256": "p256", "RS256": "rsa"}
_UPGRADE = (
    b"GET /subscribe/websocket HTTP/1.1\r\n"
    b"Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"X-Auth-Token: %b\r\n\r\n"
)
_SUBSCRIBE = b'{"command":"subscribe","tags":["room:1"]}'
_FRAME = b"\x81%c\0\0\0\0%b" % (0x80 | len(_SUBSCRIBE), _SUBSCRIBE)  # masked with zeros


def connect(server: Started, token: str) -> None:
    """Open a WebSocket, subscribe, and leave."""
    with socket.create_connection((server.host, server.ws_port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(_UPGRADE % token.encode())
        _read_to(sock, b"\r\n\r\n", b" 101 ")
        sock.sendall(_FRAME)
        _read_to(sock, b"}", b'"success":true')
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def _read_to(sock: socket.socket, end: bytes, wanted: bytes) -> None:
    """Read an answer, and check it."""
    got = b""
    while not got.endswith(end):
        more = sock.recv(65_536)
        got += more
        if not more:
            break
    if wanted not in got:
        raise SystemExit(f"refused: {got!r}")


def cost(server: Started, signing: Path, tokens: list[str]) -> tuple[float, float]:
    """µs of the server's CPU for each connection; and those of them for its signature.

    Args:
        signing: where the server adds up the latter.
    """
    before, signed_before = cpu_seconds(server.pid), _seconds(signing)
    for token in tokens:
        connect(server, token)
    time.sleep(0.2)
    after, signed_after = cpu_seconds(server.pid), _seconds(signing)
    assert before is not None
    assert after is not None
    per_token = 1e6 / len(tokens)
    return per_token * (after - before), per_token * (signed_after - signed_before)


def _seconds(path: Path) -> float:
    (seconds,) = struct.unpack("d", path.read_bytes())
    return float(seconds)


def tokens_of(name: str, count: int, numbers: Iterator[int]) -> list[str]:
    return [sign(claims(jti=f"t{next(numbers)}"), name) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=1_000)
    arguments = parser.parse_args()
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in KEYS.values() if name != "secret"]
        secret = Path(folder, "secret")
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        options = (
            "--jwt-jwks",
            str(write_jwks(Path(folder, "jwks.json"), *names)),
            "--jwt-secret-file",
            str(secret),
            "--jwt-issuer",
            "https://id.example",
            "--jwt-audience",
            "mist",
        )
        signing = Path(folder, "signing")
        signing.write_bytes(bytes(BYTES))
        command = ("tests.benchmarks.jwt_server", str(signing))
        with start_server(*options, command=command) as server:
            with socket.create_connection((server.host, server.tcp_port)) as sock:
                sock.sendall(b"register room:1 registered\nping\n")
                assert sock.recv(100) == b"pong\n"
            rows: dict[str, list[tuple[float, float]]] = {}
            for _ in range(arguments.rounds + 1):  # the first one is to warm up
                plain = cost(server, signing, ["registered"] * arguments.connections)
                rows.setdefault("registered", []).append(plain)
                for algorithm, name in KEYS.items():
                    made = tokens_of(name, arguments.connections, numbers)
                    rows.setdefault(algorithm, []).append(cost(server, signing, made))
                    again = made[:1] * arguments.connections
                    row = f"{algorithm}, again"
                    rows.setdefault(row, []).append(cost(server, signing, again))
    print(f"{'':16}{'µs':>8}{'signature':>12}{'times a registered token, without it':>40}")
    registered = statistics.median([whole for whole, _ in rows["registered"][1:]])
    for row, costs in rows.items():
        median, signature = map(statistics.median, zip(*costs[1:], strict=True))
        print(f"{row:16}{median:8.0f}{signature:12.0f}{(median - signature) / registered:40.2f}")


if __name__ == "__main__":
    main()
