"""The server that is measured: one started for the occasion, or one that runs already."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import attrs

from mist.bench.connections import Endpoint, ask
from mist.bench.dialect import Frames, Line
from mist.bench.errors import BenchError, UnexpectedBytes
from mist.bench.load import Target
from mist.bench.process import cpu_seconds, start_server

__all__ = ["RESOURCE", "Place", "Site", "given_site", "own_site"]

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
        tcp, ws: None where it has no such endpoint, or it wasn't named.
        pid: its process, where that is known and on this machine.
    """

    tcp: Endpoint | None
    ws: Endpoint | None
    pid: int | None

    def endpoint(self, transport: str) -> Endpoint:
        """Where subscribers on `tcp` or `ws` connect.

        Raises:
            BenchError: nowhere.
        """
        found = self.tcp if transport == "tcp" else self.ws
        if found is None:
            raise BenchError(f"no {transport}:// server is given")
        return found

    def target(self, transport: str) -> Target:
        """Publishers on TCP, subscribers on `tcp` or `ws`.

        Raises:
            BenchError: one of them is missing; or subscribers would be on `ws` and get ids.
        """
        if self.tcp is None:
            raise BenchError("publishing takes a tcp:// server, too")
        if self.ws is not None and transport == "ws" and _has_history(self.tcp):
            # The driver compares bytes, which have to be known before the clock runs.
            raise BenchError(
                "this server has a history, so its deliveries over ws:// carry ids, which can't "
                "be foretold; use --transport tcp, or a server with --history none"
            )
        cpu = partial(cpu_seconds, self.pid) if self.pid is not None else lambda: None
        return Target(self.tcp, self.endpoint(transport), cpu)

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
    with start_server() as server:
        tcp, ws = Place(server.host, server.tcp_port), Place(server.host, server.ws_port)
        with given_site(tcp, ws, pid=server.pid) as site:
            yield site


@contextmanager
def given_site(
    tcp: Place | None,
    ws: Place | None,
    *,
    secret: str | None = None,
    token: str | None = None,
    pid: int | None = None,
) -> Iterator[Site]:
    """A server that runs already.

    Without a token for `ws`, one that grants everything is registered over `tcp` and taken
    back at the end.

    Raises:
        BenchError: there is no such server or process, or it doesn't let us in.
    """
    if pid is not None and sys.platform == "linux" and cpu_seconds(pid) is None:
        raise BenchError(f"there is no process {pid} here")
    line = None if tcp is None else Endpoint(tcp.host, tcp.port, Line(secret))
    with ExitStack() as stack:
        frames = None
        if ws is not None:
            if token is None and line is not None:
                token = stack.enter_context(_new_token(line))
            dialect = Frames(ws.authority, ws.resource, token)
            frames = Endpoint(ws.host, ws.port, dialect)
        yield Site(line, frames, pid)


@contextmanager
def _new_token(tcp: Endpoint) -> Iterator[str]:
    token = secrets.token_hex(16)
    _administer(tcp, f"register * {token}")
    try:
        yield token
    finally:
        _administer(tcp, f"unregister {token}")


def _has_history(tcp: Endpoint) -> bool:
    with tcp.connect() as sock:
        return ask(sock, b"last\n" + Line.fence, Line.fenced).startswith(b"last ")


def _administer(tcp: Endpoint, command: str) -> None:
    with tcp.connect() as sock:
        answer = ask(sock, f"{command}\n".encode() + Line.fence, Line.fenced)
    if answer != Line.fenced:
        raise UnexpectedBytes(answer)
