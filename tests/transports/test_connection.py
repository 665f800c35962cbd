"""A stream and an outbox joined: what is written, by which task, and what is left behind."""

import socket
import ssl

import pytest
import trio
import trio.testing
from trio.testing import open_stream_to_socket_listener

from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.protocols.line.forms import PLAIN
from mist.transports.connection import Connection


def make_outbox() -> Outbox:
    return Outbox(PLAIN, OutboxLimits(), [])


async def test_a_stream_that_must_be_waited_for_keeps_one_writer(nursery: trio.Nursery) -> None:
    near, far = trio.testing.memory_stream_pair()
    connection = Connection(near, make_outbox(), nursery)
    before = len(nursery.child_tasks)
    for number in range(5):
        for _ in range(3):
            connection.outbox.put(b"%d\n" % number, 1)
            connection.flush()
        received = b""
        while len(received) < 6:
            received += await far.receive_some()
        assert received == b"%d\n" % number * 3
        assert len(nursery.child_tasks) == before + 1
    await connection.finish(1.0)
    await trio.testing.wait_all_tasks_blocked()
    assert len(nursery.child_tasks) == before


async def test_a_writer_that_is_abandoned_while_it_writes_ends(nursery: trio.Nursery) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    connection = Connection(near, make_outbox(), nursery)
    before = len(nursery.child_tasks)
    connection.outbox.put(b"never read\n", 1)
    connection.flush()
    await trio.testing.wait_all_tasks_blocked()
    await connection.finish(0.01)
    await trio.testing.wait_all_tasks_blocked()
    assert len(nursery.child_tasks) == before
    assert connection.outbox.size == 0
    await far.aclose()


async def test_two_tasks_may_wait_for_one_connection_to_be_flushed(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    connection = Connection(near, make_outbox(), nursery)
    connection.outbox.put(b"one\n", 1)
    taken: list[bool] = []
    began = trio.current_time()

    async def wait() -> None:
        taken.append(await connection.flushed(60.0))

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        waiting.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert await far.receive_some() == b"one\n"
    assert taken == [True, True]
    assert trio.current_time() - began < 60.0  # neither was given up
    await connection.finish(0.0)
    await far.aclose()


async def test_a_full_socket_gets_a_task_until_it_is_empty(nursery: trio.Nursery) -> None:
    a, b = (trio.socket.from_stdlib_socket(s) for s in socket.socketpair())
    near, far = trio.SocketStream(a), trio.SocketStream(b)
    connection = Connection(near, make_outbox(), nursery)
    before = len(nursery.child_tasks)
    connection.outbox.put(b"x", 1)
    connection.flush()
    assert len(nursery.child_tasks) == before  # written on the spot
    sent = 1
    while not connection.outbox.size:
        connection.outbox.put(b"x" * 100_000, 1)
        connection.flush()
        sent += 100_000
    await trio.testing.wait_all_tasks_blocked()
    assert len(nursery.child_tasks) == before + 1
    while sent:
        sent -= len(await far.receive_some(100_000))
    await trio.testing.wait_all_tasks_blocked()
    assert len(nursery.child_tasks) == before
    await connection.finish(1.0)
    await far.aclose()


async def test_reading_waits_only_where_there_is_nothing(nursery: trio.Nursery) -> None:
    a, b = (trio.socket.from_stdlib_socket(s) for s in socket.socketpair())
    near, far = trio.SocketStream(a), trio.SocketStream(b)
    connection = Connection(near, make_outbox(), nursery)
    await far.send_all(b"12345")
    assert await connection.receive(2) == b"12"
    with trio.testing.assert_checkpoints():  # others have their turn between two reads
        assert await connection.receive(2) == b"34"
    with trio.testing.assert_no_checkpoints():
        assert await connection.receive(2, rested=True) == b"5"
    with trio.move_on_after(0.01):
        raise AssertionError(await connection.receive(2, rested=True))
    await far.aclose()
    assert await connection.receive(2) == b""
    await connection.finish(1.0)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_peer_that_vanishes_is_noticed_by_the_kernel(
    nursery: trio.Nursery, tls: bool
) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listeners[0] as listener, await open_stream_to_socket_listener(listener) as far:
        near = await listener.accept()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        stream = trio.SSLStream(near, context, server_side=True) if tls else near
        connection = Connection(stream, make_outbox(), nursery)
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        seconds = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1_000
        idle, interval, count = (
            near.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count == seconds == 180
        connection.abandon()
        await trio.aclose_forcefully(near)
        await far.aclose()
