"""Checkpoints at an engine: who makes them, what they let go, and who begins with them."""

from functools import partial

import attrs
import pytest
import trio

from mist.engine.checkpointing import Checkpointer
from mist.engine.contract import EngineUnavailable, Known, Standing
from mist.errors import StartupError
from mist.history import Mark
from tests.engine.nodes import Server, Start, same
from tests.history.messages import some
from tests.sessions.storing import bulk, join, take
from tests.waiting import until

A = frozenset("a")


async def published(server: Server, *texts: bytes) -> None:
    for text in texts:
        await server.hub.store(A, text)


async def checkpoint(server: Server, *, least: int = 1) -> bool:
    return await Checkpointer(server.node, least=least).step()


async def test_a_new_node_begins_with_a_checkpoint(start: Start) -> None:
    one = await start()
    await published(one, b"1", b"2")
    await one.sequencer.commit(bulk(some("/c", 3)), Mark("", "w", 1))
    assert await checkpoint(one)
    await published(one, b"6")
    two = await start()
    assert two.node.mirror.offset >= 3
    assert len(await same(one, two)) == 6
    assert (await two.node.history.channels(["/c"]))["/c"].last == 3
    _, fresh = await two.sequencer.commit(bulk(some("/c", 3)), Mark("", "w", 1))
    assert not fresh


async def test_the_log_is_trimmed_up_to_the_checkpoint_before(start: Start) -> None:
    one, two = await start(), await start()
    await published(one, b"1", b"2", b"3")
    assert await checkpoint(one)
    assert (await one.engine.standing()).oldest == 1
    await published(one, b"4", b"5")
    await until(lambda: two.sequencer.newest == 5)
    # As large as the last one, so that none is made all the time.
    assert not await checkpoint(two, least=1_000_000)
    standing = await one.engine.standing()
    assert standing.checkpoint is not None
    while (await one.engine.standing()).appended < standing.appended + standing.checkpoint.size:
        await published(one, b"more")
    await same(one, two)
    assert await checkpoint(two)
    standing = await one.engine.standing()
    assert standing.oldest == 4
    assert standing.checkpoint is not None
    assert standing.checkpoint.offset == standing.offset
    three = await start()
    await same(one, two, three)
    assert (one.node.overtaken, two.node.overtaken) == (0, 0)


async def test_a_log_of_small_records_has_one_for_what_each_takes_besides(start: Start) -> None:
    one = await start()
    await published(one, b"1")
    assert await checkpoint(one)
    for _ in range(40):
        await one.sequencer.give_ids(1)  # a record without a body
    assert not await checkpoint(one, least=4_001)
    assert await checkpoint(one, least=4_000)


async def test_none_is_made_where_nothing_was_appended(start: Start) -> None:
    one = await start()
    assert not await checkpoint(one)
    await published(one, b"1")
    assert await checkpoint(one)
    assert not await checkpoint(one, least=0)


async def test_one_node_at_a_time_makes_one(start: Start) -> None:
    one, two = await start(), await start()
    await published(one, b"1")
    await same(one, two)
    assert await one.engine.members.take("checkpoint", "another", 30.0) is not None
    assert not await checkpoint(one)
    await one.engine.members.give_up("checkpoint", "another")
    done: list[bool] = []

    async def make(server: Server) -> None:
        done.append(await checkpoint(server))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make, one)
        nursery.start_soon(make, two)
    assert sorted(done) == [False, True]


async def test_a_node_that_is_overtaken_begins_with_the_checkpoint(start: Start) -> None:
    one, two = await start(), await start()
    await published(one, b"1", b"2")
    await same(one, two)
    two.engine.deaf = True
    await published(one, b"3", b"4")
    assert await checkpoint(one)
    await one.engine.trim(4)
    await published(one, b"5")
    two.engine.deaf = False
    assert len(await same(one, two)) == 5
    assert two.node.overtaken == 1
    session = join(two.hub)  # and nothing is missing
    await session.receive(b"ids on\nresume %b:2 a\nping\n" % two.sequencer.epoch.encode())
    assert take(session) == b"message 3 a 3\nmessage 4 a 4\nmessage 5 a 5\npong\n"


