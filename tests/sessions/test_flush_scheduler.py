"""Sessions take turns: one flush for all who worked at the same time, none forgotten."""

import trio

from mist.broker.broker import Broker
from mist.broker.outbox import BURST, Outbox, OutboxLimits
from mist.protocols.line.forms import PLAIN
from mist.sessions.flush_scheduler import READ_ALONE, READ_SHARED, FlushScheduler
from mist.turns import Account, Turns
from mist.wire import Batch


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
        if not await flush_scheduler.pause(name, Account()):
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
    assert not await flush_scheduler.pause("x", Account())
    assert subscriber.writes[-1] == b"publish a next\n"


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
        await flush_scheduler.pause(name, Account())

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(publish, chr(ord("A") + number % 50))
    assert subscriber.outbox.dropped_full == 0
    assert sum(written.count(b"\n") for written in subscriber.writes) == 100
    assert len(subscriber.writes) < 10
