"""A proxy before an engine, which does to connections what networks do."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import attrs
import trio

from mist.change import Change

HOST = "127.0.0.1"


@attrs.define(eq=False)
class Proxy:
    """Forwards connections to a port. Run it in a nursery.

    Attributes:
        port: where it listens, once it runs.
        to: the port that it forwards to.
        delay: seconds for which each piece is held, on either way.
        delayed: on connections only on which these bytes have been sent; on all where it is empty.
        frozen: nothing is forwarded, nor is anything closed; it is once this is over.
        trap: the first request that has these bytes springs it, once; none where it is empty.
        where: it is sprung before the request is forwarded, which is thrown away then; behind it,
            and its reply is thrown away; or once the reply was forwarded.
        sprung: called then.
        losing_requests, losing_replies: these are thrown away.
        connections: so many were opened.
        received: bytes that came back.
    """

    to: int
    port: int = 0
    delay: float = 0.0
    delayed: bytes = b""
    frozen: bool = False
    trap: bytes = b""
    where: Literal["before", "behind", "answered"] = "before"
    sprung: Callable[[], None] = lambda: None
    losing_requests: bool = False
    losing_replies: bool = False
    connections: int = 0
    received: int = 0
    _trapped: int = 0  # the connection whose next reply springs the trap
    _marked: set[int] = attrs.field(factory=set)  # connections on which `delayed` was sent
    _forgotten: int = 0  # connections up to this one are open at their ends only
    _changed: Change = attrs.field(factory=Change)
    _streams: set[trio.SocketStream] = attrs.field(factory=set)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve, listeners)
            task_status.started()

    async def _serve(self, client: trio.SocketStream) -> None:
        self.connections += 1
        number = self.connections
        try:
            server = await trio.open_tcp_stream(HOST, self.to)
        except OSError:
            await client.aclose()
            return
        both = {client, server}
        self._streams |= both
        try:
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(self._forward, client, server, number, nursery)
                nursery.start_soon(self._forward, server, client, number, nursery)
        finally:
            self._streams -= both

    async def _forward(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        number: int,
        nursery: trio.Nursery,
    ) -> None:
        replies = source.socket.getpeername()[1] == self.to
        try:
            async for some in source:
                if not replies and self.delayed and self.delayed in some:
                    self._marked.add(number)
                if not self.delayed or number in self._marked:
                    await trio.sleep(self.delay)
                while self.frozen:
                    await self._changed.wait()
                if replies:
                    self.received += len(some)
                losing = self.losing_replies if replies else self.losing_requests
                if not replies and self.trap and self.trap in some:
                    self.trap = b""
                    if self.where == "before":
                        losing = True
                        self.sprung()
                    else:
                        self._trapped = number
                springs = replies and number == self._trapped
                losing = losing or (springs and self.where == "behind")
                if not losing and number > self._forgotten:
                    await sink.send_all(some)
                if springs:
                    self._trapped = 0
                    self.sprung()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        nursery.cancel_scope.cancel()

    @property
    def open(self) -> int:
        """Connections that are."""
        return len(self._streams) // 2

    @contextmanager
    def freeze(self) -> Iterator[None]:
        self.frozen = True
        yield
        self.frozen = False
        self._changed.notify()

    @contextmanager
    def lose_requests(self) -> Iterator[None]:
        self.losing_requests = True
        yield
        self.losing_requests = False

    @contextmanager
    def lose_replies(self) -> Iterator[None]:
        self.losing_replies = True
        yield
        self.losing_replies = False

    def forget(self) -> None:
        """Throw away all that comes on connections that are open now, without a word."""
        self._forgotten = self.connections

    def cut(self) -> None:
        """Reset all connections."""
        for each in self._streams:
            each.socket.shutdown(socket.SHUT_RDWR)
