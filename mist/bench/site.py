"""The server that is measured: one started for the occasion, or one that runs already."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import attrs

from mist.bench.connections import Endpoint, ask
from mist.bench.dialect import Frames, Line
from mist.bench.errors import BenchError, UnexpectedBytes
from mist.bench.http.dialect import Http
from mist.bench.load import Target
from mist.bench.process import Started, cpu_seconds, start_server

__all__ = ["RESOURCE", "Place", "Site", "administer", "given_site", "own_site", "site_of"]

RESOURCE: Final = "/subscribe/websocket"


@attrs.frozen
class Place:
    """One listener of a server.

    Attributes:
        resource: what a WebSocket request asks for, path and query.
    """

    host: str
    port: int
    resource: str = attrs.field(default=RESOURCE, repr=False)  # a query may hold a ticket

    @property
    def authority(self) -> str:
        """`host:port`, as a Host header has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Site:
    """A server, by the endpoints it has.

    Attributes:
        tcp, ws, http: None where it has no such endpoint, or it wasn't named.
        pid: its process, where that is known and on this machine.
    """

    tcp: Endpoint | None
    ws: Endpoint | None
    pid: int | None
    http: Endpoint | None = None

    def endpoint(self, transport: str) -> Endpoint:
        """Where subscribers on `tcp`, `ws` or `sse` (event streams) connect.

        Raises:
            BenchError: nowhere.
        """
        if transport == "sse":
            return self.http_endpoint()[0]
        found = self.tcp if transport == "tcp" else self.ws
        if found is None:
            raise BenchError(f"no {transport}:// server is given")
        return found

    def http_endpoint(self) -> tuple[Endpoint, Http]:
        """Where requests go, and how they are written.

        Raises:
            BenchError: nowhere.
        """
        if self.http is None:
            raise BenchError("no http:// server is given")
        dialect = self.http.dialect
        assert isinstance(dialect, Http)
        return self.http, dialect

    def target(self, transport: str) -> Target:
        """Publishers on TCP, subscribers on `tcp`, `ws` or `sse`.

        Raises:
            BenchError: one of them is missing; or subscribers would be on `ws` or `sse` and get
                ids.
        """
        if self.tcp is None:
            raise BenchError("publishing takes a tcp:// server, too")
        subscribe = self.endpoint(transport)
        if transport != "tcp" and _has_history(self.tcp):
            # The driver compares bytes, which have to be known before the clock runs.
            raise BenchError(
                f"this server has a history, so its deliveries over {transport} carry ids, which "
                "can't be foretold; use a server with --history none, or subscribers on tcp"
            )
        return Target(self.tcp, subscribe, self.cpu)

    def cpu(self) -> float | None:
        """CPU time of its process so far, in seconds; None where that can't be told."""
        return None if self.pid is None else cpu_seconds(self.pid)

    def process(self) -> int:
        """The server's process.

        Raises:
            BenchError: it isn't known.
        """
        if self.pid is None:
            raise BenchError("the server's process is not known")
        return self.pid


@contextmanager
def own_site() -> Iterator[Site]:
    """A server of our own on loopback, gone at the end of the block.

    Raises:
        BenchError: it didn't start.
    """
    with start_server() as server, site_of(server) as site:
        yield site


@contextmanager
def site_of(server: Started) -> Iterator[Site]:
    """A server that was started for the occasion, with all of its endpoints."""
    tcp, ws, http = [
        Place(server.host, port) for port in (server.tcp_port, server.ws_port, server.http_port)
    ]
    with given_site(tcp, ws, http, pid=server.pid) as site:
        yield site


@contextmanager
def given_site(
    tcp: Place | None,
    ws: Place | None,
    http: Place | None = None,
    *,
    secret: str | None = None,
    token: str | None = None,
    pid: int | None = None,
) -> Iterator[Site]:
    """A server that runs already.

    Without a token for `ws` and `http`, one that grants everything is registered over `tcp` and
    taken back at the end.

    Raises:
        BenchError: there is no such server or process, or it doesn't let us in.
    """
    if pid is not None and sys.platform == "linux" and cpu_seconds(pid) is None:
        raise BenchError(f"there is no process {pid} here")
    line = None if tcp is None else Endpoint(tcp.host, tcp.port, Line(secret))
    with ExitStack() as stack:
        if token is None and line is not None and (ws is not None or http is not None):
            token = stack.enter_context(_new_token(line))
        frames = requests = None
        if ws is not None:
            frames = Endpoint(ws.host, ws.port, Frames(ws.authority, ws.resource, token))
        if http is not None:
            requests = Endpoint(http.host, http.port, Http(http.authority, token, secret))
        yield Site(line, frames, pid, requests)


@contextmanager
def _new_token(tcp: Endpoint) -> Iterator[str]:
    token = secrets.token_hex(16)
    administer(tcp, f"register * {token}")
    try:
        yield token
    finally:
        administer(tcp, f"unregister {token}")


def _has_history(tcp: Endpoint) -> bool:
    with tcp.connect() as sock:
        return ask(sock, b"last\n" + Line.fence, Line.fenced).startswith(b"last ")


def administer(tcp: Endpoint, command: str) -> None:
    with tcp.connect() as sock:
        answer = ask(sock, f"{command}\n".encode() + Line.fence, Line.fenced)
    if answer != Line.fenced:
        raise UnexpectedBytes(answer)
