"""Nodes whose engine has lost records, or has trimmed what they lack."""

import pytest
import trio
import trio.testing

from mist.engine.contract import Known, Standing
from mist.errors import HistoryUnavailable
from mist.sessions.close_reason import HISTORY_FORKED
from tests.engine.nodes import Server, Start, same
from tests.history.messages import replay
from tests.sessions.storing import join, take
from tests.waiting import until

A = frozenset("a")

pytestmark = pytest.mark.parametrize("realm", ["memory"], indirect=True)


async def published(server: Server, *texts: bytes) -> None:
    for text in texts:
        await server.hub.store(A, text)


async def entered(*servers: Server) -> str:
    """Wait until all are in the same epoch and at the end of the log; returns it."""
    with trio.fail_after(10):
        standing = await servers[0].engine.standing()
        await until(
            lambda: all(
                each.sequencer.epoch == standing.epoch
                and each.sequencer.ready
                and each.node.mirror.offset == standing.offset
                for each in servers
            )
        )
    return standing.epoch


async def test_what_the_engine_has_lost_no_node_has(start: Start) -> None:
    one, two = await start(), await start()
    await published(one, b"1", b"2", b"3")
    await same(one, two)
    two.engine.deaf = True
    await published(one, b"4", b"5")
    before = one.sequencer.epoch
    one.engine.lose(2)
    two.engine.deaf = False
    epoch = await entered(one, two)
    assert epoch != before
    assert (one.node.lost, two.node.lost) == (2, 0)
    await published(two, b"6")
    stored = await same(one, two)
    assert [(id_, data) for id_, _, data in stored] == [(1, b"1"), (2, b"2"), (3, b"3"), (6, b"6")]
    for server in (one, two):
        assert await server.node.history.verify() == []
        assert await server.node.history.recovered(None, 3, before)
        assert not await server.node.history.recovered(None, 4, before)
        assert await server.node.history.recovered(None, 6, epoch)


async def test_only_messages_count_as_lost_and_each_once(start: Start) -> None:
    one = await start()
    await published(one, b"1", b"2", b"3", b"4")
    for records, lost in ((2, 2), (1, 2), (2, 3)):  # the ids of what was lost are given to nobody
        before = one.sequencer.epoch
        one.engine.lose(records)
        assert await entered(one) != before
        assert one.node.lost == lost


async def test_subscribers_come_back_and_publishers_stay(start: Start) -> None:
    one = await start()
    await published(one, b"1", b"2", b"3")
    subscriber, publisher = join(one.hub, "a"), join(one.hub)
    before = one.sequencer.epoch
    one.engine.lose(1)
    epoch = await entered(one)
    assert subscriber.ended == HISTORY_FORKED
    assert publisher.ended is None
    await publisher.receive(b"store a 4\nping\n")
    assert take(publisher) == b"stored 4\npong\n"
    known, lost, unknown = join(one.hub), join(one.hub), join(one.hub)
    await known.receive(b"ids on\nresume %b:2 a\nping\n" % before.encode())
    await lost.receive(b"ids on\nresume %b:3 a\nping\n" % before.encode())
    await unknown.receive(b"ids on\nresume %b:1 a\nping\n" % (b"0" * 16))
    assert take(known) == b"message 4 a 4\npong\n"
    for each in (lost, unknown):
        assert take(each).startswith(b"gap %b 1\n" % epoch.encode())


async def test_a_fork_that_loses_nothing_leaves_mirrors_as_they_are(start: Start) -> None:
    one, two = await start(), await start()
    await published(one, b"1", b"2")
    await same(one, two)
    before = one.sequencer.epoch
    one.engine.lose(0)
    assert await entered(one, two) != before
    assert (one.node.lost, two.node.lost) == (0, 0)
    assert await one.node.history.recovered(None, 2, before)
    assert len(await same(one, two)) == 2


async def test_a_publisher_that_enters_again_tells_the_reader_of_another_epoch(
    start: Start,
) -> None:
    one = await start()
    await published(one, b"1", b"2")
    before = one.sequencer.epoch
    one.engine.held = trio.Event()
    one.engine.lose(1)
    one.engine.strangers = 1
    with pytest.raises(HistoryUnavailable):
        await one.hub.store(A, b"3")
    one.engine.held.set()
    assert await entered(one) != before
    await published(one, b"4")
    assert [each.data for each in await replay(one.node.history)] == [b"1", b"4"]


async def test_what_is_newest_is_refused_while_the_realm_is_not_there(start: Start) -> None:
    one = await start()
    await published(one, b"1")
    client = join(one.hub)
    one.engine.gone = True
    await client.receive(b"last\n")
    assert take(client) == b"error History is unavailable\n"
    one.engine.gone = False
    await client.receive(b"last\n")
    assert take(client) == b"last %b 1\n" % one.sequencer.epoch.encode()


async def test_what_is_on_its_way_at_a_fork_is_refused(start: Start) -> None:
    one = await start()
    publisher = join(one.hub)
    one.engine.deaf = True
    await publisher.receive(b"store a 1\nstore a 2\n")
    await trio.testing.wait_all_tasks_blocked(0.02)
    one.engine.lose(1)
    one.engine.deaf = False
    await entered(one)
    await publisher.receive(b"store a 3\nping\n")
    said = take(publisher)
    assert said.count(b"error History is unavailable\n") == 2
    assert said.endswith(b"stored 3\npong\n")


