"""A plain TCP client for tests: what a person types into nc."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.servers import Served, port_of


class Lines:
    """One connection; reads whole lines."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._held = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def line(self) -> bytes:
        """The next line, its LF included; what is left, at the end of the stream."""
        while b"\n" not in self._held:
            try:
                data = await self.stream.receive_some(65_536)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                rest, self._held = self._held, b""
                return rest
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return line + b"\n"

    async def ask(self, data: bytes) -> list[bytes]:
        """Send, and return every line up to the fence behind it."""
        await self.send(data + b"ping\n")
        found = []
        while (line := await self.line()) not in (b"pong\n", b""):
            found.append(line)
        return found

    async def rest(self) -> bytes:
        """Everything up to the end of the stream."""
        found = self._held
        try:
            while data := await self.stream.receive_some(65_536):
                found += data
        except trio.BrokenResourceError:
            pass
        return found


@asynccontextmanager
async def talk(server: Served, index: int = 0) -> AsyncIterator[Lines]:
    """A connection to a server's listener."""
    port = port_of(server.urls[index])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield Lines(stream)
