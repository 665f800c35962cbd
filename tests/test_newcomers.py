"""Newcomers: a few of those whose peers speak in one moment are woken in a pass."""

import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from mist.newcomers import Newcomers
from tests.servers import listeners, port_of, running
from tests.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="they wait like everyone")


Pairs = list[tuple[socket.socket, socket.socket]]


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    pairs = [socket.socketpair() for _ in range(100)]
    yield pairs
    for near, far in pairs:
        near.close()
        far.close()


async def test_a_few_are_woken_in_a_pass(pairs: Pairs, nursery: trio.Nursery) -> None:
    newcomers = Newcomers()
    await nursery.start(newcomers.run)
    woken = 0

    async def wait(sock: socket.socket) -> None:
        nonlocal woken
        await newcomers.readable(sock.fileno(), "a")
        woken += 1

    for near, _ in pairs:
        nursery.start_soon(wait, near)
    await trio.testing.wait_all_tasks_blocked()
    assert newcomers.waiting == 100
    for _, far in pairs:
        far.send(b"x")
    most = 0
    while woken < 100:
        before = woken
        await trio.lowlevel.checkpoint()
        most = max(most, woken - before)
    assert most <= 16  # of two passes: trio runs tasks in an order of its own
    assert newcomers.waiting == 0


async def test_in_a_crowd_others_have_as_much_time_as_newcomers(
    pairs: Pairs, nursery: trio.Nursery
) -> None:
    newcomers = Newcomers()
    await nursery.start(newcomers.run)
    began: list[float] = []
    ended: list[float] = []

    async def work(sock: socket.socket) -> None:
        await newcomers.readable(sock.fileno(), "a")
        began.append(time.perf_counter())
        time.sleep(0.001)  # noqa: ASYNC251  # the event loop is to be busy
        ended.append(time.perf_counter())

    async with trio.open_nursery() as working:
        for near, far in pairs:
            working.start_soon(work, near)
            far.send(b"x")
    gaps = [after - before for before, after in zip(ended, began[1:], strict=False)]
    # 92, 84, 76 and 68 waited when the next ones did; after that there was no crowd.
    assert all(gaps[place - 1] >= 0.004 for place in (8, 16, 24, 32))
    assert sorted(gaps)[len(gaps) // 2] < 0.004


async def test_who_comes_alone_does_not_wait_for_a_crowd_of_another_address(
    pairs: Pairs, nursery: trio.Nursery
) -> None:
    newcomers = Newcomers()
    await nursery.start(newcomers.run)
    order: list[str] = []

    async def wait(sock: socket.socket, origin: str) -> None:
        await newcomers.readable(sock.fileno(), origin)
        order.append(origin)

    crowd, alone = pairs[:-2], pairs[-2:]
    async with trio.open_nursery() as waiting:
        for near, _ in crowd:
            waiting.start_soon(wait, near, "192.0.2.66")
        for number, (near, _) in enumerate(alone):
            waiting.start_soon(wait, near, f"192.0.2.{number}")
        await trio.testing.wait_all_tasks_blocked()
        for _, far in pairs:  # those who come alone speak last
            far.send(b"x")
    assert len(order) == 100
    # 64 are looked at in a pass, and 8 woken: in the second one all have been.
    assert max(order.index("192.0.2.0"), order.index("192.0.2.1")) < 16


async def test_who_hangs_up_is_woken(pairs: Pairs, nursery: trio.Nursery) -> None:
    newcomers = Newcomers()
    await nursery.start(newcomers.run)
    near, far = pairs[0]
    far.close()
    with trio.fail_after(5):
        await newcomers.readable(near.fileno(), "a")


async def test_who_gives_up_waits_no_more(pairs: Pairs, nursery: trio.Nursery) -> None:
    newcomers = Newcomers()
    await nursery.start(newcomers.run)
    near, far = pairs[0]
    with trio.move_on_after(0.01) as scope:
        await newcomers.readable(near.fileno(), "a")
    assert scope.cancelled_caught
    assert newcomers.waiting == 0
    far.send(b"x")
    with trio.fail_after(5):
        await newcomers.readable(near.fileno(), "a")  # the descriptor can be waited for again


async def test_who_gives_up_once_it_has_spoken_keeps_nobody_waiting(
    pairs: Pairs, nursery: trio.Nursery
) -> None:
    newcomers = Newcomers()
    await nursery.start(newcomers.run)
    woken = 0

    async def wait(sock: socket.socket) -> None:
        nonlocal woken
        await newcomers.readable(sock.fileno(), "a")
        woken += 1

    async with trio.open_nursery() as waiting:
        async with trio.open_nursery() as leaving:
            for place, (near, _) in enumerate(pairs):
                (leaving if place % 2 else waiting).start_soon(wait, near)
            await trio.testing.wait_all_tasks_blocked()
            for _, far in pairs:
                far.send(b"x")
            while newcomers.waiting > 90:  # some have been woken, and others are in the queue
                await trio.lowlevel.checkpoint()
            leaving.cancel_scope.cancel()
    assert 50 <= woken < 70
    assert newcomers.waiting == 0


async def test_they_wait_like_everyone_before_it_runs_and_behind_its_end(pairs: Pairs) -> None:
    newcomers = Newcomers()
    (near, far), (other, speaker) = pairs[:2]
    far.send(b"x")
    with trio.fail_after(5):
        await newcomers.readable(near.fileno(), "a")
        async with trio.open_nursery() as nursery:
            await nursery.start(newcomers.run)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(newcomers.readable, other.fileno(), "a")
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        speaker.send(b"x")
        await newcomers.readable(other.fileno(), "a")


async def test_whatever_a_peer_speaks_it_is_a_newcomer_until_it_is_served(tmp_path: Path) -> None:
    schemes = {
        "tcp": (b"ping\n", b"pong\n"),
        "nats": (b"CONNECT {}\r\nPING\r\n", b"PONG\r\n"),
        "ws": (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        "http": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200"),
    }
    async with running(tmp_path, listen=listeners(*schemes)) as server:
        newcomers = server.hub.newcomers
        for url, (said, answered) in zip(server.urls, schemes.values(), strict=True):
            async with await trio.open_tcp_stream("127.0.0.1", port_of(url)) as stream:
                await until(lambda: newcomers.waiting == 1)
                await stream.send_all(said)
                answer = b""
                while answered not in answer:
                    answer += await stream.receive_some()
                await trio.testing.wait_all_tasks_blocked()
                assert newcomers.waiting == 0
