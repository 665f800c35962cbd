"""Durable before delivered: what is published goes through the history, in order, or is refused."""

import logging
from collections.abc import Awaitable, Callable, Iterator

import attrs
import pytest
import trio
import trio.testing

from mist.auth.opening import open_registry
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.broker.validation import Accepted
from mist.errors import EmptyTag, HistoryOff, HistoryUnavailable
from mist.history import Bulk, History, Key, Mark, Publication
from mist.message import Envelope
from mist.protocols.line.forms import PLAIN
from mist.sessions.batching import Checked
from mist.sessions.hub import Hub
from mist.sessions.page_turns import PageTurns
from mist.sessions.publisher import Publisher
from mist.sessions.sequencer import Sequencer
from mist.sessions.submission import Submission
from mist.turns import Account
from mist.wire import Batch, record
from tests.sessions.storing import Gate, bulk, join, numbers, sequence, sequencer_of, take

A = frozenset("a")


def fail(*_: object) -> None:
    raise ZeroDivisionError


async def test_nobody_gets_a_message_before_it_is_stored(hub: Hub, history: History) -> None:
    gate = Gate(history)
    publisher, subscriber = join(hub), join(hub, "a")
    await publisher.receive(b"publish a 1\n")
    await trio.testing.wait_all_tasks_blocked()
    assert take(subscriber) == b""
    gate.open.set()
    await publisher.receive(b"ping\n")
    assert take(subscriber) == b"publish a 1\n"
    assert take(publisher) == b"pong\n"
    assert [m.data for m in (await history.read()).messages()] == [b"1"]


async def test_a_store_is_answered_with_its_id_behind_its_own_delivery(hub: Hub) -> None:
    session = join(hub, "a")
    await session.receive(b"publish a 1\nstore a 2\nstore b 3\nping\n")
    assert take(session) == b"publish a 1\npublish a 2\nstored 2\nstored 3\npong\n"


async def test_commands_take_effect_in_order(hub: Hub) -> None:
    session = join(hub)
    await session.receive(
        b"publish a 1\nsubscribe a\npublish a 2\nunsubscribe a\npublish a 3\nlast\n"
    )
    assert hub.sequencer is not None
    assert take(session) == b"publish a 2\nlast %b 3\n" % hub.sequencer.epoch.encode()


async def test_tag_lists_are_stored_in_canonical_form(hub: Hub, history: History) -> None:
    session = join(hub, "a")
    await session.receive(b"publish b,a,b 1\npublish b,a,b 2\npublish a,b 3\nping\n")
    assert take(session) == b"publish a,b 1\npublish a,b 2\npublish a,b 3\npong\n"
    stored = [(m.id, m.tags, m.data) for m in (await history.read()).messages()]
    assert stored == [(n, frozenset("ab"), b"%d" % n) for n in (1, 2, 3)]


async def test_ids_come_with_deliveries_where_they_are_asked_for(hub: Hub) -> None:
    session, publisher = join(hub, "a", "c"), join(hub)
    await session.receive(b"ids on\n")
    await publisher.receive(b"publish a 1\npublish b 2\npublish a,c 3\npublish c 4\nping\n")
    assert take(session) == b"message 1 a 1\nmessage 3 a,c 3\nmessage 4 c 4\n"
    await session.receive(b"ids off\n")
    await publisher.receive(b"publish a 5\nping\n")
    assert take(session) == b"publish a 5\n"


async def test_what_is_submitted_while_a_group_is_stored_is_the_next_group(
    hub: Hub, history: History
) -> None:
    gate = Gate(history)
    publishers = [join(hub) for _ in range(5)]
    for publisher in publishers:
        await publisher.receive(b"publish a 1\npublish a 2\n")
    await trio.testing.wait_all_tasks_blocked()
    gate.open.set()
    for publisher in publishers:
        await publisher.receive(b"ping\n")
    assert sum(gate.groups) == 10
    assert len(gate.groups) <= 2


