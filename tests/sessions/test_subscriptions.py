"""What a session is subscribed to: which of its named subscriptions are to some tags."""

from collections.abc import Iterator

import pytest

from mist.auth.opening import open_registry
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import Register
from mist.protocols.line.forms import PLAIN
from mist.sessions.hub import Hub
from mist.sessions.session import Session
from mist.sessions.subscriptions import NamedSubscriptionSet
from tests.sessions.test_hub import browser

A, B, C = frozenset("a"), frozenset("b"), frozenset("c")


async def subscribed(hub: Hub) -> Session:
    await hub.registry.execute([Register("t", frozenset({"a", "b", "x*"}))])
    session = await browser(hub, "t", B)
    session.subscribe_named(A, b"1", PLAIN, "")
    session.subscribe_named(A, b"2", PLAIN, "workers")
    session.subscribe_named(A, b"3", PLAIN, "workers")
    session.subscribe_named(B, b"4", PLAIN, "")
    return session


@pytest.mark.parametrize("others", [0, 10])
async def test_those_to_some_tags_are_found_however_many_others_there_are(others: int) -> None:
    hub = Hub(await open_registry("memory://"))
    session = await subscribed(hub)
    other = await browser(hub, "t", A)
    other.subscribe_named(A, b"1", PLAIN, "workers")
    for number in range(others):
        session.subscribe_named(frozenset({f"x{number}"}), b"x%d" % number, PLAIN, "")
        hub.broker.subscribe(Outbox(PLAIN, OutboxLimits(), []), B)
    names = {}
    for tags in (A, B):
        group = hub.broker.find(tags)
        assert group is not None
        names[tags] = {each.name for each in session.named_subscriptions.of(group)}
    assert names == {A: {b"1", b"2", b"3"}, B: {b"4"}}
    assert [session.is_subscribed(tags) for tags in (A, B, C, frozenset())] == [
        *(True, True, False, False)
    ]
    assert other.is_subscribed(A)
    assert not other.is_subscribed(B)


async def test_many_others_are_not_looked_at_to_find_few(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(await open_registry("memory://"))
    session = await subscribed(hub)
    for number in range(100):
        session.subscribe_named(frozenset({f"x{number}"}), b"x%d" % number, PLAIN, "")

    def walk(named: NamedSubscriptionSet) -> Iterator[object]:
        raise AssertionError

    monkeypatch.setattr(NamedSubscriptionSet, "__iter__", walk)
    assert session.is_subscribed(A)
    assert not session.is_subscribed(C)
    monkeypatch.setattr(Session, "is_granted", lambda session, tags: False)
    session.revoke(A)
    assert not session.is_subscribed(A)
    assert len(session.named_subscriptions) == 101
