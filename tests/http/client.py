"""An HTTP client for tests: one connection, requests one after the other, nothing hidden.

    async with connect(server) as client:
        response = await client.request("GET", "/healthz")
        async with client.stream("GET", "/v1/stream?tags=a") as response:
            while chunk := await response.receive():
                ...

`request(server, ...)` does one on a connection of its own.
"""

import json as json_module
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio

from tests.servers import Served

__all__ = [
    "Client",
    "Response",
    "Streamed",
    "connect",
    "http_address",
    "request",
    "stalled_connection",
    "told_before_the_body",
]


@attrs.frozen
class Response:
    """A whole response.

    Attributes:
        headers: names in lower case; of repeated ones the last.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, as JSON."""
        return json_module.loads(self.body)


class Streamed:
    """A response whose body is read as it comes."""

    def __init__(self, client: "Client", head: h11.Response) -> None:
        self.status = head.status_code
        self.headers = _headers(head)
        self._client = client
        self._ended = False

    async def receive(self) -> bytes:
        """What has come of the body; empty at its end.

        Raises:
            h11.RemoteProtocolError: the connection ended before the body did.
        """
        while not self._ended:
            event = await self._client.next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            self._ended = isinstance(event, h11.EndOfMessage)
        return b""

    async def read(self) -> bytes:
        """All of the body that is left."""
        chunks = []
        while chunk := await self.receive():
            chunks.append(chunk)
        return b"".join(chunks)


class Client:
    """One connection.

    Attributes:
        connection: to send what no client would.
    """

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self.connection = stream
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        json: object = None,
    ) -> Response:
        """Ask, and read the whole answer. With `json`, that is the body, and says so."""
        async with self.stream(method, path, headers, body, json=json) as response:
            return Response(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        json: object = None,
    ) -> AsyncIterator[Streamed]:
        """Ask, and read the answer as it comes. The connection can be used again after its end."""
        await self.send_request(method, path, headers, body, json=json)
        yield await self.receive_head()

    async def send_request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        json: object = None,
    ) -> None:
        """Ask, and don't wait for an answer."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        sent = {"Host": self._host, **(headers or {})}
        if json is not None:
            body = json_module.dumps(json).encode()
            sent.setdefault("Content-Type", "application/json")
        if body is not None:
            sent.setdefault("Content-Length", str(len(body)))
        head = h11.Request(method=method, target=path, headers=list(sent.items()))
        wire = self._http.send(head) or b""
        if body:
            wire += self._http.send(h11.Data(body)) or b""
        wire += self._http.send(h11.EndOfMessage()) or b""
        await self.connection.send_all(wire)

    async def receive_head(self) -> Streamed:
        """The beginning of the answer."""
        while True:
            event = await self.next_event()
            if isinstance(event, h11.Response):
                return Streamed(self, event)
            assert isinstance(event, h11.InformationalResponse), event

    async def next_event(self) -> object:
        """What comes next, as h11 sees it."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self.receive_some())
        return event

    async def receive_some(self) -> bytes:
        """Bytes as they come; empty at the end of the connection, however that came."""
        try:
            return bytes(await self.connection.receive_some(65_536))
        except trio.BrokenResourceError:
            return b""

    async def closed(self) -> bool:
        """Whether nothing but the end of the connection comes; waits for what comes."""
        return not self._http.trailing_data[0] and not await self.receive_some()


def http_address(server: Served) -> tuple[str, int]:
    """Host and port of a server's first HTTP listener."""
    url = next(url for url in server.urls if url.startswith("http://"))
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


@asynccontextmanager
async def connect(server: Served) -> AsyncIterator[Client]:
    """A connection to a server's first HTTP listener."""
    host, port = http_address(server)
    async with await trio.open_tcp_stream(host, port) as stream:
        yield Client(stream, f"{host}:{port}")


@asynccontextmanager
async def stalled_connection(server: Served) -> AsyncIterator[Client]:
    """Likewise, with a small window, so that what is not read stays at the server."""
    host, port = http_address(server)
    with trio.socket.socket() as sock:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4_096)
        await sock.connect((host, port))
        yield Client(trio.SocketStream(sock), f"{host}:{port}")


async def request(
    server: Served,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    *,
    json: object = None,
) -> Response:
    """One request on a connection of its own."""
    async with connect(server) as client:
        return await client.request(method, path, headers, body, json=json)


async def told_before_the_body(server: Served, head: bytes) -> bytes:
    """The first line of the answer to a request of whose body nothing is sent."""
    async with connect(server) as client:
        await client.connection.send_all(head)
        with trio.fail_after(5):
            return (await client.receive_some()).partition(b"\r\n")[0]


def _headers(head: h11.Response) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1") for name, value in head.headers}
