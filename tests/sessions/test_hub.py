"""The hub: the secret, counts that outlive sessions, unauthenticated peers, changes of tokens."""

import logging

import pytest
import trio
import trio.testing

from mist.auth.opening import open_registry
from mist.auth.record import Record
from mist.broker.found_groups import FoundGroups
from mist.broker.groups import Group
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import AddTags, Auth, Register, RemoveTags, Subscribe, Unregister
from mist.errors import EmptyTag, InvalidTag
from mist.history.opening import open_history
from mist.protocols.frames import FrameProtocol
from mist.protocols.line import LineProtocol
from mist.sessions.authenticating import Credential
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.hub import Hub, HubLimits
from mist.sessions.receiving import CommandSession
from mist.turns import Turns
from tests.sessions.storing import sequence

AB = frozenset("ab")


async def make_hub(**options: object) -> Hub:
    return Hub(await open_registry("memory://"), **options)  # type: ignore[arg-type]


def service(hub: Hub) -> CommandSession:
    session = CommandSession(hub, LineProtocol(hub.limits), transport="tcp")
    hub.sessions.attach(session)
    return session


async def browser(hub: Hub, token: str, *subscriptions: frozenset[str]) -> CommandSession:
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
    for tags in subscriptions:
        await session.dispatch(Subscribe(tags))
    session.outbox.sent(session.outbox.size)
    return session


async def test_only_the_very_secret_is_the_secret() -> None:
    hub = await make_hub(secret=b"s3cret")
    assert hub.is_secret("s3cret")
    assert not any(map(hub.is_secret, ["", "s3cre", "s3cret ", "S3cret", "\udcff"]))
    assert not (await make_hub()).is_secret("")


async def test_counts_outlive_the_sessions_they_come_from() -> None:
    hub = await make_hub()
    session = service(hub)
    await session.dispatch(Subscribe(frozenset("a")))
    hub.publish(frozenset("a"), b"x")
    session.outbox.sent(session.outbox.size)
    before = hub.statistics()
    await session.aclose()
    after = hub.statistics()
    assert (before.connected, after.connected) == (1, 0)
    assert before.delivered == after.delivered == 1
    assert after.lifetime == 1


async def test_beyond_the_limit_the_oldest_stranger_goes() -> None:
    hub = await make_hub(secret=b"s", hub_limits=HubLimits(unauthenticated=2))
    sessions = [
        CommandSession(
            hub, LineProtocol(hub.limits, unauthenticated=True), transport="tcp", auth_timeout=10.0
        )
        for _ in range(3)
    ]
    assert [session.ended is not None for session in sessions] == [True, False, False]


async def test_a_gone_token_ends_its_sessions_and_no_others() -> None:
    hub = await make_hub()
    await hub.registry.execute([Register("one", AB), Register("two", AB)])
    one, two = await browser(hub, "one"), await browser(hub, "two")
    await hub.registry.execute([Unregister("one")])
    assert one.ended is not None
    assert one.ended.code == 4401
    assert two.ended is None


async def test_a_token_without_tags_ends_its_sessions() -> None:
    hub = await make_hub()
    await hub.registry.execute([Register("one", AB)])
    session = await browser(hub, "one")
    await hub.registry.execute([RemoveTags("one", AB)])
    assert session.ended is not None


async def test_a_narrowed_token_ends_what_it_no_longer_allows_and_says_so() -> None:
    hub = await make_hub()
    await hub.registry.execute([Register("one", AB)])
    session = await browser(hub, "one", frozenset("a"), frozenset("b"), frozenset("bx"))
    await hub.registry.execute([RemoveTags("one", frozenset("b"))])
    told = bytes(session.outbox.peek())
    assert told.count(b'"command":"revoked"') == 2
    session.outbox.sent(len(told))
    hub.publish(frozenset("bx"), b"no longer")
    assert session.outbox.size == 0
    hub.publish(frozenset("a"), b"still")
    assert b"still" in bytes(session.outbox.peek())


async def test_a_widened_token_allows_more_at_once() -> None:
    hub = await make_hub()
    await hub.registry.execute([Register("one", frozenset("a"))])
    session = await browser(hub, "one")
    await hub.registry.execute([AddTags("one", frozenset("z"))])
    await session.dispatch(Subscribe(frozenset("z")))
    assert b'"success":true' in bytes(session.outbox.peek())