async def test_a_node_goes_by_its_new_name_while_it_begins_with_a_checkpoint(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start(), await start()
    await published(one, b"1", b"2")
    await same(one, two)
    entered: list[str] = []
    reading, may_go_on = trio.Event(), trio.Event()
    enter, staged = two.engine.enter, two.engine.staged

    async def noted(node: str, known: Known | None = None) -> Standing:
        entered.append(node)
        return await enter(node, known)

    async def held(batch: str, part: int) -> bytes | None:
        reading.set()
        await may_go_on.wait()
        return await staged(batch, part)

    monkeypatch.setattr(two.engine, "enter", noted)
    monkeypatch.setattr(two.engine, "staged", held)
    two.engine.deaf = True
    await published(one, b"3")
    assert await checkpoint(one)
    await one.engine.trim(3)
    two.engine.deaf = False
    await reading.wait()
    # By it this node votes: an engine that is restarted now waits for those that have beaten.
    assert [two.node.name] == entered
    may_go_on.set()
    assert len(await same(one, two)) == 3


async def test_what_is_given_up_is_discarded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await start()
    await published(one, b"1")
    names: list[str] = []
    discarded: list[str] = []

    async def stage(batch: str, part: int, body: bytes) -> None:
        names.append(batch)
        raise OSError("the disk")

    async def discard(batch: str) -> None:
        discarded.append(batch)

    monkeypatch.setattr(one.engine, "stage", stage)
    monkeypatch.setattr(one.engine, "discard", discard)
    with pytest.raises(OSError, match="the disk"):
        await checkpoint(one)
    assert discarded == names
    monkeypatch.undo()
    assert await checkpoint(one)  # and the lease is free


async def test_without_its_parts_a_checkpoint_is_not_begun_with(start: Start) -> None:
    one = await start()
    await published(one, b"1")
    assert await checkpoint(one)
    first = (await one.engine.standing()).checkpoint
    assert first is not None
    await one.engine.discard(first.name)
    with pytest.raises(StartupError, match="all the time"):
        await start()
    await published(one, b"2" * first.size)
    assert await checkpoint(one)
    two = await start()
    assert len(await same(one, two)) == 2


async def test_a_log_that_is_written_to_has_one_twice_a_day(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start()
    await published(one, b"1")
    assert not await checkpoint(one, least=1_000_000)
    standing = one.engine.standing
    later = 13 * 3_600 * 1_000_000

    async def later_standing() -> Standing:
        now = await standing()
        return attrs.evolve(now, time=now.time + later)

    monkeypatch.setattr(one.engine, "standing", later_standing)
    assert await checkpoint(one, least=1_000_000)
    assert not await checkpoint(one, least=1_000_000)
    await published(one, b"2")
    assert not await checkpoint(one, least=1_000_000)
    later *= 2
    assert await checkpoint(one, least=1_000_000)


async def test_why_no_checkpoint_can_be_made_is_told_once(
    start: Start, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [each.message for each in caplog.records if "checkpoint" in each.message]

    one = await start()
    caplog.set_level("INFO", "mist.engine")
    one.engine.down = True
    checkpointer = Checkpointer(one.node)
    nursery.start_soon(partial(checkpointer.run, interval=0.01))
    await until(lambda: told() == ["no checkpoint can be made"])
    await trio.sleep(0.1)
    one.engine.down = False
    await until(lambda: len(told()) > 1)
    assert told() == ["no checkpoint can be made", "checkpoints can be made again"]


async def test_that_checkpoints_can_be_made_again_is_not_told_while_another_node_tries(
    start: Start,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await start()
    await published(one, b"1")
    caplog.set_level("INFO", "mist.engine")
    tried = False

    async def stage(batch: str, part: int, body: bytes) -> None:
        nonlocal tried
        if tried:  # another node is at it next
            await one.engine.members.give_up("checkpoint", one.node.name)
            await one.engine.members.take("checkpoint", "another", 60.0)
        tried = True
        raise EngineUnavailable("full")

    monkeypatch.setattr(one.engine, "stage", stage)
    nursery.start_soon(partial(Checkpointer(one.node, least=1).run, interval=0.01))
    await until(lambda: tried)
    await trio.sleep(0.2)
    told = [each.message for each in caplog.records if "checkpoint" in each.message]
    assert told == ["no checkpoint can be made"]
    await one.engine.members.give_up("checkpoint", "another")
    monkeypatch.undo()
    await until(lambda: caplog.records[-1].message == "checkpoints can be made again")
