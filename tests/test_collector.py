"""Garbage collection: there is little to walk and, of what connections leave, nothing to find."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from mist import collector
from mist.server import Server
from tests.servers import running
from tests.transports.lines import talk
from tests.waiting import until

UPGRADE = (
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nX-Auth-Token: t\r\n\r\n"
)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


async def come_and_go(server: Server, index: int, sent: bytes) -> None:
    async with talk(server, index) as lines:
        await lines.send(sent)
        await lines.line()


@pytest.mark.parametrize("index", [0, 1])
async def test_a_connection_leaves_no_garbage(tmp_path: Path, index: int) -> None:
    sent = [b"subscribe a\nping\n", UPGRADE][index]
    async with running(tmp_path) as server:
        async with talk(server) as admin:
            await admin.ask(b"register a t\n")
        for _ in range(3):  # what the first ones leave, caches say, is not of each
            await come_and_go(server, index, sent)
        await until(lambda: not server.hub.sessions.connected)
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                await come_and_go(server, index, sent)
            await until(lambda: not server.hub.sessions.connected)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
        finally:
            gc.enable()
        ours = [thing for thing in gc.garbage if type(thing).__module__.startswith("mist.")]
        assert ours == []


async def test_what_subscriptions_grow_by_is_frozen(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    collector.settle()
    subscriptions = 0
    things = []
    nursery.start_soon(collector.keep_small, lambda: subscriptions)
    await trio.testing.wait_all_tasks_blocked()
    frozen = gc.get_freeze_count()

    things += [[n] for n in range(1_000)]
    subscriptions += 19_999
    await trio.sleep(1)
    assert gc.get_freeze_count() <= frozen  # not worth it yet
    subscriptions += 1
    await trio.sleep(1)
    assert gc.get_freeze_count() > frozen + 1_000

    subscriptions = 0
    await trio.sleep(1)
    frozen = gc.get_freeze_count()
    things += [[n] for n in range(1_000)]
    subscriptions = 20_000
    await trio.sleep(1)
    assert gc.get_freeze_count() > frozen + 1_000
