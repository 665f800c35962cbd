"""Graceful shutdown: sessions end with their server spread out, in time, in no order."""

import pytest
import trio
import trio.testing

from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.protocols.event_forms import EventForm
from mist.sessions.hub import Hub
from mist.sessions.session import Session
from mist.transports.graceful_shutdown import end_sessions


def arrive(hub: Hub, count: int) -> list[Session]:
    sessions = [
        Session(hub, EventForm(None), lambda notice: b"", transport="test") for _ in range(count)
    ]
    for session in sessions:
        hub.sessions.attach(session)
    return sessions


async def watch(hub: Hub, sessions: list[Session], seconds: float) -> list[float]:
    """When each session ended, in seconds since the beginning."""
    ends: dict[Session, float] = {}
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_sessions, hub, seconds)
        while len(ends) < len(sessions):
            await trio.testing.wait_all_tasks_blocked()
            for session in sessions:
                if session.ended is not None:
                    ends.setdefault(session, trio.current_time() - start)
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return [ends[session] for session in sessions]


async def test_a_few_end_at_once(autojump_clock: trio.testing.MockClock) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    sessions = arrive(hub, 20)
    assert max(await watch(hub, sessions, 10.0)) < 0.02
    for session in sessions:
        assert session.ended is not None
        assert (session.ended.code, session.ended.grace) == (1001, 10.0)


@pytest.mark.parametrize(
    ("count", "seconds", "expected"), [(3_000, 10.0, 3.0), (3_000, 2.0, 1.0), (3_000, 0.0, 0.0)]
)
async def test_many_end_a_thousand_a_second_or_within_half_of_the_time(
    autojump_clock: trio.testing.MockClock, count: int, seconds: float, expected: float
) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    ends = await watch(hub, arrive(hub, count), seconds)
    assert max(ends) <= expected + 0.02
    assert max(ends) >= expected * 0.95
    for n in range(int(expected)):  # evenly
        assert count / expected * 0.85 < sum(n <= end < n + 1 for end in ends)


async def test_listeners_stay_until_publishers_have_finished(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    listener, publisher = arrive(hub, 2)
    publisher.handling = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_sessions, hub, 10.0)
        await trio.sleep(1.0)
        assert (listener.ended, publisher.ended) == (None, None)
        publisher.handling = False
        await trio.sleep(0.1)
        assert listener.ended is not None
        nursery.cancel_scope.cancel()


async def test_a_publisher_that_does_not_finish_ends_before_the_listeners(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    listener, publisher = arrive(hub, 2)
    publisher.handling = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_sessions, hub, 10.0)
        await trio.sleep(2.45)
        assert (listener.ended, publisher.ended) == (None, None)
        await trio.sleep(0.1)
        assert publisher.ended is not None
        assert listener.ended is None
        publisher.handling = False  # its task was cancelled
        await trio.sleep(0.1)
        assert listener.ended is not None
        nursery.cancel_scope.cancel()


async def test_none_is_preferred_for_its_age(autojump_clock: trio.testing.MockClock) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    ends = await watch(hub, arrive(hub, 3_000), 10.0)
    old, young = ends[:1_500], ends[1_500:]
    assert abs(sum(old) / len(old) - sum(young) / len(young)) < 0.5
    assert ends != sorted(ends)


async def test_who_comes_meanwhile_goes_too(autojump_clock: trio.testing.MockClock) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    arrive(hub, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_sessions, hub, 10.0)
        await trio.sleep(1)
        (late,) = arrive(hub, 1)
        await trio.sleep(0.1)
        assert late.ended is not None
        nursery.cancel_scope.cancel()
