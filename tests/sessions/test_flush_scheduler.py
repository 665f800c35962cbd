"""Sessions take turns: one flush for all who worked at the same time, none forgotten."""

from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from mist.broker.broker import Broker
from mist.broker.outbox import BURST, Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.protocols.line.forms import PLAIN
from mist.sessions.flush_scheduler import READ_ALONE, READ_SHARED, FlushScheduler
from mist.turns import Account, Turns
from mist.wire import Batch
from tests.clocks import Clock


class Subscriber:
    """An outbox that is written whole at each flush, and what each flush wrote."""

    def __init__(self, broker: Broker, **bounds: int) -> None:
        self.writes: list[bytes] = []
        self.outbox = Outbox(PLAIN, OutboxLimits(**bounds), broker.ready)
        self.outbox.flush = self._flush
        broker.subscribe(self.outbox, frozenset("a"))

    def _flush(self) -> None:
        data = b""
        while self.outbox.size:
            data += (piece := bytes(self.outbox.peek()))
            self.outbox.sent(len(piece))
        self.writes.append(data)


def message(text: str) -> Batch:
    return Batch.of(frozenset("a"), text.encode())


async def work(broker: Broker, flush_scheduler: FlushScheduler, name: str, chunks: int = 1) -> None:
    for number in range(chunks):
        broker.publish(message(f"{name}{number}"))
        if not await flush_scheduler.pause(name):
            await trio.lowlevel.checkpoint()


async def test_whoever_works_at_the_same_time_is_flushed_once() -> None:
    broker = Broker()
    flush_scheduler = FlushScheduler(broker, Turns())
    subscriber = Subscriber(broker)
    async with trio.open_nursery() as nursery:
        for name in "xyz":
            nursery.start_soon(work, broker, flush_scheduler, name)
    [written] = subscriber.writes
    assert sorted(written.split(b"\n")) == [b"", b"publish a x0", b"publish a y0", b"publish a z0"]


async def test_every_publisher_stays_in_order_over_many_turns() -> None:
    broker = Broker()
    flush_scheduler = FlushScheduler(broker, Turns())
    subscriber = Subscriber(broker)
    async with trio.open_nursery() as nursery:
        for name in "vwxyz":
            nursery.start_soon(work, broker, flush_scheduler, name, 50)
    lines = b"".join(subscriber.writes).split()[2::3]
    assert len(lines) == 250
    for name in b"vwxyz":
        assert [line for line in lines if line[0] == name] == [
            b"%c%d" % (name, n) for n in range(50)
        ]
    # Two turns' worth may meet in one write or in two; never a write a message.
    assert len(subscriber.writes) <= 2 * 50


async def test_a_session_that_works_alone_is_flushed_on_the_spot() -> None:
    broker = Broker()
    flush_scheduler = FlushScheduler(broker, Turns())
    subscriber = Subscriber(broker)
    await work(broker, flush_scheduler, "x")
    broker.publish(message("next"))
    assert not await flush_scheduler.pause("x")
    assert subscriber.writes[-1] == b"publish a next\n"


async def test_a_session_that_is_only_answered_is_answered_at_once() -> None:
    broker = Broker()
    flush_scheduler = FlushScheduler(broker, Turns())
    one, other = Subscriber(broker), Subscriber(broker)
    one.outbox.reply(b"pong\n")
    with trio.testing.assert_no_checkpoints():
        assert not await flush_scheduler.pause("x", one.outbox)
    assert one.writes == [b"pong\n"]
    # Where others' outboxes are concerned, too, others may add to them in the same turn.
    one.outbox.reply(b"pong\n")
    other.outbox.reply(b"message\n")
    with trio.testing.assert_checkpoints():
        assert await flush_scheduler.pause("y", one.outbox)
    assert (one.writes, other.writes) == ([b"pong\n"] * 2, [b"message\n"])


async def test_what_a_cancelled_session_queued_is_flushed() -> None:
    broker = Broker()
    flush_scheduler = FlushScheduler(broker, Turns())
    subscriber = Subscriber(broker)
    with trio.CancelScope() as scope:
        scope.cancel()
        await work(broker, flush_scheduler, "x")
    assert scope.cancelled_caught
    assert subscriber.writes == [b"publish a x0\n"]


