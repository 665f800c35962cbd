"""Durable before delivered: what is published goes through the history, in order, or is refused."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from mist.auth import open_registry
from mist.commands import Subscribe
from mist.dialogue import Dialogue
from mist.errors import EmptyTag, HistoryOff, HistoryUnavailable
from mist.history import History, Publication, open_history
from mist.hub import Hub
from mist.protocols.line import LineProtocol
from mist.sequencer import Sequencer


class Gate:
    """Stands before a history's appends: held back, counted, or refused."""

    def __init__(self, history: History) -> None:
        self.open = trio.Event()
        self.groups: list[int] = []  # messages in each append
        self.failing = False
        self._append = history.append
        history.append = self.append  # type: ignore[method-assign]

    async def append(self, publications: Sequence[Publication]) -> int:
        await self.open.wait()
        if self.failing:
            raise HistoryUnavailable("the disk is full")
        self.groups.append(sum(each.count for each in publications))
        return await self._append(publications)


@pytest.fixture(params=["memory", "sqlite"])
async def history(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[History]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as history:
        yield history


@pytest.fixture
async def hub(history: History, nursery: trio.Nursery) -> Hub:
    hub = Hub(await open_registry("memory://"))
    hub.sequencer = await Sequencer.over(hub.broker, history)
    nursery.start_soon(hub.sequencer.run)
    return hub


def join(hub: Hub, *tags: str) -> Dialogue:
    session = Dialogue(hub, LineProtocol(hub.limits), transport="tcp")
    hub.attach(session)
    for each in tags:
        session._execute(Subscribe(frozenset(each.split(","))))
    return session


def take(session: Dialogue) -> bytes:
    data = bytes(session.outbox.peek())
    session.outbox.sent(len(data))
    return data


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


async def test_an_error_stands_between_what_came_before_and_behind(hub: Hub) -> None:
    session = join(hub, "a")
    await session.receive(b"publish a 1\npublish a, 2\npublish a 3\nping\n")
    assert take(session) == b"publish a 1\nerror Empty tag\npublish a 3\npong\n"
    assert hub.sequencer is not None
    assert hub.sequencer.newest == 2  # what is refused has no id


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


async def test_what_a_gone_publisher_has_sent_is_delivered(hub: Hub, history: History) -> None:
    gate = Gate(history)
    publisher, subscriber = join(hub), join(hub, "a")
    await publisher.receive(b"publish a 1\n")
    await publisher.aclose()
    gate.open.set()
    await subscriber.receive(b"publish c 2\nping\n")
    assert take(subscriber) == b"publish a 1\npong\n"


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
    sent = b"store a 1\nlast\nids on\nsubscribe a 0\nresume 0 {a}\npublish a 1\nping\n"
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