async def test_a_group_has_no_more_batches_than_are_stored_in_a_short_step(
    hub: Hub, history: History
) -> None:
    gate = Gate(history)
    outcomes: list[object] = []
    for n in range(2_500):
        accepted = Accepted(Batch((b"a",), (record(b"a", b"%d" % n), 1)))
        submission = Submission([accepted], lambda _, outcome: outcomes.append(outcome))
        sequencer_of(hub).submit(submission)
    gate.open.set()
    await sequencer_of(hub).settled()
    assert outcomes == list(range(1, 2_501))
    assert sum(gate.groups) == 2_500
    assert max(gate.groups) <= 1_000


async def test_others_run_while_a_submission_of_many_batches_is_made_ready(
    hub: Hub, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = 0, set()
    make = Submission.publications

    def counted(submission: Submission) -> Iterator[Publication]:
        nonlocal made
        for each in make(submission):
            made += 1
            yield each

    async def look() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            seen.add(made)

    monkeypatch.setattr(Submission, "publications", counted)
    outcomes: list[object] = []
    accepted = [Accepted(Batch((b"a",), (record(b"a", b"%d" % n), 1))) for n in range(5_000)]
    nursery.start_soon(look)
    sequencer_of(hub).submit(Submission(accepted, lambda _, first: outcomes.append(first)))
    await sequencer_of(hub).settled()
    assert outcomes == [1]
    assert len(seen - {0, 5_000}) >= 2  # of four: one in two, as tasks run in no order


@pytest.mark.parametrize("history", ["memory", "sqlite"], indirect=True)  # nodes deliver beside
@pytest.mark.parametrize(
    ("crowded", "groups"),
    [(False, [1, 2]), pytest.param(True, [1, 1, 1], id="but not where many replay")],
)
async def test_who_publishes_once_a_group_is_delivered_is_in_the_next_one(
    hub: Hub,
    history: History,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    crowded: bool,
    groups: list[int],
) -> None:
    monkeypatch.setattr(PageTurns, "crowded", crowded)
    gate = Gate(history)
    waiting, late = join(hub), join(hub)

    async def publish_after_the_first() -> None:
        await hub.store(A, b"1")
        await late.receive(b"publish a 3\n")

    nursery.start_soon(publish_after_the_first)
    await trio.testing.wait_all_tasks_blocked()
    await waiting.receive(b"publish a 2\n")
    gate.open.set()
    await waiting.receive(b"ping\n")
    await late.receive(b"ping\n")
    assert gate.groups == groups


async def test_where_nothing_can_be_stored_nobody_gets_it_and_its_publisher_hears(
    hub: Hub, history: History
) -> None:
    gate = Gate(history)
    gate.open.set()
    gate.failing = True
    session = join(hub, "a")
    await session.receive(b"publish a 1\npublish b 2\nstore a 3\nping\n")
    assert take(session) == b"error History is unavailable\n" * 3 + b"pong\n"
    gate.failing = False
    await session.receive(b"store a 4\nping\n")
    assert take(session) == b"publish a 4\nstored 1\npong\n"


async def test_each_reason_why_nothing_can_be_stored_is_told_once_and_its_end(
    hub: Hub, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mist.history")
    sequencer = sequencer_of(hub)
    for reason in ("the disk is full", "the disk is full", "it is read-only"):
        sequencer._note_failure(HistoryUnavailable(reason))
        assert sequencer.failing
    for data in (b"1", b"2"):
        await hub.store(A, data)
        assert not sequencer.failing
    told = [(each.message, getattr(each, "reason", "")) for each in caplog.records]
    assert told == [
        ("history can't be written", "the disk is full"),
        ("history can't be written", "it is read-only"),
        ("history can be written again", ""),
    ]


async def test_many_publishers_keep_their_own_order_and_ids_ascend(
    hub: Hub, history: History
) -> None:
    subscriber = join(hub, "a")
    await subscriber.receive(b"ids on\n")

    async def publish(name: int) -> None:
        publisher = join(hub)
        for n in range(50):
            await publisher.receive(b"publish a,t%d %d.%d\n" % (n % 3, name, n))
        await publisher.receive(b"ping\n")

    async with trio.open_nursery() as publishers:
        for name in range(8):
            publishers.start_soon(publish, name)
    got = [line.split(b" ") for line in take(subscriber).splitlines()]
    assert [int(each[1]) for each in got] == list(range(1, 401))
    for name in range(8):
        mine = [each[3] for each in got if each[3].startswith(b"%d." % name)]
        assert mine == [b"%d.%d" % (name, n) for n in range(50)]
    stored = [(m.id, m.data) for m in (await history.read()).messages()]
    assert stored == [(int(each[1]), each[3]) for each in got]


async def test_without_a_history_its_words_say_so() -> None:
    session = join(Hub(await open_registry("memory://")))
    sent = b"store a 1\nlast\nids on\nsubscribe a 0\nresume 0 a\npublish a 1\nping\n"
    await session.receive(sent)
    assert take(session) == b"error History is off\n" * 5 + b"pong\n"


async def test_a_program_that_embeds_mist_stores_too(hub: Hub, history: History) -> None:
    subscriber = join(hub, "a")
    assert await hub.store(frozenset("a"), b"two\nlines") == 1
    hub.publish(frozenset("a"), b"2")
    assert await hub.store(frozenset("b"), b"3") == 3
    assert take(subscriber) == b"publish a 2\n"  # the first can't be a line
    assert subscriber.outbox.dropped_unframable == 1
    gate = Gate(history)
    gate.failing = True
    gate.open.set()
    with pytest.raises(HistoryUnavailable):
        await hub.store(frozenset("a"), b"4")
    with pytest.raises(EmptyTag):
        await hub.store(frozenset(), b"5")


async def test_nothing_is_stored_where_there_is_no_history() -> None:
    hub = Hub(await open_registry("memory://"))
    with pytest.raises(HistoryOff):
        await hub.store(frozenset("a"), b"1")


# one that raises


@pytest.mark.parametrize("what", ["flush", "on_dropping", "on_behind", "settled"])
async def test_what_raises_beside_a_delivery_costs_nobody_else(hub: Hub, what: str) -> None:
    broker, other = hub.broker, join(hub, "a")
    outbox = Outbox(
        PLAIN,
        OutboxLimits(messages=1),
        broker.ready,
        on_dropping=fail if what == "on_dropping" else lambda outbox: None,
    )
    broker.subscribe(outbox, A)
    if what == "flush":
        outbox.flush = fail
    if what == "on_behind":
        outbox.on_behind = fail
    checked = Checked(broker)
    assert not any(checked.check([(A, b"1"), (A, b"2")]))
    submission = Submission(
        checked.batches(),
        fail if what == "settled" else lambda _, outcome: None,
    )
    sequencer_of(hub).submit(submission)
    with trio.fail_after(5):
        assert await hub.store(A, b"3") == 3
    assert take(other) == b"publish a 1\npublish a 2\npublish a 3\n"
    assert broker.failures.counts.total() >= 1
    await sequencer_of(hub).settled()


async def test_a_broker_that_raises_costs_that_batch_and_ids_stay_right(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber = join(hub, "a")
    await subscriber.receive(b"ids on\n")
    with monkeypatch.context() as patch:
        patch.setattr(hub.broker, "publish_in_steps", fail)
        assert await hub.store_all([(A, b"1"), (A, b"2")]) == 1
    assert await hub.store(A, b"3") == 3
    assert take(subscriber) == b"message 3 a 3\n"
    assert hub.broker.statistics().failures == {"delivery": 1}


async def test_a_task_that_raises_is_counted(hub: Hub) -> None:
    async def task() -> None:
        fail()

    await hub.store(A, b"0")  # it runs
    sequencer_of(hub).start_soon(task)
    await trio.testing.wait_all_tasks_blocked()
    assert hub.broker.statistics().failures == {"task": 1}
    assert await hub.store(A, b"1") == 2


async def test_what_can_not_be_stored_is_refused_alone(hub: Hub, history: History) -> None:
    gate = Gate(history)
    subscriber = join(hub, "a")
    outcomes: list[object] = []

    async def store(data: bytes) -> None:
        try:
            outcomes.append((data, await hub.store(A, data)))
        except HistoryUnavailable:
            outcomes.append((data, None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store, b"held")
        await trio.testing.wait_all_tasks_blocked()
        for data in (b"1", b"bad", b"2"):
            if data == b"bad":  # as nothing that the hub lets pass could be
                envelope = Envelope(audience="?")  # type: ignore[arg-type]
                batch = Batch.of_runs([(b"a", record(b"a", data), 1)], envelope=envelope)
                (accepted,) = hub.broker.validate(batch)
                assert isinstance(accepted, Accepted)
                bad = Submission([accepted], lambda _, outcome: outcomes.append(outcome))
                sequencer_of(hub).submit(bad)
            else:
                nursery.start_soon(store, data)
            await trio.testing.wait_all_tasks_blocked()
        gate.open.set()
    assert outcomes[0] == (b"held", 1)
    assert {(b"1", 2), (b"2", 3)} < {each for each in outcomes if isinstance(each, tuple)}
    assert [each for each in outcomes if isinstance(each, HistoryUnavailable)]
    assert take(subscriber) == b"publish a held\npublish a 1\npublish a 2\n"
    assert hub.broker.statistics().failures == {"append": 1}
    assert not sequencer_of(hub).failing


# misuse


async def test_a_batch_that_can_not_be_is_refused_in_the_call(hub: Hub) -> None:
    sequencer = sequencer_of(hub)
    with pytest.raises(ValueError, match="at least one message"):
        Submission([], lambda _, outcome: None)
    with pytest.raises(TypeError):
        sequencer.submit([])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await sequencer.commit(None, Mark("", "w", 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await sequencer.commit(bulk(numbers("a", 1)), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="less than no"):
        await sequencer.commit(Bulk(lambda: iter(()), -1), Mark("", "w", 1))
    with pytest.raises(ValueError, match="another number"):
        await sequencer.commit(Bulk(lambda: iter(()), 3), Mark("", "w", 1))
    assert await hub.store(A, b"1") == 1


async def test_a_batch_of_nothing_leaves_its_mark_and_no_id(hub: Hub) -> None:
    sequencer = sequencer_of(hub)
    done, fresh = await sequencer.commit(Bulk(lambda: iter(()), 0), Mark("", "w", 1))
    assert (done.count, fresh) == (0, True)
    assert (await sequencer.commit(Bulk(lambda: iter(()), 0), Mark("", "w", 1)))[1] is False
    await sequencer.settled()
    assert await hub.store(A, b"1") == 1


# the end


@attrs.define
class Stopping:
    """A sequencer with a hub, and how to stop it."""

    hub: Hub
    sequencer: Sequencer
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    crashed: bool = False

    async def run(self) -> None:
        try:
            with self.scope:
                await self.sequencer.run()
        except* ZeroDivisionError:
            self.crashed = True


@pytest.fixture
async def stopping(history: History, nursery: trio.Nursery) -> Stopping:
    hub = Hub(await open_registry("memory://"))
    hub.sequencer = await sequence(hub.broker, history)
    stopping = Stopping(hub, hub.sequencer)
    nursery.start_soon(stopping.run)
    await trio.testing.wait_all_tasks_blocked()
    return stopping


def requests(hub: Hub) -> dict[str, Callable[[], Awaitable[object]]]:
    """All that waits for a sequencer, by name."""
    sequencer = sequencer_of(hub)
    key = Key(bytes(32), bytes(32))
    return {
        "store": lambda: hub.store(A, b"1"),
        "commit": lambda: sequencer.commit(bulk(numbers("a", 3)), Mark("", "w", 1)),
        "once": lambda: sequencer.keys_in_flight.once(
            key, lambda: hub.store_all([(A, b"1")], key=key)
        ),
    }


@pytest.mark.parametrize("first", ["store", "commit", "once"])
async def test_all_that_waits_is_told_when_the_sequencer_stops(
    stopping: Stopping,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
) -> None:
    hub, sequencer = stopping.hub, stopping.sequencer
    Gate(history)  # which nobody opens
    ready = trio.Event()
    commit = history.commit

    async def held(*arguments: object) -> object:
        await ready.wait()
        return await commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(history, "commit", held)
    told: list[str] = []
    publisher = Publisher(sequencer, Outbox(PLAIN, OutboxLimits(), hub.broker.ready), hub.turns)
    errors: list[object] = []

    async def ask(name: str, request: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(HistoryUnavailable):
            await request()
        told.append(name)

    async def wait(name: str, waiting: Callable[[], Awaitable[None]]) -> None:
        await waiting()
        told.append(name)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            asked = requests(hub)
            nursery.start_soon(ask, first, asked.pop(first))  # which is under way,
            await trio.testing.wait_all_tasks_blocked()
            for name, request in asked.items():  # and these are queued behind it
                nursery.start_soon(ask, name, request)
            await publisher.publish(Batch.of(A, b"1"), Account(), "", errors.append)
            for _ in range(2):
                nursery.start_soon(wait, "settled", sequencer.settled)
                nursery.start_soon(wait, "settle", publisher.settle)
                await trio.testing.wait_all_tasks_blocked()
            assert told == []
            stopping.scope.cancel()
    assert sorted(told) == ["commit", "once", "settle", "settle", "settled", "settled", "store"]
    assert [type(each) for each in errors] == [HistoryUnavailable]


async def test_all_that_waits_is_told_when_the_sequencer_crashes(
    stopping: Stopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 0
    monkeypatch.setattr(stopping.sequencer, "_next_group", fail)

    async def ask(request: Callable[[], Awaitable[object]]) -> None:
        nonlocal told
        with pytest.raises(HistoryUnavailable):
            await request()
        told += 1

    with trio.fail_after(5):
        stopping.hub.publish(A, b"0")
        async with trio.open_nursery() as nursery:
            for request in requests(stopping.hub).values():
                nursery.start_soon(ask, request)
            nursery.start_soon(stopping.sequencer.settled)
    assert told == 3
    await trio.testing.wait_all_tasks_blocked()
    assert stopping.crashed


async def test_a_sequencer_that_has_stopped_refuses(stopping: Stopping) -> None:
    hub, sequencer = stopping.hub, stopping.sequencer
    stopping.scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(5):
        for request in requests(hub).values():
            with pytest.raises(HistoryUnavailable):
                await request()
        with pytest.raises(HistoryUnavailable):
            hub.publish(A, b"1")
        with pytest.raises(HistoryUnavailable):
            sequencer.start_soon(sequencer.settled)
        await sequencer.settled()
        session = join(hub)
        await session.receive(b"publish a 1\nstore a 2\nping\n")
        assert take(session) == b"error History is unavailable\n" * 2 + b"pong\n"
    with pytest.raises(RuntimeError):
        await sequencer.run()


async def test_a_sequencer_that_does_not_run_yet_refuses_tasks(history: History) -> None:
    hub = Hub(await open_registry("memory://"))
    hub.sequencer = await sequence(hub.broker, history)
    with pytest.raises(HistoryUnavailable), trio.fail_after(5):
        await requests(hub)["once"]()


@pytest.mark.parametrize("name", ["store", "commit", "once"])
async def test_one_who_gives_up_leaves_nothing_behind(
    hub: Hub, history: History, name: str
) -> None:
    gate = Gate(history)
    gate.open.set()
    with trio.move_on_after(0):
        await requests(hub)[name]()
    with trio.move_on_after(0):
        await sequencer_of(hub).settled()
    with trio.fail_after(5):
        await sequencer_of(hub).settled()
        await hub.store(A, b"2")
        while (await history.position()).newest != sequencer_of(hub).newest:
            await trio.lowlevel.checkpoint()


async def test_all_who_wait_hear_that_everything_is_settled(hub: Hub, history: History) -> None:
    gate = Gate(history)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            hub.publish(A, b"1")
            for _ in range(3):
                nursery.start_soon(sequencer_of(hub).settled)
                await trio.testing.wait_all_tasks_blocked()
            gate.open.set()


async def test_a_drain_waits_for_a_batch(hub: Hub, history: History) -> None:
    sequencer = sequencer_of(hub)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sequencer.commit, bulk(numbers("a", 3)), Mark("", "w", 1))
        while not sequencer._bulks:
            await trio.lowlevel.checkpoint()
        await sequencer.settled()
        assert (await history.position()).newest == 3
