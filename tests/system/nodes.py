"""Nodes as processes, for tests of this folder, and the engine that they share."""

import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.engine.postgres_server import PostgresServer
from tests.engine.redis_server import RedisServer
from tests.ports import free_ports
from tests.processes import Process, serving, token_key

__all__ = ["APART", "ON_REDIS", "EngineServer", "Nodes", "Ports", "engine_server"]

EngineServer: TypeAlias = RedisServer | PostgresServer
Ports: TypeAlias = tuple[int, int, int]
"""Of the listeners of a node, for lines, WebSockets and HTTP."""

ON_REDIS = ("redis", pytest.param("postgres", marks=pytest.mark.slow))
"""Kinds for tests in which the engine matters little: in CI a Redis will do."""

APART = 4.0
"""Seconds. An engine that is killed sooner after a node can't know what that node had: another
epoch begins, and what is under way is refused."""

SCHEMES = ("tcp", "ws", "http")
OPTIONS = (
    # Clients come from one address, with one token.
    *("--max-connections-per-address", "20000", "--max-unauthenticated", "20000"),
    *("--token-rate", "1000000", "--log-level", "error"),
)


@contextmanager
def engine_server(kind: str, folder: Path) -> Iterator[EngineServer]:
    """A Redis or a PostgreSQL of its own, which acknowledges what is on its disk.

    Args:
        kind: `redis` or `postgres`.
        folder: where it may have one.
    """
    if kind == "postgres":
        # So that calls can be counted.
        with PostgresServer("system", "track_functions=all") as server:
            yield server
    else:
        data = folder / "redis"
        data.mkdir()
        with RedisServer(data, "wheel", "--appendfsync", "always") as server:
            yield server


class Nodes:
    """Nodes that have the same ports whenever they are started again. All run in its block.

    Args:
        folder: where they have their data.
        options: of all of them.

    Attributes:
        ports: of each node.
        engines: the URL of the engine for each, which may lead there through something.
        killed: when one was last, by the monotonic clock.
    """

    def __init__(self, folder: Path, engine: EngineServer, count: int, *options: str) -> None:
        self.ports: list[Ports] = []
        self.engines = [engine.url()] * count
        self.killed = 0.0
        for _ in range(count):
            one, two, three = free_ports(3)
            self.ports.append((one, two, three))
        key = token_key(folder)
        self._options = ("--token-key-file", str(key), *OPTIONS, *options)
        self._folder = folder
        self._running: dict[int, tuple[ExitStack, Process]] = {}

    def start(self, number: int) -> None:
        listen = [
            part
            for scheme, port in zip(SCHEMES, self.ports[number], strict=True)
            for part in ("--listen", f"{scheme}://127.0.0.1:{port}")
        ]
        stack = ExitStack()
        data = self._folder / f"node{number}"
        options = ("--engine", self.engines[number], *self._options)
        node = stack.enter_context(serving(data, *options, listen=listen))
        self._running[number] = stack, node

    def process(self, number: int) -> Process:
        return self._running[number][1]

    def kill(self, number: int) -> None:
        """As a crash does it."""
        stack, node = self._running.pop(number)
        node.popen.kill()
        stack.close()
        self.killed = time.monotonic()

    def stop(self, number: int) -> None:
        """As an administrator does it."""
        stack, node = self._running.pop(number)
        with stack:
            assert node.stop() == 0

    def forget(self, number: int) -> None:
        """Remove the mirror of a node that doesn't run."""
        paths = list((self._folder / f"node{number}").glob("mirror.db*"))
        assert paths
        for path in paths:
            path.unlink()

    def send(self, number: int, what: signal.Signals) -> None:
        self._running[number][1].popen.send_signal(what)

    def url(self, number: int) -> str:
        """Of the line protocol."""
        return f"tcp://127.0.0.1:{self.ports[number][0]}"

    def until_ready(self, number: int) -> float:
        """Wait until a node is ready; how many seconds it took."""
        began = time.monotonic()
        while True:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.ports[number][2]}/readyz", timeout=5
                ):
                    return time.monotonic() - began
            except OSError:  # 503 until it is
                assert time.monotonic() - began < 30, "the node does not become ready"
                time.sleep(0.02)

    def __enter__(self) -> "Nodes":
        for number in range(len(self.ports)):
            self.start(number)
        return self

    def __exit__(self, *_: object) -> None:
        for stack, _node in self._running.values():
            stack.close()