async def test_many_busy_sessions_read_less_each_until_they_are_few_again() -> None:
    broker = Broker()
    flush_scheduler = FlushScheduler(broker, Turns())
    assert flush_scheduler.read_size == READ_ALONE
    async with trio.open_nursery() as nursery:
        for number in range(9):
            nursery.start_soon(work, broker, flush_scheduler, str(number))
    assert flush_scheduler.read_size == READ_SHARED
    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(work, broker, flush_scheduler, str(number))
    assert flush_scheduler.read_size == READ_ALONE


async def test_publishers_that_share_a_flush_cannot_fill_a_healthy_outbox() -> None:
    broker = Broker()
    flush_scheduler = FlushScheduler(broker, Turns())
    subscriber = Subscriber(broker, bytes=BURST + READ_SHARED)

    async def publish(name: str) -> None:
        broker.publish(message(name * (READ_SHARED // 2)))
        await flush_scheduler.pause(name)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(publish, chr(ord("A") + number % 50))
    assert subscriber.outbox.dropped_full == 0
    assert sum(written.count(b"\n") for written in subscriber.writes) == 100
    assert len(subscriber.writes) < 10


@pytest.mark.parametrize("shielded", [True, False])
async def test_what_is_shielded_is_done_once_it_has_begun(
    nursery: trio.Nursery, shielded: bool
) -> None:
    clock = Clock()
    flush_scheduler = FlushScheduler(Broker(), turns := Turns(clock))
    await nursery.start(turns.run)
    done = 0

    def steps() -> Iterator[None]:
        nonlocal done
        for _ in range(10):
            clock.work(0.001)  # more than a turn
            done += 1
            yield

    await trio.lowlevel.checkpoint()
    with trio.CancelScope() as scope:
        scope.cancel()
        await flush_scheduler.work(steps(), Account(), shielded=shielded)
        assert shielded
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert done == (10 if shielded else 1)


class Crowd:
    """Outboxes, each of which takes time to flush."""

    def __init__(self, broker: Broker, clock: Clock, tag: str, count: int) -> None:
        self.written: list[int] = []
        for number in range(count):
            outbox = Outbox(PLAIN, OutboxLimits(), broker.ready)
            outbox.flush = partial(self._flush, outbox, clock, number)
            broker.subscribe(outbox, frozenset({tag}))

    def _flush(self, outbox: Outbox, clock: Clock, number: int) -> None:
        clock.work(0.0001)
        outbox.sent(outbox.size)
        self.written.append(number)


async def test_nobody_waits_until_all_outboxes_of_somebody_else_are_written(
    nursery: trio.Nursery,
) -> None:
    clock, broker = Clock(), Broker()
    turns = Turns(clock)
    flush_scheduler = FlushScheduler(broker, turns)
    await nursery.start(turns.run)
    nursery.start_soon(flush_scheduler.run)
    await trio.testing.wait_all_tasks_blocked()
    many, few = Crowd(broker, clock, "many", 5_000), Crowd(broker, clock, "few", 3)

    broker.publish(Batch.of(frozenset({"many"}), b"x"))
    assert not flush_scheduler.flush()
    assert len(many.written) <= 32
    broker.publish(Batch.of(frozenset({"few"}), b"x"))
    assert not await flush_scheduler.pause("one")
    assert len(few.written) == 3
    assert len(many.written) <= 64
    with trio.fail_after(5):
        while len(many.written) < 5_000:
            await trio.lowlevel.checkpoint()
    # The oldest first: none is forgotten while others come.
    oldest = many.written.index(0)
    assert many.written[oldest : oldest + 100] == list(range(100))
    assert flush_scheduler.flush()


async def test_what_is_left_is_written_whatever_time_it_is(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    clock, broker = Clock(), Broker()
    flush_scheduler = FlushScheduler(broker, turns := Turns(clock))
    await nursery.start(turns.run)
    nursery.start_soon(flush_scheduler.run)
    await trio.testing.wait_all_tasks_blocked()
    many = Crowd(broker, clock, "many", 500)
    broker.publish(Batch.of(frozenset({"many"}), b"x"))
    assert trio.current_time() == 0
    assert not flush_scheduler.flush()
    await trio.testing.wait_all_tasks_blocked()
    assert len(many.written) == 500


async def test_nothing_is_left_where_nobody_would_write_it() -> None:
    clock, broker = Clock(), Broker()
    flush_scheduler = FlushScheduler(broker, Turns(clock))
    many = Crowd(broker, clock, "many", 500)
    broker.publish(Batch.of(frozenset({"many"}), b"x"))
    assert flush_scheduler.flush()
    assert len(many.written) == 500
