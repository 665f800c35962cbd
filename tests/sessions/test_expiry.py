"""Sessions that end at a time, by one task, and what that costs."""

import math
from collections.abc import AsyncIterator

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mist.auth import Record
from mist.auth.opening import open_registry
from mist.auth.registry import KEPT_EXPIRED
from mist.commands import Auth, Register, SetTerms, Unregister
from mist.protocols.frames import FrameProtocol
from mist.sessions.authenticating import Credential
from mist.sessions.close_reason import TOKEN_EXPIRED, TOKEN_REVOKED
from mist.sessions.expiry import discard_expired_tokens
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.terms import Terms

A = frozenset("a")
EPOCH = 1_800_000_000.0


class Clock:
    """Trio's time as Unix seconds, which can be set."""

    def __init__(self) -> None:
        self.ahead = EPOCH

    def __call__(self) -> float:
        return trio.current_time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def hub(
    clock: Clock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Hub]:
    monkeypatch.setattr(Hub, "now", lambda self: clock())
    async with await open_registry("memory://") as registry:
        hub = Hub(registry)
        nursery.start_soon(hub.expiry.run)
        yield hub
        nursery.cancel_scope.cancel()


def browser(hub: Hub, token: str) -> CommandSession:
    session = CommandSession(
        hub,
        FrameProtocol(hub.limits),
        transport="ws",
        credential=Credential.TOKEN,
        auth_timeout=5.0,
    )
    record = hub.registry.lookup(token)
    assert record is not None
    session.adopt(record)
    return session


async def register(hub: Hub, token: str, seconds: float | None = None) -> Record:
    expires = None if seconds is None else hub.now() + seconds
    [record] = await hub.registry.execute([Register(token, A, Terms(expires))])
    assert isinstance(record, Record)
    return record


async def test_a_session_ends_when_its_token_expires_and_no_other_does(
    hub: Hub, autojump_clock: MockClock
) -> None:
    await register(hub, "t", 3_600.0)
    await register(hub, "u", 7_200.0)
    await register(hub, "v")
    one, two, three = [browser(hub, token) for token in "tuv"]
    await trio.sleep(3_599.9)
    assert one.ended is None
    await trio.sleep(0.2)
    assert (one.ended, two.ended) == (TOKEN_EXPIRED, None)
    assert one.outbox.muted
    await trio.sleep(3_600.0)
    assert (two.ended, three.ended) == (TOKEN_EXPIRED, None)
    assert hub.expiry.ended == 2
    assert hub.sessions.close_codes[4401] == 2
    assert not hub.expiry


async def test_where_no_token_expires_nothing_runs_and_nothing_is_kept(
    hub: Hub, autojump_clock: MockClock
) -> None:
    await register(hub, "v")
    session = browser(hub, "v")
    await wait_all_tasks_blocked()
    assert not hub.expiry
    assert hub.expiry._schedule._deadlines._heap == []
    await session.aclose()


async def test_a_session_whose_token_is_prolonged_lives_on(
    hub: Hub, autojump_clock: MockClock
) -> None:
    await register(hub, "t", 10.0)
    session = browser(hub, "t")
    await trio.sleep(5.0)
    await hub.registry.execute([SetTerms("t", Terms(hub.now() + 100.0))])
    await trio.sleep(95.0)
    assert session.ended is None
    await hub.registry.execute([SetTerms("t", Terms(math.inf))])
    await trio.sleep(1_000.0)
    assert session.ended is None
    await hub.registry.execute([SetTerms("t", Terms(hub.now() + 1.0))])
    await trio.sleep(1.1)
    assert session.ended is TOKEN_EXPIRED


async def test_a_session_that_gets_another_token_has_its_expiry(
    hub: Hub, autojump_clock: MockClock
) -> None:
    await register(hub, "t", 10.0)
    await register(hub, "u", 20.0)
    await register(hub, "v")
    one, two = browser(hub, "t"), browser(hub, "t")
    await one.dispatch(Auth("u"))
    await two.dispatch(Auth("v"))
    await trio.sleep(15.0)
    assert (one.ended, two.ended) == (None, None)
    await trio.sleep(10.0)
    assert (one.ended, two.ended) == (TOKEN_EXPIRED, None)


async def test_a_record_that_is_not_registered_ends_its_session_as_well(
    hub: Hub, autojump_clock: MockClock
) -> None:
    record = Record("jwt", b"", A, 0.0, expires=hub.now() + 10.0)
    session = browser(hub, (await register(hub, "v"), "v")[1])
    session.adopt(record)
    await trio.sleep(5.0)
    session.adopt(attrs.evolve(record, expires=hub.now() + 10.0))  # refreshed in band
    await trio.sleep(9.0)
    assert session.ended is None
    await trio.sleep(2.0)
    assert session.ended is TOKEN_EXPIRED


async def test_a_peer_that_changes_its_token_for_ever_costs_no_memory(
    hub: Hub, autojump_clock: MockClock
) -> None:
    await register(hub, "t", 1_000.0)
    await register(hub, "u", 2_000.0)
    session = browser(hub, "t")
    for _ in range(500):
        await session.dispatch(Auth("u"))
        await session.dispatch(Auth("t"))
    assert len(hub.expiry) == 1
    assert len(hub.expiry._schedule._deadlines._heap) < 100


async def test_a_session_that_is_gone_is_forgotten(hub: Hub, autojump_clock: MockClock) -> None:
    await register(hub, "t", 1_000.0)
    for _ in range(200):
        await browser(hub, "t").aclose()
    assert not hub.expiry
    assert len(hub.expiry._schedule._deadlines._heap) < 100


async def test_a_clock_that_is_set_is_followed_within_a_second(
    hub: Hub, autojump_clock: MockClock, clock: Clock
) -> None:
    await register(hub, "t", 3_600.0)
    session = browser(hub, "t")
    await trio.sleep(1.0)
    clock.ahead += 3_600.0
    await trio.sleep(1.1)
    assert session.ended is TOKEN_EXPIRED


async def test_a_token_that_is_revoked_ends_as_that_and_an_expired_one_as_expired(
    hub: Hub, autojump_clock: MockClock, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(hub, "t", 3_600.0)
    await register(hub, "u", 3_600.0)
    one, two = browser(hub, "t"), browser(hub, "u")
    await hub.registry.execute([Unregister("t")])
    assert one.ended is TOKEN_REVOKED
    clock.ahead += 3_600.0
    monkeypatch.setattr("mist.auth.registry.KEPT_EXPIRED", 0.0)
    await hub.registry.discard_expired()  # before the task has looked at the clock
    assert two.ended is TOKEN_EXPIRED


async def test_many_end_in_steps_and_others_run_in_between(
    hub: Hub, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    await register(hub, "t", 10.0)
    sessions = [browser(hub, "t") for _ in range(1_000)]
    seen = set[int]()
    await trio.sleep(9.9)

    async def look() -> None:
        await trio.sleep_until(trio.current_time() + 0.1)
        while hub.expiry.ended < 1_000:
            await trio.lowlevel.checkpoint()
            seen.add(hub.expiry.ended)

    nursery.start_soon(look)
    await trio.sleep(0.2)
    assert {session.ended for session in sessions} == {TOKEN_EXPIRED}
    assert len(seen) >= 10


async def test_expired_tokens_are_removed_in_the_background(
    hub: Hub, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(discard_expired_tokens, hub.registry)
    await register(hub, "t", 100.0)
    await register(hub, "v")
    await trio.sleep(100.0 + KEPT_EXPIRED)
    assert hub.registry.statistics().tokens == 2
    await trio.sleep(125.0)
    assert hub.registry.statistics().tokens == 1
