"""What every engine keeps to: one log, one order, each record once."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from mist.engine.contract import (
    MAX_BODY,
    Ancestor,
    Checkpoint,
    Engine,
    EngineUnavailable,
    Forked,
    Known,
    NotEntered,
    Placed,
    Record,
    Trimmed,
)
from mist.engine.opening import open_engine
from mist.errors import StartupError

Connect = Callable[[], Awaitable[Engine]]


async def fill(engine: Engine, count: int, node: str = "n") -> str:
    """Append that many records of one message; returns the epoch."""
    standing = await engine.enter(node)
    for serial in range(1, count + 1):
        await engine.append(node, serial, b"%d" % serial, 1, standing.epoch)
    return standing.epoch


async def read_all(engine: Engine, after: int = 0, **options: int) -> list[Record]:
    records: list[Record] = []
    while some := await engine.read(records[-1].offset if records else after, **options):
        records += some
    return records


async def test_a_new_log_is_empty(engine: Engine) -> None:
    standing = await engine.enter("n")
    assert (standing.newest, standing.offset, standing.oldest) == (0, 0, 1)
    assert standing.epoch
    assert await engine.read(0) == []
    assert await engine.standing() == standing


async def test_records_get_places_and_ids_one_behind_the_other(engine: Engine) -> None:
    epoch = (await engine.enter("n")).epoch
    assert await engine.append("n", 1, b"a", 3, epoch) == Placed(1, 1)
    assert await engine.append("n", 2, b"", 0, epoch) == Placed(2, 4)
    assert await engine.append("n", 3, b"\0\xff\r\n", 2, epoch) == Placed(3, 4)
    records = await read_all(engine)
    assert [(each.offset, each.first, each.count, each.body) for each in records] == [
        (1, 1, 3, b"a"),
        (2, 4, 0, b""),
        (3, 4, 2, b"\0\xff\r\n"),
    ]
    assert {(each.node, each.serial) for each in records} == {("n", 1), ("n", 2), ("n", 3)}
    standing = await engine.standing()
    assert (standing.newest, standing.offset, standing.oldest) == (5, 3, 1)


async def test_times_do_not_go_back(engine: Engine) -> None:
    await fill(engine, 20)
    times = [each.time for each in await read_all(engine)]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000_000_000


async def test_a_repeated_append_is_the_same_record(engine: Engine, connect: Connect) -> None:
    epoch = (await engine.enter("n")).epoch
    first = await engine.append("n", 1, b"a", 2, epoch)
    assert await engine.append("n", 1, b"a", 2, epoch) == first
    again = await connect()  # the reply was lost, and the connection with it
    assert await again.append("n", 1, b"a", 2, epoch) == first
    assert await engine.append("n", 2, b"b", 1, epoch) == Placed(2, 3)
    assert len(await read_all(engine)) == 2


async def test_what_comes_too_late_is_refused(engine: Engine) -> None:
    epoch = await fill(engine, 2)
    with pytest.raises(NotEntered):
        await engine.append("n", 1, b"late", 1, epoch)
    assert [each.body for each in await read_all(engine)] == [b"1", b"2"]


async def test_a_node_that_has_not_entered_is_refused(engine: Engine) -> None:
    epoch = (await engine.enter("n")).epoch
    with pytest.raises(NotEntered):
        await engine.append("other", 1, b"a", 1, epoch)
    assert await engine.read(0) == []


async def test_another_epoch_is_refused(engine: Engine) -> None:
    await engine.enter("n")
    with pytest.raises(Forked):
        await engine.append("n", 1, b"a", 1, "f" * 16)
    assert await engine.read(0) == []


async def test_nodes_see_one_log(connect: Connect) -> None:
    engines = [await connect() for _ in range(3)]
    epochs = {(await each.enter(f"n{place}")).epoch for place, each in enumerate(engines)}
    (epoch,) = epochs

    async def append(place: int) -> None:
        for serial in range(1, 31):
            body = b"%d.%d" % (place, serial)
            await engines[place].append(f"n{place}", serial, body, place + 1, epoch)

    async with trio.open_nursery() as nursery:
        for place in range(3):
            nursery.start_soon(append, place)
    logs = [await read_all(each) for each in engines]
    assert logs[0] == logs[1] == logs[2]
    assert [each.offset for each in logs[0]] == list(range(1, 91))
    newest = 0
    for each in logs[0]:
        assert each.first == newest + 1
        newest += each.count
    for place in range(3):
        mine = [each.serial for each in logs[0] if each.node == f"n{place}"]
        assert mine == list(range(1, 31))


async def test_a_reader_is_woken_by_another_node(connect: Connect) -> None:
    reader, writer = await connect(), await connect()
    got: list[Record] = []

    async def read() -> None:
        got.extend(await reader.read(0, wait=30.0))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await fill(writer, 1)
    assert [each.body for each in got] == [b"1"]


async def test_waiting_ends(engine: Engine) -> None:
    await fill(engine, 1)
    with trio.fail_after(10):
        assert await engine.read(1, wait=0.01) == []


async def test_reads_are_bounded_by_bytes_and_lose_nothing(engine: Engine) -> None:
    epoch = (await engine.enter("n")).epoch
    bodies = [bytes([n]) * 1_000 for n in range(30)]
    for serial, body in enumerate(bodies, 1):
        await engine.append("n", serial, body, 1, epoch)
    some = await engine.read(0, max_bytes=3_500)
    assert 1 <= len(some) <= 4
    assert [each.body for each in await read_all(engine, max_bytes=3_500)] == bodies
    assert [each.body for each in await read_all(engine, max_bytes=1)] == bodies


async def test_large_bodies(engine: Engine) -> None:
    epoch = (await engine.enter("n")).epoch
    body = bytes(range(256)) * 16_384  # 4 MiB
    await engine.append("n", 1, body, 1, epoch)
    assert (await engine.read(0))[0].body == body
    with pytest.raises(ValueError, match="bytes"):
        await engine.append("n", 2, bytes(MAX_BODY + 1), 1, epoch)
    with pytest.raises(ValueError, match="less than no"):
        await engine.append("n", 2, b"", -1, epoch)
    assert len(await read_all(engine)) == 1


async def test_what_is_trimmed_is_told(engine: Engine) -> None:
    epoch = await fill(engine, 10)
    await engine.trim(4)
    with pytest.raises(Trimmed) as error:
        await engine.read(3)
    assert error.value.oldest == 5
    assert [each.offset for each in await read_all(engine, 4)] == list(range(5, 11))
    standing = await engine.standing()
    assert (standing.newest, standing.offset, standing.oldest) == (10, 10, 5)
    await engine.trim(10)
    await engine.trim(7)
    standing = await engine.standing()
    assert (standing.newest, standing.offset, standing.oldest) == (10, 10, 11)
    assert await engine.read(10) == []
    assert await engine.append("n", 11, b"11", 1, epoch) == Placed(11, 11)
    assert [each.body for each in await engine.read(10)] == [b"11"]


async def test_parts_are_staged_beside_the_log(engine: Engine, connect: Connect) -> None:
    await engine.stage("batch", 0, b"zero")
    await engine.stage("batch", 1, b"one")
    await engine.stage("batch", 1, b"one again")
    other = await connect()
    assert await other.staged("batch", 0) == b"zero"
    assert await other.staged("batch", 1) == b"one again"
    assert await other.staged("batch", 2) is None
    assert await other.staged("other", 0) is None
    await other.discard("batch")
    await other.discard("batch")
    assert await engine.staged("batch", 0) is None
    assert await engine.read(0) == []


async def test_a_closed_engine_is_unavailable(engine: Engine) -> None:
    await engine.close()
    await engine.close()
    with pytest.raises(EngineUnavailable):
        await engine.standing()


async def test_closing_ends_a_wait(connect: Connect) -> None:
    reader = await connect()

    async def read() -> None:
        with pytest.raises(EngineUnavailable):
            await reader.read(0, wait=30.0)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await reader.close()


@pytest.mark.parametrize("url", ["", "redis", "mysql://user:secret@host/db", "://"])
async def test_what_names_no_engine_is_told_without_its_password(url: str) -> None:
    with pytest.raises(StartupError) as error:
        await open_engine(url)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


# another epoch


async def test_a_node_that_has_more_begins_another_epoch(engine: Engine, connect: Connect) -> None:
    epoch = await fill(engine, 3)
    other = await connect()
    standing = await other.enter("more", Known(epoch, 5, 9))
    assert standing.epoch != epoch
    assert standing.ancestors == (Ancestor(epoch, 3, 3),)
    assert (standing.newest, standing.offset) == (9, 4)
    assert standing.shares(Known(epoch, 3, 3))
    assert not standing.shares(Known(epoch, 4, 4))
    assert not standing.shares(Known("unknown", 0, 0))
    with pytest.raises(Forked):
        await engine.append("n", 4, b"", 1, epoch)
    with pytest.raises(Forked):
        await engine.read(3, wait=30.0)
    again = await engine.enter("again", Known(epoch, 3, 3))
    assert again == standing
    assert await engine.append("again", 1, b"", 1, again.epoch) == Placed(5, 10)
    records = await read_all(other, 3)
    assert [(each.offset, each.first, each.count, each.body) for each in records] == [
        (4, 4, 6, b""),
        (5, 10, 1, b""),
    ]


async def test_what_a_later_epoch_has_lost_all_before_have(engine: Engine) -> None:
    first = await fill(engine, 3)
    standing = await engine.enter("b", Known(first, 5, 5))
    second = standing.epoch
    await engine.append("b", 1, b"", 4, second)
    third = await engine.enter("c", Known(second, 9, 20))
    assert third.ancestors == (Ancestor(first, 3, 3), Ancestor(second, 5, 9))
    assert third.shares(Known(first, 3, 3))
    assert third.shares(Known(second, 5, 9))


# checkpoints


async def test_new_mirrors_begin_with_the_checkpoint_that_has_most(
    engine: Engine, connect: Connect
) -> None:
    epoch = await fill(engine, 5)
    other = await connect()
    standing = await other.standing()
    assert (standing.checkpoint, standing.appended) == (None, 5)
    assert standing.time == (await read_all(engine))[-1].time
    one = Checkpoint("one", 2, 3, 3, 1_000_000, 7, 3)
    assert await engine.checkpoint(one, epoch)
    assert (await other.standing()).checkpoint == one
    assert not await other.checkpoint(Checkpoint("same", 1, 3, 3, 1, 7, 4), epoch)
    assert not await other.checkpoint(Checkpoint("older", 1, 2, 2, 1, 7, 4), epoch)
    assert (await other.standing()).checkpoint == one
    later = Checkpoint("later", 1, 5, 5, 7, 9, 5)
    assert await other.checkpoint(later, epoch)
    assert (await engine.enter("new")).checkpoint == later


async def test_a_checkpoint_of_another_epoch_is_refused(engine: Engine) -> None:
    epoch = await fill(engine, 3)
    await engine.checkpoint(Checkpoint("one", 2, 3, 3, 1, 7, 3), epoch)
    standing = await engine.enter("more", Known(epoch, 5, 5))
    assert standing.checkpoint is not None
    assert standing.checkpoint.name == "one"
    with pytest.raises(Forked):
        await engine.checkpoint(Checkpoint("two", 2, 4, 4, 1, 7, 3), epoch)


# values for one node


async def test_a_value_is_taken_once_whichever_node_asks(engine: Engine, connect: Connect) -> None:
    other = await connect()
    await engine.put_once("a", b"\0\xff", 30.0)
    await engine.put_once("b", b"b", 30.0)
    taken: list[bytes | None] = []

    async def take(engine: Engine) -> None:
        taken.append(await engine.take("a"))

    async with trio.open_nursery() as nursery:
        for each in (engine, other) * 5:
            nursery.start_soon(take, each)
    assert sorted([each for each in taken if each is not None]) == [b"\0\xff"]
    assert await other.take("b") == b"b"
    assert await engine.take("b") is None
    assert await engine.take("c") is None


async def test_a_value_that_nobody_takes_is_gone_after_its_time(engine: Engine) -> None:
    await engine.put_once("a", b"a", 0.02)
    await trio.sleep(0.1)
    assert await engine.take("a") is None
    for number in range(5):
        await engine.put_once(f"a{number}", b"a", 0.001)
