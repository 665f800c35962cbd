"""Durable before delivered: what is published goes through the history, in order, or is refused."""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from mist.auth.opening import open_registry
from mist.errors import EmptyTag, HistoryOff, HistoryUnavailable
from mist.history import Bulk, History, Mark, Publication
from mist.history.commits import make_blocks
from mist.history.layout import Row
from mist.history.opening import open_history
from mist.protocols.line import LineProtocol
from mist.sessions.dispatch import CommandSession
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer
from tests.history.messages import run


class ConnectionLimiter:
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


def join(hub: Hub, *tags: str) -> CommandSession:
    session = CommandSession(hub, LineProtocol(hub.limits), transport="tcp")
    hub.sessions.attach(session)
    for each in tags:
        session.subscribe(frozenset(each.split(",")))
    return session


def take(session: CommandSession) -> bytes:
    data = bytes(session.outbox.peek())
    session.outbox.sent(len(data))
    return data


async def test_nobody_gets_a_message_before_it_is_stored(hub: Hub, history: History) -> None:
    limiter = ConnectionLimiter(history)
    publisher, subscriber = join(hub), join(hub, "a")
    await publisher.receive(b"publish a 1\n")
    await trio.testing.wait_all_tasks_blocked()
    assert take(subscriber) == b""
    limiter.open.set()
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
    limiter = ConnectionLimiter(history)
    publishers = [join(hub) for _ in range(5)]
    for publisher in publishers:
        await publisher.receive(b"publish a 1\npublish a 2\n")
    await trio.testing.wait_all_tasks_blocked()
    limiter.open.set()
    for publisher in publishers:
        await publisher.receive(b"ping\n")
    assert sum(limiter.groups) == 10
    assert len(limiter.groups) <= 2


async def test_a_publisher_faster_than_the_disk_is_not_read(hub: Hub, history: History) -> None:
    limiter = ConnectionLimiter(history)
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
    limiter.open.set()
    with trio.fail_after(5):
        await publisher.receive(b"ping\n")
    assert take(publisher) == b"pong\n"


async def test_where_nothing_can_be_stored_nobody_gets_it_and_its_publisher_hears(
    hub: Hub, history: History
) -> None:
    limiter = ConnectionLimiter(history)
    limiter.open.set()
    limiter.failing = True
    session = join(hub, "a")
    await session.receive(b"publish a 1\npublish b 2\nstore a 3\nping\n")
    assert take(session) == b"error History is unavailable\n" * 3 + b"pong\n"
    limiter.failing = False
    await session.receive(b"store a 4\nping\n")
    assert take(session) == b"publish a 4\nstored 1\npong\n"


async def test_what_a_gone_publisher_has_sent_is_delivered(hub: Hub, history: History) -> None:
    limiter = ConnectionLimiter(history)
    publisher, subscriber = join(hub), join(hub, "a")
    await publisher.receive(b"publish a 1\n")
    await publisher.aclose()
    limiter.open.set()
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
    limiter = ConnectionLimiter(history)
    limiter.failing = True
    limiter.open.set()
    with pytest.raises(HistoryUnavailable):
        await hub.store(frozenset("a"), b"4")
    with pytest.raises(EmptyTag):
        await hub.store(frozenset(), b"5")


async def test_nothing_is_stored_where_there_is_no_history() -> None:
    hub = Hub(await open_registry("memory://"))
    with pytest.raises(HistoryOff):
        await hub.store(frozenset("a"), b"1")


# large batches


def bulk(*publications: Publication) -> Bulk:
    rows = make_blocks(publications)
    return Bulk(lambda: iter(rows), sum(each.count for each in publications))


def numbers(tags: str, count: int, framable: bool = True) -> Publication:
    texts = [str(n) if framable else f"{n}\n" for n in range(count)]
    return Publication([run(tags, each) for each in texts], 0.0, "", framable)


async def test_a_large_batch_is_delivered_in_order_behind_and_ahead_of_others(
    hub: Hub, history: History
) -> None:
    limiter = ConnectionLimiter(history)
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
        limiter.open.set()
    await publisher.receive(b"ping\n")
    ((done, fresh),) = outcomes
    assert (done.first, done.last, fresh) == (2, 6_001, True)
    lines = []
    while chunk := take(subscriber):
        lines += chunk.splitlines()
    expected = [b"message 1 a before"]
    expected += [b"message %d a %d" % (n + 2, n) for n in range(6_000)]
    expected += [b"message 6002 a behind"]
    assert lines == expected
    assert hub.sequencer.newest == 6_002
    assert limiter.groups == [1, 1]


async def test_others_have_their_turns_while_a_large_batch_is_handed_out(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.sessions.sequencer._TURN", 0.0)
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


async def test_a_drain_waits_for_a_batch(hub: Hub, history: History) -> None:
    sequencer = hub.sequencer
    assert sequencer is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sequencer.commit, bulk(numbers("a", 3)), Mark("", "w", 1))
        while not sequencer._batches:
            await trio.lowlevel.checkpoint()
        await sequencer.settled()
        assert (await history.position()).newest == 3
