"""Streams without a session."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mist.transports.streams import ByteStream, close_now


class Sockets:
    """Makes connections: both ends of each."""

    def __init__(self) -> None:
        self._made: list[trio.SocketStream] = []

    def connect(self) -> tuple[trio.SocketStream, trio.SocketStream]:
        near, far = (trio.SocketStream(each) for each in trio.socket.socketpair())
        self._made += [near, far]
        return near, far

    async def replace(
        self, stream: trio.SocketStream
    ) -> tuple[trio.SocketStream, trio.SocketStream]:
        """Close a stream, and connect again under the number of its file; that end comes first."""
        number = stream.socket.fileno()
        await close_now(stream)
        ends = self.connect()
        assert number in [each.socket.fileno() for each in ends]
        near, far = sorted(ends, key=lambda end: end.socket.fileno() != number)
        return near, far

    async def aclose(self) -> None:
        for each in self._made:
            await each.aclose()


@pytest.fixture
async def sockets() -> AsyncIterator[Sockets]:
    sockets = Sockets()
    yield sockets
    await sockets.aclose()


async def test_closing_again_takes_nothing_from_who_connected_since(sockets: Sockets) -> None:
    near, _ = sockets.connect()
    stream = ByteStream(near)
    await near.send_eof()  # as one does who closes it, too
    again, other = await sockets.replace(near)
    await other.send_all(b"for another")
    with trio.fail_after(5):
        await stream.aclose()
        assert await stream.receive(100) == b""
        assert await again.receive_some(100) == b"for another"


async def test_what_is_sent_on_a_closed_stream_reaches_no_one_who_connected_since(
    sockets: Sockets,
) -> None:
    near, _ = sockets.connect()
    stream = ByteStream(near)
    _, other = await sockets.replace(near)
    with pytest.raises(trio.BrokenResourceError):
        await stream.send(b"not for another")
    with trio.move_on_after(0.05) as scope:
        await other.receive_some(100)
    assert scope.cancelled_caught


async def test_a_stream_closed_while_it_is_read_is_at_its_end(sockets: Sockets) -> None:
    near, _ = sockets.connect()
    stream = ByteStream(near)
    found = []

    async def read() -> None:
        found.append(await stream.receive(100))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await close_now(near)
    assert found == [b""]
