"""A log in another process: all members say what they have of it, then it goes on, or it forks."""

import secrets
import shutil
import time
from collections.abc import Sequence

import pytest
import trio

from mist.engine.contract import Ancestor, EngineUnavailable, Forked, Known, Placed
from mist.engine.redis.engine import RedisEngine
from tests.engine.proxy import Proxy
from tests.engine.redis.conftest import Open
from tests.engine.redis_server import RedisServer
from tests.engine.test_contract import fill, read_all
from tests.waiting import until


@pytest.fixture(autouse=True)
def durable(redis: RedisServer) -> None:
    """What it has acknowledged is in its file, also where a sync takes long."""
    redis.set_fsync("always")


async def beating(open_on: Open, *names: str) -> list[RedisEngine]:
    """Members that have beaten once, by their connections."""
    engines = []
    for name in names:
        engine = await open_on()
        await engine.enter(name)
        await engine.members.beat(name, b"")
        engines.append(engine)
    return engines


async def catch_up(engines: Sequence[RedisEngine]) -> None:
    for engine in engines:
        await read_all(engine)


class Older:
    """The files of a server, as they are, to be put back: what a replica has that is behind."""

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis
        self._copy = redis.folder.with_name(f"{redis.folder.name}-older")
        shutil.copytree(redis.folder, self._copy)

    def restart(self) -> None:
        self._redis.kill()
        shutil.rmtree(self._redis.folder)
        shutil.move(self._copy, self._redis.folder)
        self._redis.start()


def restart(redis: RedisServer) -> None:
    redis.kill()
    redis.start()


async def vote(engine: RedisEngine) -> None:
    with trio.fail_after(10):
        await engine.read(0)


async def test_a_restart_that_loses_nothing_keeps_the_epoch(
    open_on: Open, redis: RedisServer
) -> None:
    a, b, c = await beating(open_on, "a", "b", "c")
    epoch = await fill(a, 3, "a")
    await catch_up([a, b])  # and the last one not
    restart(redis)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(vote, b)
            nursery.start_soon(vote, c)
            assert await a.append("a", 4, b"4", 1, epoch) == Placed(4, 4)
    assert (await b.standing()).epoch == epoch


async def test_nothing_is_appended_before_all_members_have_said_what_they_have(
    open_on: Open, redis: RedisServer
) -> None:
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    older = Older(redis)
    await a.append("a", 4, b"4", 6, epoch)
    await read_all(b)
    older.restart()
    appended = trio.Event()

    async def append() -> None:
        with pytest.raises(Forked):
            await a.append("a", 5, b"5", 1, epoch)
        appended.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await trio.sleep(0.3)
            assert not appended.is_set()
            with pytest.raises(Forked):
                await b.read(4)
    standing = await b.enter("again", Known(epoch, 4, 9))
    assert standing.ancestors == (Ancestor(epoch, 3, 3),)
    assert (standing.offset, standing.newest) == (4, 9)
    assert await a.enter("a2") == standing
    assert [each.body for each in await read_all(a)] == [b"1", b"2", b"3", b""]


async def test_an_epoch_that_is_lost_with_its_records_gives_no_id_twice(
    open_on: Open, redis: RedisServer
) -> None:
    """As two failovers in a row do: the second to a server that has not heard of the first."""
    a, b = await beating(open_on, "a", "b")
    first = await fill(a, 3, "a")
    older = Older(redis)
    second = (await b.enter("b2", Known(first, 5, 9))).epoch
    assert (await a.enter("a2", Known(first, 3, 3))).epoch == second
    await a.append("a2", 1, b"of the second", 1, second)
    await catch_up([a, b])
    older.restart()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_told, a, 5)
            nursery.start_soon(_told, b, 5)
    third = await a.enter("a3", Known(second, 5, 10))
    assert third.epoch not in (first, second)
    assert third.ancestors == (Ancestor(first, 3, 3),)
    assert (await a.append("a3", 1, b"", 1, third.epoch)).first == 11


async def test_a_member_that_has_less_is_asked_as_well(open_on: Open, redis: RedisServer) -> None:
    """The one that comes first has nothing that was lost; another has."""
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    await catch_up([a, b])
    older = Older(redis)
    await a.append("a", 4, b"4", 6, epoch)
    older.restart()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_told, b, 3)
            await trio.sleep(0.1)
            nursery.start_soon(_told, a, 4)
    assert (await b.enter("again")).ancestors == (Ancestor(epoch, 3, 3),)