async def test_a_gone_session_is_not_told_of_its_token_any_more() -> None:
    hub = await make_hub()
    await hub.registry.execute([Register("one", AB)])
    session = await browser(hub, "one", frozenset("a"))
    await session.aclose()
    await hub.registry.execute([RemoveTags("one", frozenset("a"))])
    assert session.outbox.size == 0


async def test_leaving_with_many_subscriptions_lets_others_run(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr("mist.turns._PASS", 0.0)
    hub = await make_hub()
    await nursery.start(hub.turns.run)
    session = service(hub)
    for n in range(2_000):
        await session.dispatch(Subscribe(frozenset({f"t{n}"})))
    steps = 0

    async def run_beside() -> None:
        nonlocal steps
        while session.subscriptions:
            steps += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as beside:
        beside.start_soon(run_beside)
        beside.start_soon(session.aclose)
    assert steps > 20
    assert hub.broker.tags() == frozenset()


async def test_where_all_of_it_ends_nothing_is_tidied_up() -> None:
    hub = await make_hub()
    session = service(hub)
    await session.dispatch(Subscribe(frozenset("a")))
    hub.ending = True
    await session.aclose()
    assert hub.sessions.connected == 0
    assert hub.broker.tags() == frozenset("a")
    hub.publish(frozenset("a"), b"to nobody")
    assert session.outbox.size == 0


async def test_a_chunk_of_many_commands_lets_others_run_and_be_flushed(
    nursery: trio.Nursery,
) -> None:
    hub = await make_hub()
    await nursery.start(hub.turns.run)
    session = service(hub)
    flushed = []
    session.outbox.flush = lambda: flushed.append(session.outbox.size)
    steps = []

    async def run_beside() -> None:
        while len(session.subscriptions) < 10_000:
            steps.append(len(session.subscriptions))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as beside:
        beside.start_soon(run_beside)
        beside.start_soon(
            session.receive, b"".join(b"subscribe t%d\nping\n" % n for n in range(10_000))
        )
    assert len(set(steps)) > 10
    assert len(flushed) > 1


async def test_drops_are_logged_once_an_interval_for_a_session(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    hub = await make_hub(outbox_limits=OutboxLimits(messages=1))
    session = service(hub)
    await session.dispatch(Subscribe(frozenset("a")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.report_drops)
        for _ in range(3):
            for _ in range(5):
                hub.publish(frozenset("a"), b"x")
            await trio.sleep(1.5)
        nursery.cancel_scope.cancel()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert sum(record.__dict__["dropped"] for record in warnings) == 14


async def test_drops_of_thousands_are_logged_while_others_run(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    hub = await make_hub(outbox_limits=OutboxLimits(messages=1))
    await nursery.start(hub.turns.run)
    sessions = [service(hub) for _ in range(2_000)]
    for session in sessions:
        await session.dispatch(Subscribe(frozenset("a")))
    for _ in range(2):
        hub.publish(frozenset("a"), b"x")
    logged = set()
    nursery.start_soon(hub.report_drops, 0.01)
    with trio.fail_after(20):
        while len(caplog.records) < 2_000:
            logged.add(len(caplog.records))
            await trio.lowlevel.checkpoint()
    assert len(logged) > 10


async def test_messages_published_together_are_all_published_or_none() -> None:
    hub = await make_hub()
    session = service(hub)
    await session.dispatch(Subscribe(frozenset("a")))
    bad = [(frozenset("a"), b"1"), (frozenset({"a", "no tag"}), b"2")]
    with pytest.raises(InvalidTag):
        hub.publish_all(bad)
    assert session.outbox.size == 0
    assert hub.publish_all([(AB, b"1"), (frozenset("c"), b"2"), (frozenset("a"), b"3")]) == 3
    assert bytes(session.outbox.peek()) == b"publish a,b 1\npublish a 3\n"


async def test_of_messages_published_together_only_those_with_lf_stay_off_lines() -> None:
    hub = await make_hub()
    session = service(hub)
    await session.dispatch(Subscribe(frozenset("a")))
    hub.publish_all([(AB, b"1"), (AB, b"two\nlines"), (AB, b"3")])
    assert bytes(session.outbox.peek()) == b"publish a,b 1\npublish a,b 3\n"
    assert hub.statistics().broker.dropped == {"unframable": 1}


async def test_messages_stored_together_are_one_append_with_ids_in_a_row() -> None:
    async with await open_history("memory://") as history, trio.open_nursery() as nursery:
        hub = await make_hub()
        hub.sequencer = await sequence(hub.broker, history)
        nursery.start_soon(hub.sequencer.run)
        assert await hub.store(AB, b"0") == 1
        first = await hub.store_all([(AB, b"1"), (AB, b"2\n"), (frozenset("c"), b"3")], "me")
        page = await history.read()
        nursery.cancel_scope.cancel()
    assert first == 2
    assert [(each.id, each.data) for each in page.messages()] == [
        (1, b"0"),
        (2, b"1"),
        (3, b"2\n"),
        (4, b"3"),
    ]
    assert [(each.publisher, each.count) for each in page.stored] == [("", 1), ("me", 3)]


async def test_nothing_is_stored_of_messages_one_of_which_is_bad() -> None:
    async with await open_history("memory://") as history, trio.open_nursery() as nursery:
        hub = await make_hub()
        hub.sequencer = await sequence(hub.broker, history)
        nursery.start_soon(hub.sequencer.run)
        with pytest.raises(EmptyTag):
            await hub.store_all([(AB, b"1"), (frozenset(), b"2")])
        hub.publish_all([(AB, b"3")], "me")
        await hub.sequencer.settled()
        page = await history.read()
        nursery.cancel_scope.cancel()
    assert [(each.id, each.data, each.publisher) for each in page.messages()] == [(1, b"3", "me")]


async def test_what_is_queued_for_a_revoked_token_is_gone() -> None:
    hub = await make_hub()
    await hub.registry.execute([Register("one", AB)])
    session = await browser(hub, "one", frozenset("a"))
    session.outbox.sent(session.outbox.size)  # the replies
    for _ in range(100):
        hub.publish(frozenset("a"), b"x")
    assert session.outbox.queued == 100
    await hub.registry.execute([Unregister("one")])
    assert session.ended is not None
    assert session.outbox.statistics().gone == 100
    assert session.outbox.size == 0


async def test_another_token_that_allows_less_ends_many_subscriptions_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = await make_hub()
    tags = [f"x{number}" for number in range(200)]
    wide, narrow = frozenset({"n", *tags}), frozenset({"n"})
    await hub.registry.execute([Register("wide", wide), Register("narrow", narrow)])
    session = await browser(hub, "wide", narrow, *(frozenset({each}) for each in tags))
    assert len(session.subscriptions) == 201
    rests = 0
    kept: list[int] = []

    async def rest(*_: object, **__: object) -> None:
        nonlocal rests
        rests += 1

    def adopt(self: CommandSession, record: Record, *, narrowed: bool) -> None:
        kept.append(len(session.subscriptions))
        assert narrowed  # so that it doesn't look at all of them again
        plain(self, record, narrowed=narrowed)

    plain = CommandSession.adopt
    monkeypatch.setattr(CommandSession, "adopt", adopt)
    monkeypatch.setattr(FlushScheduler, "rest", rest)
    monkeypatch.setattr(Turns, "spent", lambda turns, began: True)
    await session.dispatch(Auth("narrow"))
    assert kept == [1]
    assert rests >= 200
    assert session.ended is None
    assert [*session.subscriptions.tag_sets()] == [narrow]
    assert session.outbox.peek().count(b"revoked") == 200


async def test_what_wide_matches_found_is_freed_in_turns(hub: Hub, nursery: trio.Nursery) -> None:
    nursery.start_soon(hub.free_matches)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(2):  # it goes on after the first
        FoundGroups(hub.broker.freed, [Group(b"a")] * 10_000)
        assert len(hub.broker.freed) == 10_000
        await trio.testing.wait_all_tasks_blocked()
        assert len(hub.broker.freed) == 0
