"""The WebSocket transport, against the server's half of wsproto and against raw bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest
import trio
import trio.testing
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    Request,
    TextMessage,
)
from wsproto.events import Message as Data

from mist.client import AccessDenied, Rejected, websocket
from mist.client.websocket import WebSocketTransport, open_websocket
from mist.errors import ConnectionLost


class Stream(anyio.abc.ByteStream):
    """A stream of trio's as one of anyio's, in memory."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        if data := await self._stream.receive_some(max_bytes):
            return bytes(data)
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        try:
            await self._stream.send_all(item)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Peer:
    """The server's end."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.socket = WSConnection(ConnectionType.SERVER)

    async def events(self) -> list[Event]:
        data = await self.stream.receive_some(65_536)
        self.socket.receive_data(bytes(data) or None)
        return list(self.socket.events())

    async def accept(self, *behind: Event) -> None:
        [request] = await self.events()
        assert isinstance(request, Request)
        assert (request.host, request.target) == ("h:1", "/x")
        assert request.subprotocols == ["mist.v1"]
        assert (b"x-auth-token", b"T") in request.extra_headers
        await self.send(AcceptConnection(subprotocol="mist.v1"), *behind)

    async def send(self, *events: Event) -> None:
        await self.stream.send_all(b"".join(self.socket.send(event) for event in events))


@asynccontextmanager
async def opened(*behind: Event) -> AsyncIterator[tuple[WebSocketTransport, Peer]]:
    """A wire and its peer; `behind` leaves in one write with the end of the handshake."""
    stream, theirs = trio.testing.memory_stream_pair()
    ours = Stream(stream)
    peer = Peer(theirs)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.accept, *behind)
            wire = await open_websocket(ours, host="h:1", resource="/x", token="T")
        yield wire, peer


def text(data: str, *, last: bool = True) -> TextMessage:
    return TextMessage(data=data, message_finished=last)


async def test_what_comes_with_the_handshake_is_read(autojump_clock: trio.abc.Clock) -> None:
    async with opened(text("1"), BytesMessage(data=b"2")) as (wire, peer):
        assert [await wire.receive(), await wire.receive()] == [b"1", b"2"]
        await wire.send([b"a", "ö".encode()])
        found = await peer.events()
        assert [event.data for event in found if isinstance(event, Data)] == ["a", "ö"]


async def test_a_message_in_pieces_is_one(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (wire, peer):
        await peer.send(text("", last=False), text("ä", last=False), Ping(b"p"), text("b"))
        await peer.send(text(""))
        assert [await wire.receive(), await wire.receive()] == ["äb".encode(), b""]
        assert await peer.events() == [Pong(bytearray(b"p"))]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x81\x81\0\0\0\0x", "mask"),
        (b"\x81\x01\xff", "utf-8"),
        (b"\xc1\x01x", "reserved"),
        (b"\x83\x01x", "opcode"),
        (b"\x80\x01x", "continuation"),
        (b"\x09\x00", "control"),
        (b"\x88\x01x", ""),
    ],
)
async def test_a_broken_frame_ends_the_connection(
    raw: bytes, why: str, autojump_clock: trio.abc.Clock
) -> None:
    async with opened() as (wire, peer):
        await peer.send(text("before"))
        await peer.stream.send_all(raw)
        assert await wire.receive() == b"before"
        with pytest.raises(ConnectionLost, match=f"(?i)connection lost: .*{why}"):
            await wire.receive()
        await wire.aclose()


@pytest.mark.parametrize(
    ("code", "error"), [(4401, AccessDenied), (4403, AccessDenied), (4400, Rejected)]
)
async def test_a_close_code_may_be_final(
    code: int, error: type[Exception], autojump_clock: trio.abc.Clock
) -> None:
    async with opened() as (wire, peer):
        await peer.send(text("before"), CloseConnection(code, "why"))
        assert await wire.receive() == b"before"
        with pytest.raises(error, match="why"):
            await wire.receive()
        assert await peer.events() == [CloseConnection(code, "why")]


async def test_a_message_that_is_too_big_is_not_gathered(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    monkeypatch.setattr(websocket, "_MAX_MESSAGE", 1_000)
    async with opened() as (wire, peer):
        await peer.send(*(text("x" * 100, last=False) for _ in range(10)), text(""))
        assert await wire.receive() == b"x" * 1_000
        await peer.send(*(text("x" * 100, last=False) for _ in range(11)))
        with pytest.raises(ConnectionLost, match="more than 1,000"):
            await wire.receive()
        [closing] = await peer.events()
        assert isinstance(closing, CloseConnection)
        assert closing.code == 1009


async def test_closing_says_goodbye_and_waits_for_it(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (wire, peer), trio.open_nursery() as nursery:
        nursery.start_soon(wire.aclose)
        assert await peer.events() == [CloseConnection(1000, "")]
        await peer.send(CloseConnection(1000))
        await trio.testing.wait_all_tasks_blocked()
        assert await peer.stream.receive_some() == b""


async def test_closing_is_ended_by_a_peer_that_is_gone(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (wire, peer):
        await peer.stream.aclose()
        await wire.aclose()


async def test_pings_are_answered_while_something_is_written(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with opened() as (wire, peer), trio.open_nursery() as nursery:
        found: list[Event] = []

        async def write() -> None:
            for _ in range(100):
                await wire.send([b"x" * 1_000])

        nursery.start_soon(wire.receive)
        nursery.start_soon(write)
        for _ in range(100):
            await peer.send(Ping(b"p"))
        while len(found) < 200:
            found += await peer.events()
        assert sum(isinstance(event, Pong) for event in found) == 100
        nursery.cancel_scope.cancel()
