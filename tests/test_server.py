"""Graceful shutdown: what the server tells its clients while it drains."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mist.config import Config
from mist.server import Server, open_server
from tests.http.client import request
from tests.servers import listeners, port_of
from tests.transports.test_tcp import certificate

LISTEN = listeners("tcp", "http")


@asynccontextmanager
async def server_until_its_end(data: Path, auth_timeout: float) -> AsyncIterator[Server]:
    """A server, which has to end by itself within 10 seconds of the block's end."""
    config = Config(
        data=data, listen=LISTEN, tokens="memory://", history="none", drain_seconds=auth_timeout
    )
    async with open_server(config) as server:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield server
            nursery.cancel_scope.deadline = trio.current_time() + 10
        assert not nursery.cancel_scope.cancelled_caught


async def connect(server: Server) -> trio.SocketStream:
    port = port_of(server.urls[0])
    return await trio.open_tcp_stream("127.0.0.1", port)


async def stall(server: Server) -> trio.SocketStream:
    """A subscriber with more queued for it than it reads, or than any socket holds."""
    stream = await connect(server)
    await stream.send_all(b"subscribe a\nping\n")
    assert await stream.receive_some(100) == b"pong\n"
    [session] = [each for each in server.hub.sessions if each.transport == "tcp"]
    waiting = 0
    while not waiting:
        server.hub.publish(frozenset("a"), b"x" * 200_000)
        # What the sockets take is gone by then, however much that is.
        await trio.testing.wait_all_tasks_blocked()
        waiting = session.outbox.size
    return stream


async def test_it_is_not_ready_while_it_drains(tmp_path: Path) -> None:
    async with server_until_its_end(tmp_path, auth_timeout=30.0) as server:
        assert (await request(server, "GET", "/readyz")).status == 200
        async with await stall(server) as stalled:
            server.drain()
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(10):
                for _ in range(3):
                    response = await request(server, "GET", "/readyz")
                    assert (response.status, response.json()["code"]) == (503, "draining")
                    assert response.headers["connection"] == "close"
                    assert (await request(server, "GET", "/healthz")).status == 200
                with pytest.raises(OSError):
                    await connect(server)
                # What is queued is taken, and the server ends with its last connection.
                while await stalled.receive_some(1 << 20):
                    pass


async def test_one_who_never_reads_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    async with server_until_its_end(tmp_path, auth_timeout=0.5) as server:
        stalled = await stall(server)
        server.drain()
    await stalled.aclose()


async def test_an_idle_server_ends_at_once(tmp_path: Path) -> None:
    async with server_until_its_end(tmp_path, auth_timeout=60.0) as server:
        async with await connect(server):
            server.drain()


@pytest.mark.parametrize("scheme", ["tcps", "wss", "https", "natss", "ws"])
async def test_peers_that_have_said_nothing_are_not_waited_for(tmp_path: Path, scheme: str) -> None:
    _, files = certificate(tmp_path)
    config = Config(
        data=tmp_path,
        listen=listeners(scheme),
        tokens="memory://",
        history="none",
        drain_seconds=30.0,
        **(files if scheme != "ws" else {}),
    )
    async with open_server(config) as server, AsyncExitStack() as stack:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                await stack.enter_async_context(await connect(server))
                await trio.testing.wait_all_tasks_blocked(0.05)
                server.drain()
