"""A writer's large batch: stored at once, delivered in order and in turns."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from mist.broker.groups import Group
from mist.broker.outbox import Outbox
from mist.broker.validation import Accepted
from mist.errors import HistoryUnavailable
from mist.history import Bulk, History, Mark
from mist.history.commits import make_blocks
from mist.history.layout import Row
from mist.sessions.delivery import Delivery
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.hub import Hub
from mist.sessions.submission import Submission
from mist.turns import Turns
from mist.wire import Batch, WireForm
from tests.clocks import Clock
from tests.sessions.storing import NODES, Gate, bulk, join, numbers, sequencer_of, take
from tests.waiting import until


async def test_a_large_batch_is_delivered_in_order_behind_and_ahead_of_others(
    hub: Hub, history: History
) -> None:
    gate = Gate(history)
    subscriber, publisher = join(hub, "a"), join(hub)
    await subscriber.receive(b"ids on\n")
    await publisher.receive(b"publish a before\n")
    await trio.testing.wait_all_tasks_blocked()
    assert hub.sequencer is not None
    outcomes = []
    async with trio.open_nursery() as nursery:

        async def commit() -> None:
            assert hub.sequencer is not None
            outcomes.append(await hub.sequencer.commit(bulk(numbers("a", 6_000)), Mark("", "w", 1)))

        nursery.start_soon(commit)
        await trio.testing.wait_all_tasks_blocked()
        await publisher.receive(b"publish a behind\n")
        assert take(subscriber) == b""
        gate.open.set()
    await publisher.receive(b"ping\n")
    ((done, fresh),) = outcomes
    # A node stages a batch beside what others publish, and so it comes behind that.
    first = 3 if history in NODES else 2
    assert (done.first, done.last, fresh) == (first, first + 5_999, True)
    lines = []
    while chunk := take(subscriber):
        lines += chunk.splitlines()
    batch = [b"message %d a %d" % (n + first, n) for n in range(6_000)]
    before = [b"message 1 a before"]
    behind = [b"message %d a behind" % (2 if first == 3 else 6_002)]
    assert lines == before + (behind + batch if first == 3 else batch + behind)
    assert hub.sequencer.newest == 6_002
    assert gate.groups[:2] == [1, 1]


async def test_others_have_their_turns_while_a_large_batch_is_handed_out(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.turns._PASS", 0.0)
    monkeypatch.setattr("mist.turns._SHORT", 0.0)
    subscriber = join(hub, "a")
    sequencer = hub.sequencer
    assert sequencer is not None
    seen: list[tuple[int, int]] = []
    done = trio.Event()

    async def watch() -> None:
        while not done.is_set():
            seen.append((sequencer.newest, subscriber.outbox.queued))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await sequencer.commit(bulk(numbers("a", 5_000)), Mark("", "w", 1))
        done.set()
    # trio runs tasks in an order of its own: between two turns of ours may be two of the other.
    newest = [0, *(newest for newest, _ in seen), 5_000]
    assert max(after - before for before, after in pairwise(newest)) <= 2 * 256
    # Nobody is told of an id that hasn't been queued for them.
    assert all(newest == queued for newest, queued in seen)


async def test_however_full_a_pass_is_some_messages_are_delivered_in_it(
    hub: Hub, history: History, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    turns = Turns(clock)
    await nursery.start(turns.run)
    await trio.testing.wait_all_tasks_blocked()
    delivery = Delivery(hub.broker, history, 0, FlushScheduler(hub.broker, turns))
    publish = hub.broker.publish_in_steps

    def work(batch: Batch, *arguments: Any, **others: Any) -> Iterable[int | None]:
        clock.work(0.0001)
        return publish(batch, *arguments, **others)

    monkeypatch.setattr(hub.broker, "publish_in_steps", work)
    subscriber = join(hub, "a")
    one = Submission([Accepted(Batch.of(frozenset("a"), b"x"))], lambda *_: None)
    clock.work(1.0)
    delivery.begin()
    for first in range(1, 4):
        await delivery.deliver(one, first)
        assert turns.given == 0
    await delivery.deliver(one, 4)
    assert turns.given == 1
    assert take(subscriber) == b"publish a x\n" * 4


async def test_a_repeated_batch_is_delivered_once(hub: Hub) -> None:
    subscriber = join(hub, "a")
    sequencer = hub.sequencer
    assert sequencer is not None
    first = await sequencer.commit(bulk(numbers("a", 3)), Mark("", "w", 1))
    again = await sequencer.commit(bulk(numbers("a", 3)), Mark("", "w", 1))
    assert (first[1], again) == (True, (first[0], False))
    assert take(subscriber) == b"publish a 0\npublish a 1\npublish a 2\n"


async def test_data_with_line_ends_keeps_its_ids(hub: Hub, history: History) -> None:
    subscriber = join(hub, "a")
    await subscriber.receive(b"ids on\n")
    sequencer = hub.sequencer
    assert sequencer is not None
    mixed = bulk(numbers("a", 2, framable=False), numbers("a", 2), numbers("b", 1))
    await sequencer.commit(mixed, Mark("", "w", 1))
    assert take(subscriber) == b"message 3 a 0\nmessage 4 a 1\n"
    assert [m.data for m in (await history.read()).messages()] == [b"0\n", b"1\n", b"0", b"1", b"0"]


@pytest.mark.parametrize("error", [HistoryUnavailable("full"), OSError("gone")])
async def test_a_batch_that_fails_is_told_and_tried_again(hub: Hub, error: Exception) -> None:
    subscriber = join(hub, "a")
    sequencer = hub.sequencer
    assert sequencer is not None
    rows = make_blocks([numbers("a", 3)])

    def fail() -> Iterator[Row]:
        yield rows[0]
        raise error

    with pytest.raises(type(error)):
        await sequencer.commit(Bulk(fail, 3), Mark("", "w", 1))
    assert sequencer.failing == isinstance(error, HistoryUnavailable)
    assert take(subscriber) == b""
    done, fresh = await sequencer.commit(Bulk(lambda: iter(rows), 3), Mark("", "w", 1))
    assert (done.first, fresh, sequencer.failing) == (1, True, False)
    assert take(subscriber).count(b"\n") == 3
    await sequencer.settled()


async def test_where_the_batch_can_not_be_read_again_the_history_has_it(
    hub: Hub, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = join(hub, "a")
    sequencer = hub.sequencer
    assert sequencer is not None
    rows = make_blocks([numbers("a", 6_000)])
    readings = 0

    def blocks() -> Iterator[Row]:
        nonlocal readings
        readings += 1
        yield rows[0]
        if readings > 1:
            raise OSError("gone")
        yield from rows[1:]

    await sequencer.commit(Bulk(blocks, 6_000), Mark("", "w", 1))
    assert "can't be read again" in caplog.text
    data = b""
    while chunk := take(subscriber):
        data += chunk
    assert data.splitlines() == [b"publish a %d" % n for n in range(6_000)]
    assert sequencer.newest == 6_000


async def test_a_slice_that_raises_costs_that_slice(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber = join(hub, "a")
    publish = hub.broker.publish_in_steps
    slices = 0

    def publish_some(*arguments: object, **options: object) -> Iterable[int | None]:
        nonlocal slices
        slices += 1
        if slices == 2:
            raise ZeroDivisionError
        return publish(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(hub.broker, "publish_in_steps", publish_some)
    _, fresh = await sequencer_of(hub).commit(bulk(numbers("a", 1_000)), Mark("", "w", 1))
    assert fresh
    data = b""
    while chunk := take(subscriber):
        data += chunk
    expected = [b"publish a %d" % n for n in range(1_000) if not 256 <= n < 512]
    assert data.splitlines() == expected
    assert sequencer_of(hub).newest == 1_000
    assert hub.broker.statistics().failures == {"delivery": 1}


async def test_a_session_of_many_subscriptions_gets_another_form_in_steps(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber, publisher = join(hub), join(hub)
    for number in range(10_000):
        subscriber.subscribe(frozenset({f"t{number}"}))
    for number in range(0, 10_000, 1_000):  # what is cached has the form of before
        await publisher.receive(b"publish t%d before\n" % number)
    await until(lambda: subscriber.outbox.queued == 10)
    take(subscriber)
    reshape = hub.broker.reshape
    most = 0

    def reshape_some(outbox: Outbox, form: WireForm, groups: Sequence[Group]) -> None:
        nonlocal most
        most = max(most, len(groups))
        reshape(outbox, form, groups)

    monkeypatch.setattr(hub.broker, "reshape", reshape_some)
    await subscriber.receive(b"ids on\n")
    assert 0 < most < 500
    for number in range(0, 10_000, 1_000):
        await publisher.receive(b"publish t%d after\n" % number)
    await until(lambda: subscriber.outbox.queued == 10)
    lines = take(subscriber).splitlines()
    assert lines == [b"message %d t%d after" % (11 + n, 1_000 * n) for n in range(10)]
