"""One session's publishes: in order, bounded, each answered."""

import pytest
import trio
import trio.testing

from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.errors import HistoryUnavailable
from mist.history import History
from mist.protocols.line.forms import PLAIN
from mist.sessions.hub import Hub
from mist.sessions.publisher import Publisher
from mist.turns import Account
from mist.wire import Batch
from tests.sessions.storing import Gate, join, sequencer_of, take

A = frozenset("a")


def fail(*_: object) -> None:
    raise ZeroDivisionError


@pytest.fixture
async def publisher(hub: Hub) -> Publisher:
    return Publisher(sequencer_of(hub), Outbox(PLAIN, OutboxLimits(), hub.broker.ready), hub.turns)


async def test_an_error_stands_between_what_came_before_and_behind(hub: Hub) -> None:
    session = join(hub, "a")
    await session.receive(b"publish a 1\npublish a, 2\npublish a 3\nping\n")
    assert take(session) == b"publish a 1\nerror Empty tag\npublish a 3\npong\n"
    assert hub.sequencer is not None
    assert hub.sequencer.newest == 2  # what is refused has no id


async def test_a_publisher_faster_than_the_disk_is_not_read(hub: Hub, history: History) -> None:
    gate = Gate(history)
    publisher = join(hub)
    chunk = b"publish a %b\n" % (b"x" * 60_000)
    read = 0

    async def send() -> None:
        nonlocal read
        while True:
            await publisher.receive(chunk)
            read += len(chunk)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert 262_144 < read + len(chunk) < 2 * 262_144
        nursery.cancel_scope.cancel()
    gate.open.set()
    with trio.fail_after(5):
        await publisher.receive(b"ping\n")
    assert take(publisher) == b"pong\n"


async def test_what_a_gone_publisher_has_sent_is_delivered(hub: Hub, history: History) -> None:
    gate = Gate(history)
    publisher, subscriber = join(hub), join(hub, "a")
    await publisher.receive(b"publish a 1\n")
    await publisher.aclose()
    gate.open.set()
    await subscriber.receive(b"publish c 2\nping\n")
    assert take(subscriber) == b"publish a 1\npong\n"


async def test_all_who_wait_hear_that_everything_is_settled(
    publisher: Publisher, history: History
) -> None:
    gate = Gate(history)
    await publisher.publish(Batch.of(A, b"1"), Account(), "", fail)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(publisher.settle)
                await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0):
                await publisher.settle()
            gate.open.set()
    assert publisher.in_flight == 0


@pytest.mark.parametrize("failing", [False, True])
async def test_callbacks_that_raise_cost_only_themselves(
    hub: Hub, publisher: Publisher, history: History, failing: bool
) -> None:
    gate = Gate(history)
    gate.open.set()
    gate.failing = failing
    await publisher.publish(Batch.of(A, b"1"), Account(), "", fail, fail)
    with trio.fail_after(5):
        await publisher.settle()
    gate.failing = False
    stored: list[int] = []
    await publisher.publish(Batch.of(A, b"2"), Account(), "", fail, stored.append)
    with trio.fail_after(5):
        await publisher.settle()
    assert stored == [1 if failing else 2]
    assert hub.broker.statistics().failures == {"callback": 1}


async def test_each_message_is_refused_where_the_history_is_not_there(
    hub: Hub, publisher: Publisher, history: History
) -> None:
    gate = Gate(history)
    gate.open.set()
    gate.failing = True
    errors: list[object] = []
    batch = Batch([b"a"], (b"publish a 1\npublish a 2\n", 2))
    await publisher.publish(batch, Account(), "", errors.append)
    await publisher.settle()
    assert len(errors) == 2
    assert all(isinstance(each, HistoryUnavailable) for each in errors)
