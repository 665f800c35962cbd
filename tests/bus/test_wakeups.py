"""Deliveries that only wake: none is missed, none is queued, and none counts as sent."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.bus.wakeups import WAKEUPS, WakeupOutbox
from mist.wire import Batch

A = frozenset({"a"})
LIMITS = OutboxLimits(bytes=1_000, messages=10)


def subscribed(broker: Broker) -> WakeupOutbox:
    outbox = WakeupOutbox(WAKEUPS, LIMITS, broker.ready)
    broker.subscribe(outbox, A)
    return outbox


def publish(broker: Broker, count: int = 1) -> None:
    for _ in range(count):
        broker.publish(Batch.of(A, b"x"))
    broker.flush()


async def test_a_delivery_wakes_the_task_that_waits(nursery: trio.Nursery) -> None:
    broker = Broker()
    outbox = subscribed(broker)
    woken: list[bool] = []

    async def wait() -> None:
        woken.append(await outbox.wait())

    outbox.arm()
    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not woken
    publish(broker)
    await trio.testing.wait_all_tasks_blocked()
    assert woken == [True]


async def test_a_delivery_since_it_was_armed_is_not_missed() -> None:
    broker = Broker()
    outbox = subscribed(broker)
    outbox.arm()
    publish(broker)
    assert await outbox.wait()
    outbox.arm()
    assert not await outbox.wait(trio.current_time())


async def test_any_number_of_deliveries_leaves_nothing_queued() -> None:
    broker = Broker()
    outbox = subscribed(broker)
    publish(broker, 1_000)
    assert (outbox.size, outbox.queued, outbox.sent_messages, outbox.dropped_full) == (0, 0, 0, 0)
    assert broker.statistics().dropped == {}


@pytest.mark.parametrize("end", [Outbox.mute, Outbox.close, Outbox.discard])
async def test_an_ended_outbox_is_not_woken(end: Callable[[Outbox], None]) -> None:
    broker = Broker()
    outbox = subscribed(broker)
    outbox.arm()
    end(outbox)
    publish(broker)
    assert not await outbox.wait(trio.current_time())
    # What comes then is there for who reads on, such as the next poll.
    found = broker.statistics()
    assert (found.matched, found.replayed, found.dropped) == (0, 0, {})


async def test_room_is_waited_for_until_most_was_taken(nursery: trio.Nursery) -> None:
    outbox = subscribed(Broker())
    await outbox.wait_for_room()
    outbox.append(b"x" * 900, 1)
    done = trio.Event()

    async def wait() -> None:
        await outbox.wait_for_room()
        done.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    outbox.sent(500)
    await trio.testing.wait_all_tasks_blocked()
    assert not done.is_set()
    outbox.sent(200)
    await done.wait()


async def test_nobody_waits_for_room_behind_a_broken_connection(nursery: trio.Nursery) -> None:
    outbox = subscribed(Broker())
    outbox.append(b"x" * 900, 1)
    nursery.start_soon(outbox.wait_for_room)
    await trio.testing.wait_all_tasks_blocked()
    outbox.discard()
    with trio.fail_after(1):
        await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks
