"""Garbage collection: there is little to walk and, of what connections leave, nothing to find."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from mist import collector
from mist.commands import Invalid
from mist.errors import UnknownCommand
from mist.replies import Failed
from mist.server import Server
from tests.garbage import left_in_cycles
from tests.servers import running
from tests.transports.lines import talk
from tests.waiting import until

UPGRADE = (
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nX-Auth-Token: t\r\n\r\n"
)


class Cyclic:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


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


@pytest.mark.parametrize(
    ("index", "sent"),
    [(0, b"subscribe a\nping\n"), (0, b"subscribe a,,b\nregister\nping\n"), (1, UPGRADE)],
)
async def test_a_connection_leaves_no_garbage(tmp_path: Path, index: int, sent: bytes) -> None:
    async with running(tmp_path) as server:
        async with talk(server) as admin:
            await admin.ask(b"register a t\n")
        for _ in range(3):  # what the first ones leave, caches say, is not of each
            await come_and_go(server, index, sent)
        await until(lambda: not server.hub.sessions.connected)
        with left_in_cycles() as left:
            for _ in range(10):
                await come_and_go(server, index, sent)
            await until(lambda: not server.hub.sessions.connected)
    assert left == set()


def test_an_error_that_is_kept_holds_no_frames() -> None:
    def fail() -> None:
        try:
            raise KeyError
        except KeyError:
            raise UnknownCommand from None

    for kind in (Invalid, Failed):
        with left_in_cycles() as left:
            try:
                fail()
            except UnknownCommand as error:
                kept = kind(error)
            assert kept.error.__traceback__ is kept.error.__context__ is None
            del kept
        assert left == set()


@pytest.fixture
async def keeping_small(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    collector.settle()
    nursery.start_soon(collector.keep_small)
    await trio.testing.wait_all_tasks_blocked()


async def test_what_lives_for_long_is_frozen(keeping_small: None) -> None:
    frozen = gc.get_freeze_count()
    things = [[n] for n in range(1_000)]
    await trio.sleep(1)
    assert gc.get_freeze_count() <= frozen  # not worth it yet
    things += [[n] for n in range(100_000)]
    await trio.sleep(1)
    assert gc.get_freeze_count() > frozen + 80_000
    assert len(gc.get_objects(2)) < 10_000


async def test_garbage_is_found_before_it_would_be_frozen(keeping_small: None) -> None:
    cycle = Cyclic()
    kept = [[n] for n in range(1_500)]  # it is old by now
    seen = weakref.ref(cycle)
    del cycle
    assert seen() is not None
    await trio.sleep(1)
    assert seen() is None
    assert kept


async def test_what_a_burst_leaves_is_not_traversed(keeping_small: None) -> None:
    passes = gc.get_stats()[2]["collections"]
    kept = [[n] for n in range(500_000)]
    await trio.sleep(0.15)
    assert gc.get_stats()[2]["collections"] == passes
    assert len(gc.get_objects(2)) < 10_000
    assert kept


@pytest.mark.parametrize("passes", [0, 1])
async def test_what_comes_while_as_much_goes_is_not_traversed(
    keeping_small: None, passes: int
) -> None:
    gone = [[n] for n in range(20_000)]
    await trio.sleep(1)
    looked = gc.get_stats()[2]["collections"]
    kept = []
    while gone:  # no pass is due, as there are no more than before
        gone.pop()
        kept.append([len(gone)])
    kept += [[n] for n in range(1_000 * passes)]
    await trio.sleep(1)
    assert gc.get_stats()[2]["collections"] == looked
    assert sum(len(gc.get_objects(each)) for each in range(3)) < 3_000
    assert len(kept) == 20_000 + 1_000 * passes


async def test_an_idle_process_is_woken_twice_a_second(
    autojump_clock: trio.testing.MockClock, keeping_small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(gc, "get_count", lambda: looks.append(trio.current_time()) or (0, 0, 0))
    await trio.sleep(1.5)
    looks.clear()
    await trio.sleep(10)
    assert len(looks) == 20
    # And again often, as soon as there is something to look at.
    monkeypatch.setattr(gc, "get_count", lambda: looks.append(trio.current_time()) or (0, 0, 3))
    await trio.sleep(0.5)
    looks.clear()
    await trio.sleep(1)
    assert len(looks) >= 9


def test_only_this_makes_full_passes() -> None:
    collector.settle()
    passes = gc.get_stats()[2]["collections"]
    kept = [[n] for n in range(1_000_000)]
    assert gc.get_stats()[2]["collections"] == passes
    assert gc.get_stats()[1]["collections"]
    assert kept