async def test_what_was_refused_at_a_fork_is_not_appended_again(start: Start) -> None:
    one = await start()
    publisher = join(one.hub)
    one.engine.deaf = True
    one.engine.lose_replies = 10_000
    await publisher.receive(b"store a 1\n")
    await until(lambda: one.engine.appends == 6)  # then it is tried again, in 0.5 s
    one.engine.lose(0)
    one.engine.deaf = False
    await entered(one)
    one.engine.lose_replies = 0
    await published(one, b"2")
    assert [each.data for each in await replay(one.node.history)] == [b"1", b"2"]
    await publisher.receive(b"ping\n")
    assert take(publisher) == b"error History is unavailable\npong\n"


async def test_a_node_that_was_away_goes_on_or_begins_anew(start: Start, tmp_path: object) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    one, two, three = await start(urls[0]), await start(urls[1]), await start()
    await published(one, b"1", b"2")
    await same(one, two, three)
    await two.stop()
    await published(one, b"3")
    await until(lambda: three.sequencer.newest == 3)
    await one.stop()
    three.engine.lose(1)
    await entered(three)
    await published(three, b"4")
    one, two = await start(urls[0]), await start(urls[1])
    await entered(one, two, three)
    assert (one.node.lost, two.node.lost) == (1, 0)
    assert [data for _, _, data in await same(one, two, three)] == [b"1", b"2", b"4"]


async def test_a_node_that_is_overtaken_by_a_trim_says_what_is_missing(start: Start) -> None:
    one, two = await start(), await start()
    await published(one, b"1", b"2")
    await same(one, two)
    subscriber = join(two.hub, "a")
    two.engine.deaf = True
    await published(one, b"3", b"4", b"5")
    await one.engine.trim(4)
    two.engine.deaf = False
    epoch = (await entered(two)).encode()
    assert two.node.overtaken == 1
    assert subscriber.ended == HISTORY_FORKED
    assert [message.id for message in await replay(two.node.history)] == [5]
    session = join(two.hub)
    await session.receive(b"ids on\nresume %b:2 a\nping\n" % epoch)
    assert take(session) == b"gap %b 5\nmessage 5 a 5\npong\n" % epoch
    assert await two.node.history.verify() == []


async def test_a_node_that_is_behind_waits_for_what_a_client_has_seen_elsewhere(
    start: Start,
) -> None:
    one, two = await start(), await start()
    epoch = one.sequencer.epoch.encode()
    two.engine.deaf = True
    await published(one, b"1", b"2", b"3")
    session = join(two.hub)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.receive, b"ids on\nresume %b:2 a\nping\n" % epoch)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert take(session) == b""
        two.engine.deaf = False
    assert take(session) == b"message 3 a 3\npong\n"


async def test_a_place_that_no_node_has_given_is_answered(start: Start) -> None:
    one = await start()
    epoch = one.sequencer.epoch.encode()
    await published(one, b"1")
    session = join(one.hub)
    with trio.fail_after(4):
        await session.receive(b"ids on\nresume %b:99 a\nping\n" % epoch)
    assert take(session) == b"gap %b 1\nmessage 1 a 1\npong\n" % epoch


async def test_a_place_is_not_waited_for_where_the_engine_is_away(start: Start) -> None:
    one = await start()
    await published(one, b"1")
    one.engine.down = True
    await until(lambda: not one.sequencer.ready)
    session = join(one.hub)
    with trio.fail_after(10):
        await session.receive(b"resume %b:99 a\nping\n" % one.sequencer.epoch.encode())
    assert take(session) == b"error History is unavailable\npong\n"


async def test_a_place_that_no_node_has_given_is_answered_while_others_publish(
    start: Start,
) -> None:
    """No read of the log finds nothing then; heartbeats tell how far it is."""
    one = await start()
    epoch = one.sequencer.epoch.encode()
    done = trio.Event()

    async def publish() -> None:
        while not done.is_set():
            await published(one, b"x")

    async def beat() -> None:
        while not done.is_set():
            one.sequencer.note_beat(await one.engine.members.beat(one.node.name, b""))
            await trio.sleep(0.02)

    session = join(one.hub)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            nursery.start_soon(beat)
            await until(lambda: one.sequencer.newest > 10)
            await session.receive(b"ids on\nresume %b:999999999 a\nping\n" % epoch)
            done.set()
    assert take(session).startswith(b"gap %b 1\n" % epoch)


async def test_a_node_that_cannot_write_its_mirror_enters_under_one_name(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine knows so many names, and would forget those of nodes that publish little."""
    one = await start()
    await published(one, b"1", b"2")
    before = one.sequencer.epoch
    entered: list[str] = []
    enter = one.engine.enter

    async def noted(node: str, known: Known | None = None) -> Standing:
        entered.append(node)
        return await enter(node, known)

    async def full(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise HistoryUnavailable

    monkeypatch.setattr(one.engine, "enter", noted)
    with monkeypatch.context() as patch:
        patch.setattr(one.node.mirror, "begin_anew", full)
        one.engine.lose(1)
        await until(lambda: len(entered) == 4)
    await until(lambda: one.sequencer.epoch != before)
    assert {*entered} == {one.node.name}
    assert one.node.lost == 1
    before = one.sequencer.epoch
    one.engine.lose(0)
    await until(lambda: one.sequencer.epoch != before)
    assert entered[-1] == one.node.name != entered[0]
