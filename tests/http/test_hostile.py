"""Peers that leave, or break the rules, at the worst moment: none of it is an error of ours.

Over real sockets, since what a kernel tells of a reset comes in no other way.
"""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.server import Server
from tests.http.client import connect, http_address, request
from tests.servers import listeners, running
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_warnings")

TOKEN = "t0ken"
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POLL = (
    b"POST /message-bus/%d/poll HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"X-Auth-Token: " + TOKEN.encode() + b"\r\nContent-Length: 10\r\n\r\n" + b'{"/foo":0}'
)


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": listeners("tcp", "http"),
        "history": "memory://",
        "token_rate": 1e6,
        "grants": {TOKEN: {"*", "/foo"}},
    }


@pytest.fixture
async def server(server: Server) -> AsyncIterator[Server]:
    """The shared one, which still answers after each test, and has no connection left."""
    yield server
    assert (await request(server, "GET", "/healthz")).status == 200
    await until(lambda: not server.hub.sessions.connected)


async def turns(count: int) -> None:
    """Let the server get so far, no further."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def leave(stream: trio.SocketStream, *, reset: bool) -> None:
    if reset:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 50000000\r\n\r\n" + bytes(100_000),
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + bytes(100_000),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        HEAD + b"Content-Length: 100\r\n\r\nhello",
        HEAD + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n",
        HEAD + b"Content-Length: 27\r\n\r\n" + b'{"tags":["foo"],"data":"x"}' * 2,
        b"GET /v1/stream?tags=a HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(100_000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100,
    ],
    ids=lambda value: repr(value[85:150]) if isinstance(value, bytes) else None,
)
async def test_who_leaves_at_any_moment_is_no_news(
    server: Server, sent: bytes, reset: bool
) -> None:
    for count in (0, 1, 2, 3, 5, 8, 13, 21, 34):
        stream = await trio.open_tcp_stream(*http_address(server))
        with trio.move_on_after(0.1):
            with suppress(trio.BrokenResourceError):
                await stream.send_all(sent)
            await turns(count)
        await leave(stream, reset=reset)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 50000000\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"hello\r\n\r\n",
    ],
    ids=lambda value: repr(value[85:150]) if isinstance(value, bytes) else None,
)
async def test_who_leaves_once_it_was_refused_is_no_news(
    server: Server, sent: bytes, reset: bool
) -> None:
    for count in (0, 1, 2, 3, 5, 8, 13, 21, 34):
        stream = await trio.open_tcp_stream(*http_address(server))
        await stream.send_all(sent)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 4")
        await turns(count)
        await leave(stream, reset=reset)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_poll_may_be_left_before_its_first_chunk(server: Server, reset: bool) -> None:
    for count in range(60):
        stream = await trio.open_tcp_stream(*http_address(server))
        await stream.send_all(POLL % count)
        await turns(count)
        await leave(stream, reset=reset)


async def test_a_poll_may_be_left_within_its_first_chunk(server: Server) -> None:
    for count in range(20):
        stream = await trio.open_tcp_stream(*http_address(server))
        await stream.send_all(POLL % count)
        # Its first chunk is due after a second; others come meanwhile.
        await server.hub.store_all([(frozenset({"/foo"}), b"x" * 100)])
        await turns(count)
        await leave(stream, reset=True)


async def test_a_peer_that_asks_nothing_more_is_left_no_connection(tmp_path: Path) -> None:
    settings = {"listen": listeners("http"), "handshake_seconds": 0.1}
    async with running(tmp_path, **settings) as server:
        async with connect(server) as silent, connect(server) as used:
            assert (await used.request("GET", "/healthz")).status == 200
            await used.connection.send_all(b"GET / HT")
            with trio.fail_after(10):
                assert await silent.closed()
                assert await used.closed()
