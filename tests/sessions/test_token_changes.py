"""Changes of tokens that reach many sessions, or end many subscriptions: in steps, none forgotten.

What few of them do is in test_hub.
"""

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from mist.attributes import Attributes
from mist.auth.opening import open_registry
from mist.commands import (
    AddTags,
    Auth,
    Register,
    RemoveTags,
    SetAttributes,
    SetTerms,
    SubscribeNamed,
    Unregister,
)
from mist.protocols.line import LineProtocol
from mist.protocols.line.forms import PLAIN
from mist.replies import Revoked
from mist.sessions.close_reason import INTERNAL_ERROR, TOKEN_REVOKED
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.sessions.session import Session
from mist.sessions.token_changes import TokenChanges
from mist.terms import Terms
from tests.sessions.test_hub import browser

NUMBERS = range(300)  # more than are ended at once
MANY = [frozenset({f"x{number}"}) for number in NUMBERS]


@pytest.fixture
async def hub() -> Hub:
    hub = Hub(await open_registry("memory://"))
    await hub.registry.execute([Register("t", frozenset({"y", "n", *(f"x{n}" for n in NUMBERS)}))])
    return hub


def tags_of(session: Session) -> set[str]:
    return set().union(*session.subscriptions.tag_sets())


async def test_many_subscriptions_end_in_steps_and_the_change_is_not_done_before(
    hub: Hub, nursery: trio.Nursery
) -> None:
    session = await browser(hub, "t", frozenset("y"), *MANY)
    await hub.registry.execute([RemoveTags("t", frozenset().union(*MANY))])
    assert 150 < len(session.subscriptions) < 301
    assert not session.is_granted(MANY[-1])  # nothing new by what it had
    done = trio.Event()

    async def settle() -> None:
        await hub.token_changes.settled()
        done.set()

    nursery.start_soon(settle)
    await trio.testing.wait_all_tasks_blocked()
    assert not done.is_set()
    nursery.start_soon(hub.token_changes.run)
    await done.wait()
    assert tags_of(session) == {"y"}
    assert session.outbox.peek().count(b'"command":"revoked"') == 300
    session.outbox.sent(session.outbox.size)
    hub.publish(MANY[0], b"no longer")
    hub.publish(frozenset({"x1", "y"}), b"still")
    assert session.outbox.queued == 1


async def test_named_subscriptions_end_in_steps_too(hub: Hub, nursery: trio.Nursery) -> None:
    session = await browser(hub, "t")
    for number, tags in enumerate([frozenset("y"), *MANY]):
        await session.dispatch(SubscribeNamed(tags, b"%d" % number, PLAIN, ""))
    await hub.registry.execute([RemoveTags("t", frozenset().union(*MANY))])
    assert 150 < len(session.named_subscriptions) < 301
    nursery.start_soon(hub.token_changes.run)
    await hub.token_changes.settled()
    assert [named.name for named in session.named_subscriptions] == [b"0"]


async def test_the_answer_comes_when_it_is_done(hub: Hub, nursery: trio.Nursery) -> None:
    await hub.registry.execute([Register("u", frozenset({"k", "y"}))])
    session = await browser(hub, "u", *(tags | {"k"} for tags in MANY))
    service = CommandSession(hub, LineProtocol(hub.limits), transport="tcp")
    nursery.start_soon(hub.token_changes.run)
    await service.receive(b"unset k u\nping\n")
    assert service.outbox.peek() == b"pong\n"
    assert not session.subscriptions


async def test_changes_of_a_token_are_done_in_order(hub: Hub, nursery: trio.Nursery) -> None:
    session = await browser(hub, "t", frozenset("y"), *MANY)
    await hub.registry.execute([RemoveTags("t", frozenset().union(*MANY))])
    await hub.registry.execute([AddTags("t", frozenset({"x7", "z"}))])
    await hub.registry.execute([RemoveTags("t", frozenset("y"))])
    nursery.start_soon(hub.token_changes.run)
    await hub.token_changes.settled()
    assert session.record is hub.registry.lookup("t")
    assert session.is_granted(frozenset("z"))
    assert tags_of(session) <= {"x7"}  # which was lost for a moment, and may have been seen so


async def test_a_session_that_takes_another_token_meanwhile_is_that_ones(
    hub: Hub, nursery: trio.Nursery
) -> None:
    await hub.registry.execute([Register("u", frozenset({"y", "x299"}))])
    session = await browser(hub, "t", frozenset("y"), *MANY)
    await hub.registry.execute([RemoveTags("t", frozenset({"y", "x299"}))])
    await session.dispatch(Auth("u"))
    nursery.start_soon(hub.token_changes.run)
    await hub.token_changes.settled()
    assert session.record is hub.registry.lookup("u")
    assert "x299" in tags_of(session) <= {"y", "x299"}


async def test_all_sessions_of_a_revoked_token_end(hub: Hub, nursery: trio.Nursery) -> None:
    sessions = [await browser(hub, "t", MANY[number]) for number in NUMBERS]
    await hub.registry.execute([Unregister("t")])
    ended = sum(session.ended is not None for session in sessions)
    assert 50 <= ended <= 100
    nursery.start_soon(hub.token_changes.run)
    await hub.token_changes.settled()
    assert {session.ended for session in sessions} == {TOKEN_REVOKED}


async def test_a_session_that_is_gone_meanwhile_is_given_nothing(
    hub: Hub, nursery: trio.Nursery
) -> None:
    sessions = [await browser(hub, "t", MANY[number]) for number in NUMBERS]
    site = Attributes.of_json({"site": "a"})
    terms = Terms(expires=hub.now() + 1_000)
    await hub.registry.execute([SetAttributes("t", site), SetTerms("t", terms)])
    for session in sessions:
        await session.aclose()
    nursery.start_soon(hub.token_changes.run)
    await hub.token_changes.settled()
    assert not len(hub.expiry)
    assert not hub.broker._attribute_index.bound
    assert not len(hub.broker._attribute_index)


async def test_a_session_that_fails_ends_and_the_others_are_reached(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = [await browser(hub, "t", frozenset("y"), MANY[0]) for _ in range(3)]
    notify = sessions[1]._notify

    def fail(notice: object) -> bytes:
        raise RuntimeError("broken") if isinstance(notice, Revoked) else AssertionError

    assert notify is not None
    monkeypatch.setattr(sessions[1], "_notify", fail)
    await hub.registry.execute([RemoveTags("t", MANY[0])])
    assert [session.ended for session in sessions] == [None, INTERNAL_ERROR, None]
    assert tags_of(sessions[0]) == tags_of(sessions[2]) == {"y"}
    assert "could not be given" in caplog.text


async def test_steps_that_raise_end_neither_the_task_nor_those_who_wait(
    hub: Hub, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    changes = TokenChanges(FlushScheduler(hub.broker, hub.turns))
    reached = 0

    def steps(*, fail: bool) -> Iterator[None]:
        nonlocal reached
        for _ in range(200):
            yield
        if fail:
            raise RuntimeError("broken")
        reached += 1

    changes.begin("a", steps(fail=True))
    changes.begin("a", steps(fail=False))
    changes.begin("b", steps(fail=False))
    nursery.start_soon(changes.run)
    await changes.settled()
    assert reached == 2
    assert "has not reached all" in caplog.text
