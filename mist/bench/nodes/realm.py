"""An engine and its nodes, as processes of their own."""

import http.client
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs

from mist.auth.key import make_key_file
from mist.bench.connections import Endpoint
from mist.bench.dialect import Frames, Line
from mist.bench.errors import BenchError
from mist.bench.history.disk import scratch
from mist.bench.nodes.engines import HOST, EngineServer
from mist.bench.process import Started, cpu_seconds, start_server
from mist.bench.site import RESOURCE

__all__ = ["Realm", "RunningNode", "open_realm"]

_READY: Final = 600.0  # seconds; a new node may have gigabytes to read
_POLL: Final = 0.01  # seconds between two requests for /readyz


@attrs.frozen
class RunningNode:
    """A node that runs."""

    server: Started

    @property
    def line(self) -> Endpoint:
        """The line protocol."""
        return Endpoint(self.server.host, self.server.tcp_port, Line())

    def websocket(self, token: str) -> Endpoint:
        """The WebSocket endpoint, for a token."""
        host, port = self.server.host, self.server.ws_port
        return Endpoint(host, port, Frames(f"{host}:{port}", RESOURCE, token))

    def cpu(self) -> float | None:
        """CPU seconds so far; None where it can't be told."""
        return cpu_seconds(self.server.pid)

    def wait_until_ready(self) -> None:
        """Ask `/readyz` until it says so.

        Raises:
            BenchError: it never does.
        """
        deadline = time.perf_counter() + _READY
        while not self._is_ready():
            if time.perf_counter() > deadline:
                raise BenchError(f"a node was not ready after {_READY:.0f} s")
            time.sleep(_POLL)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.server.http_port, timeout=10)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"a node does not answer: {error}") from error
        finally:
            connection.close()


@attrs.frozen
class Realm:
    """An engine with two nodes.

    Attributes:
        engine: that they share.
        one, other: publishers are at the first, subscribers at the second.
        folder: where nodes have their data.
    """

    engine: EngineServer
    one: RunningNode
    other: RunningNode
    folder: Path

    @contextmanager
    def another(self) -> Iterator[RunningNode]:
        """One more node, killed at the end of the block. It need not be ready yet.

        Raises:
            BenchError: it didn't start.
        """
        with _node(self.engine, self.folder) as node:
            yield node


@contextmanager
def open_realm(engine: EngineServer, folder: Path | None) -> Iterator[Realm]:
    """Two nodes that are ready, on an engine that runs.

    Args:
        folder: where directories are made and removed; None for the system's place for such.

    Raises:
        BenchError: one didn't start.
    """
    with scratch(folder) as place, ExitStack() as stack:
        make_key_file(place / "token.key")
        one, other = [stack.enter_context(_node(engine, place)) for _ in range(2)]
        for each in (one, other):
            each.wait_until_ready()
        yield Realm(engine, one, other, place)


@contextmanager
def _node(engine: EngineServer, folder: Path) -> Iterator[RunningNode]:
    options = ("--token-key-file", str(folder / "token.key"), "--durability", engine.durability)
    with start_server(
        *options,
        "--keep-bytes",
        "1024GiB",
        history=None,
        tokens=None,
        folder=folder,
        variables={"MIST_ENGINE": engine.url()},  # its password is not for the command line
    ) as server:
        yield RunningNode(server)
