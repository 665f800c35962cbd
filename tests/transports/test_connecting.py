"""What a WebSocket costs that connects, subscribes and leaves: steps of its task, and no more."""

import socket
from collections.abc import AsyncIterator

import attrs
import pytest
import trio
import trio.testing

from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.bench.dialect import masked_frame
from mist.commands import Register
from mist.sessions.hub import Hub
from mist.transports.connection import Connection
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins
from mist.transports.websocket import WebSocketTransport

TOKEN = "t0ken"
HANDSHAKE = (
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Auth-Token: t0ken\r\n\r\n"
)
SUBSCRIBE = masked_frame(0x81, b'{"command":"subscribe","tags":["a"]}')
CLOSE = masked_frame(0x88, b"\x03\xe8")


@attrs.define(eq=False)
class Steps(trio.abc.Instrument):
    """Counts the steps of the task that serves a connection."""

    taken: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += "handle" in task.name


@pytest.fixture
async def hub() -> Hub:
    hub = Hub(LocalRegistry(MemoryStore()))
    await hub.registry.execute([Register(TOKEN, frozenset("a"))])
    return hub


@attrs.define
class Served:
    """A client of a WebSocket, whose server's side ends by itself."""

    client: trio.SocketStream
    steps: Steps
    over: trio.Event = attrs.field(factory=trio.Event)

    async def ask(self, question: bytes) -> bytes:
        await self.client.send_all(question)
        return bytes(await self.client.receive_some())


@pytest.fixture
async def served(hub: Hub, nursery: trio.Nursery) -> AsyncIterator[Served]:
    near, far = (trio.socket.from_stdlib_socket(each) for each in socket.socketpair())
    trio.lowlevel.add_instrument(steps := Steps())
    served = Served(trio.SocketStream(far), steps)
    await served.client.send_all(HANDSHAKE)
    transport = WebSocketTransport(hub, ConnectionLimiter(), Origins())

    async def handle() -> None:
        await transport.handle(trio.SocketStream(near), nursery)
        served.over.set()

    nursery.start_soon(handle)
    yield served
    trio.lowlevel.remove_instrument(steps)
    await served.client.aclose()


async def test_a_connection_is_one_task_of_three_steps(served: Served) -> None:
    assert (await served.client.receive_some()).startswith(b"HTTP/1.1 101 ")
    assert served.steps.taken == 1  # the handshake was read, answered, and the session is there
    assert b'"success":true' in await served.ask(SUBSCRIBE)
    assert served.steps.taken == 2
    assert await served.ask(CLOSE) == b"\x88\x02\x03\xe8"
    assert served.steps.taken == 3


async def test_a_closed_websocket_is_gone_before_its_peer_closes_the_connection(
    hub: Hub, served: Served
) -> None:
    await served.client.receive_some()
    await served.ask(SUBSCRIBE)
    assert hub.sessions.connected == 1
    assert await served.ask(CLOSE) == b"\x88\x02\x03\xe8"
    assert await served.client.receive_some() == b""
    await trio.testing.wait_all_tasks_blocked()
    assert served.over.is_set()
    assert hub.sessions.connected == 0


@pytest.mark.parametrize("behind", [b"", bytes(200_000)], ids=["nothing", "much"])
async def test_where_more_may_be_unread_the_peer_is_waited_for(
    served: Served, behind: bytes, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    lingered: list[bool] = []
    finish = Connection.finish

    async def finishing(self: Connection, grace: float, *, linger: bool = False) -> None:
        lingered.append(linger)
        await finish(self, grace, linger=linger)

    monkeypatch.setattr(Connection, "finish", finishing)
    await served.client.receive_some()
    nursery.start_soon(served.client.send_all, CLOSE + behind)
    with trio.fail_after(5):
        assert await served.client.receive_some() == b"\x88\x02\x03\xe8"
        await served.over.wait()
    assert lingered == [bool(behind)]