async def _told(engine: RedisEngine, after: int) -> None:
    with pytest.raises(Forked):
        await engine.read(after, wait=30.0)


async def test_a_member_that_does_not_answer_may_have_had_more(
    open_on: Open, redis: RedisServer
) -> None:
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    await b.close()
    restart(redis)
    began = time.monotonic()
    with trio.fail_after(10):
        await _told(a, 3)
    assert 1.5 < time.monotonic() - began < 5
    standing = await a.enter("again", Known(epoch, 3, 3))
    assert standing.ancestors == (Ancestor(epoch, 3, 3),)
    assert standing.shares(Known(epoch, 3, 3))
    assert await a.append("again", 1, b"", 1, standing.epoch) == Placed(5, 4)


async def test_one_that_has_left_is_not_waited_for(open_on: Open, redis: RedisServer) -> None:
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    await b.members.leave("b")
    await b.close()
    restart(redis)
    with trio.fail_after(1.5):
        assert await a.append("a", 4, b"", 1, epoch) == Placed(4, 4)


async def test_one_that_was_silent_for_long_is_not_waited_for(
    open_on: Open, redis: RedisServer
) -> None:
    a, _ = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    assert redis.ask("HSET", "{mist:test}:members", "b", "1 ").startswith(b":0")
    restart(redis)
    with trio.fail_after(1.5):
        assert await a.append("a", 4, b"", 1, epoch) == Placed(4, 4)


async def test_a_beat_at_another_process_counts_once_it_is_confirmed(
    open_on: Open, redis: RedisServer
) -> None:
    """However long the server was away: who comes back first is not taken for the only one."""
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    for name in ("a", "b"):  # long ago
        redis.ask("HSET", "{mist:test}:members", name, "1000000 ")
    restart(redis)
    await a.members.beat("a", b"")
    assert [each.node for each in await a.members.all()] == []
    assert redis.ask("HLEN", "{mist:test}:members") == b":2\r\n"
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(vote, b)
            await a.append("a", 4, b"", 1, epoch)
    await a.members.beat("a", b"")
    assert [each.node for each in await a.members.all()] == ["a"]


async def test_a_log_taken_over_from_another_in_the_same_process_is_confirmed(
    open_on: Open, redis: RedisServer
) -> None:
    """As a replica does that becomes the master: the process is the same, its data is not."""
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    redis.ask("HSET", "{mist:test}:head", "run", "another")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(vote, b)
            nursery.start_soon(b.append, "b", 1, b"", 1, epoch)
            assert (await a.append("a", 4, b"", 1, epoch)).offset in (4, 5)


async def test_an_answer_of_another_process_does_not_count_after_the_vote(
    open_on: Open, redis: RedisServer, proxy: Proxy
) -> None:
    """What a master still acknowledges that is cut off: the node has told what it had before."""
    a = await open_on(proxy.port)
    epoch = await fill(a, 3, "a")
    await read_all(a)
    folder = redis.folder.with_name(f"{redis.folder.name}-replica")
    shutil.copytree(redis.folder, folder)
    placed: list[Placed] = []

    async def append() -> None:
        placed.append(await a.append("a", 4, b"4", 1, epoch))

    with RedisServer(folder, redis.kind) as replica, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            with redis.frozen():
                nursery.start_soon(append)
                await trio.sleep(0.1)
                proxy.to = replica.port
                assert await a.read(3) == []
            await until(lambda: bool(placed))
        assert placed == [Placed(4, 4)]
        assert [each.body for each in await a.read(3)] == [b"4"]  # and it is at the new one


async def test_of_all_at_once_nobody_is_left_waiting(open_on: Open, redis: RedisServer) -> None:
    """All nodes are killed with their engine, and started again under other names."""
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    await a.close()
    await b.close()
    restart(redis)
    with trio.fail_after(10):
        again = await open_on()
        standing = await again.enter(secrets.token_hex(4), Known(epoch, 3, 3))
    assert standing.shares(Known(epoch, 3, 3))
    assert standing.newest == 3


async def test_without_an_answer_a_vote_ends(open_on: Open, redis: RedisServer) -> None:
    engine = await open_on()
    epoch = await fill(engine, 1)
    redis.kill()
    with trio.fail_after(10), pytest.raises(EngineUnavailable):
        await engine.append("n", 2, b"", 1, epoch)
