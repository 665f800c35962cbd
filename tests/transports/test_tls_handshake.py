"""TLS handshakes: each step, which takes a millisecond of the event loop, in a turn of its own."""

import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trustme

from mist.transports.tls_handshake import ready_stream
from mist.turns import Account, Turns

ADDRESS = "192.0.2.7"


class Held(Turns):
    """Gives no turn before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.free = trio.Event()
        self.charged: list[Account | None] = []

    async def begin(self, account: Account | None = None, *, late: bool = False) -> float:
        assert late
        self.charged.append(account)
        await self.free.wait()
        return 0.0


Pair = tuple[trio.SSLStream[trio.SocketStream], trio.SSLStream[trio.SocketStream]]


@pytest.fixture
async def pair() -> Pair:
    """A client and a server, yet to shake hands."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    near, far = trio.socket.socketpair()
    return (
        trio.SSLStream(trio.SocketStream(near), client, server_hostname="localhost"),
        trio.SSLStream(trio.SocketStream(far), server, server_side=True),
    )


async def test_nothing_is_answered_before_its_turn(pair: Pair, nursery: trio.Nursery) -> None:
    client, server = pair
    turns, below = Held(), server.transport_stream
    account = turns.account(ADDRESS)
    done: list[bool] = []

    async def shake() -> None:
        done.append(await ready_stream(server, 60, turns, ADDRESS))

    nursery.start_soon(shake)
    nursery.start_soon(client.do_handshake)
    with trio.fail_after(60):
        while not turns.charged:
            await trio.testing.wait_all_tasks_blocked()
        assert not client.transport_stream.socket.is_readable()
        turns.free.set()
        while not done:
            await trio.testing.wait_all_tasks_blocked()
        assert done == [True]
        assert set(turns.charged) == {account}
        assert server.transport_stream is below
        await client.send_all(b"x")
        assert await server.receive_some() == b"x"
    await trio.aclose_forcefully(client)
    await trio.aclose_forcefully(server)


async def says_nothing(client: trio.SSLStream[trio.SocketStream]) -> None:
    await trio.sleep_forever()


async def hangs_up(client: trio.SSLStream[trio.SocketStream]) -> None:
    await client.transport_stream.aclose()


async def says_nonsense(client: trio.SSLStream[trio.SocketStream]) -> None:
    await client.transport_stream.send_all(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("says", [says_nothing, hangs_up, says_nonsense])
async def test_a_handshake_that_fails_is_no_news(
    pair: Pair,
    nursery: trio.Nursery,
    says: Callable[[trio.SSLStream[trio.SocketStream]], Awaitable[None]],
) -> None:
    client, server = pair
    below = server.transport_stream
    nursery.start_soon(partial(says, client))
    assert not await ready_stream(server, 0.1, Turns(), ADDRESS)
    assert server.transport_stream is below
    await trio.aclose_forcefully(client)
    await trio.aclose_forcefully(server)
    nursery.cancel_scope.cancel()


async def test_what_is_no_tls_is_ready() -> None:
    near, far = trio.testing.memory_stream_pair()
    assert await ready_stream(near, 0.1, Held(), ADDRESS)
    await far.aclose()
