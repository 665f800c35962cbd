"""The log in Redis: what it keeps, how much of it is asked for, and what tells that it was lost."""

import shutil
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from mist.engine.contract import (
    Ancestor,
    Checkpoint,
    Engine,
    EngineUnavailable,
    Forked,
    NotEntered,
    Placed,
    Trimmed,
)
from mist.engine.redis.engine import RedisEngine
from tests.engine.proxy import Proxy
from tests.engine.redis.conftest import Open
from tests.engine.redis_server import RedisServer
from tests.engine.test_contract import fill, read_all
from tests.waiting import until

KEYS = tuple([f"{{mist:test}}:{each}" for each in ("head", "log", "nodes")])


async def forked(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(Forked):
        with trio.fail_after(10):
            await call()


# What it keeps


async def test_keys_are_those_of_the_realm_and_do_not_expire(
    engine: RedisEngine, redis: RedisServer
) -> None:
    epoch = await fill(engine, 2)
    await engine.stage("batch", 0, b"part")
    keys = {*KEYS, "{mist:test}:staged:batch"}
    assert {each.decode() for each in redis.ask("KEYS", "*").split()[2::2]} == keys
    for key in KEYS:
        assert redis.ask("TTL", key) == b":-1\r\n"
    assert 86_400 < int(redis.ask("TTL", "{mist:test}:staged:batch")[1:]) <= 3 * 86_400
    assert redis.ask("HGET", KEYS[0], "epoch").split()[1] == epoch.encode()


async def test_records_are_stamped_with_the_version_of_the_tokens(
    engine: RedisEngine, redis: RedisServer
) -> None:
    epoch = await fill(engine, 1)
    redis.ask("HSET", "{mist:test}:tokens:head", "version", "1795419000123")
    await engine.append("n", 2, b"2", 1, epoch)
    redis.ask("HSET", "{mist:test}:tokens:head", "version", "1795419000124")
    await engine.append("n", 2, b"2", 1, epoch)
    await engine.append("n", 3, b"3", 1, epoch)
    # Where that is damaged, nothing can be revoked: records go on.
    redis.ask("HSET", "{mist:test}:tokens:head", "version", "two words")
    await engine.append("n", 4, b"4", 1, epoch)
    stamps = [each.tokens for each in await read_all(engine)]
    assert stamps == [0, 1795419000123, 1795419000124, 0]


async def test_parts_of_a_checkpoint_last_until_it_is_replaced(
    engine: RedisEngine, redis: RedisServer
) -> None:
    epoch = await fill(engine, 5)
    for offset, name in enumerate(("one", "two", "three"), 1):
        await engine.stage(name, 0, b"part")
        assert await engine.checkpoint(Checkpoint(name, 1, offset, offset, 4, 1, 1), epoch)
    found = [redis.ask("TTL", f"{{mist:test}}:staged:{name}") for name in ("one", "two", "three")]
    assert 300 < int(found[0][1:]) <= 600
    assert 300 < int(found[1][1:]) <= 600
    assert found[2] == b":-1\r\n"


async def test_realms_are_apart(open_on: Open) -> None:
    one, other = await open_on(), await open_on(realm="other")
    assert await fill(one, 3) != await fill(other, 1)
    assert [len(await read_all(each)) for each in (one, other)] == [3, 1]


async def test_times_ascend_even_in_one_microsecond(engine: RedisEngine) -> None:
    await fill(engine, 50)
    times = [each.time for each in await read_all(engine)]
    assert times == sorted(set(times))


async def test_the_longest_silent_node_is_forgotten_first(
    engine: RedisEngine, redis: RedisServer
) -> None:
    epoch = (await engine.enter("first")).epoch
    await engine.enter("second")
    for number in range(997):  # and the one by which the connection has entered
        await engine.enter(f"n{number}")
    await engine.append("first", 1, b"1", 1, epoch)
    for name in ("one more", "and another"):  # that was the longest silent
        await engine.enter(name)
    assert redis.ask("HLEN", KEYS[2]) == b":1000\r\n"
    with pytest.raises(NotEntered):
        await engine.append("second", 1, b"", 0, epoch)
    assert await engine.append("first", 2, b"2", 1, epoch) == Placed(2, 2)


async def test_a_node_may_have_any_name(engine: RedisEngine) -> None:
    for name in ("a b", "ä\n", "}{", "1 2 3 4 5 6 7"):
        epoch = (await engine.enter(name)).epoch
        await engine.append(name, 1, b"", 0, epoch)
    assert [each.node for each in await read_all(engine)] == ["a b", "ä\n", "}{", "1 2 3 4 5 6 7"]


# How much of it is asked for


async def test_no_more_is_read_than_may_be(open_on: Open, proxy: Proxy) -> None:
    writer, reader = await open_on(), await open_on(proxy.port)
    epoch = (await writer.enter("n")).epoch
    for serial in range(1, 21):
        await writer.append("n", serial, bytes(1_000_000), 1, epoch)
    before = proxy.received
    assert len(await reader.read(0, max_bytes=3_000_000)) == 3
    assert proxy.received - before < 3_100_000
    assert await reader.read(20) == []
    for serial in range(21, 31):
        await writer.append("n", serial, bytes(1_000_000), 1, epoch)
    before = proxy.received
    assert len(await reader.read(20, wait=30.0, max_bytes=1)) == 1
    assert proxy.received - before < 1_100_000


async def test_what_is_read_in_turns_is_whole(engine: RedisEngine, open_on: Open) -> None:
    """A reader that is woken, falls behind and catches up has each record once."""
    reader = await open_on()
    epoch = (await engine.enter("n")).epoch
    got: list[int] = []

    async def read() -> None:
        while len(got) < 600:
            some = await reader.read(got[-1] if got else 0, wait=5.0, max_bytes=50)
            got.extend([each.offset for each in some])

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for serial in range(1, 601):
                await engine.append("n", serial, b"0123456789", 1, epoch)
    assert got == list(range(1, 601))


async def test_a_long_log_is_trimmed_in_steps(engine: RedisEngine, redis: RedisServer) -> None:
    epoch = await fill(engine, 2_500)
    before = int(
        redis.ask("INFO", "commandstats").partition(b"xtrim:calls=")[2].split(b",")[0] or 0
    )
    await engine.trim(2_400)
    after = int(redis.ask("INFO", "commandstats").partition(b"xtrim:calls=")[2].split(b",")[0])
    assert after - before == 3
    with pytest.raises(Trimmed) as error:
        await engine.read(2_399)
    assert error.value.oldest == 2_401
    assert len(await read_all(engine, 2_400)) == 100
    assert await engine.append("n", 2_501, b"", 0, epoch) == Placed(2_501, 2_501)


async def test_a_waiting_reader_is_told_of_a_trim(engine: RedisEngine, open_on: Open) -> None:
    reader = await open_on()
    epoch = await fill(engine, 1)
    await reader.read(1)
    for serial in (2, 3):
        await engine.append("n", serial, b"", 0, epoch)
    await engine.trim(2)
    with pytest.raises(Trimmed) as error:
        await reader.read(1, wait=5.0)
    assert error.value.oldest == 3


async def test_records_that_others_removed_are_told(
    engine: RedisEngine, redis: RedisServer
) -> None:
    await fill(engine, 5)
    redis.ask("XDEL", KEYS[1], "3-0")
    assert [each.offset for each in await engine.read(0)] == [1, 2]
    with pytest.raises(Trimmed) as error:
        await engine.read(2)
    assert error.value.oldest == 4
    assert [each.offset for each in await engine.read(3)] == [4, 5]
    redis.ask("XTRIM", KEYS[1], "MAXLEN", "0")
    with pytest.raises(Trimmed) as error:
        await engine.read(3)
    assert error.value.oldest == 6


# What tells that it was lost


async def test_an_emptied_server_is_another_log(
    engine: RedisEngine, open_on: Open, redis: RedisServer
) -> None:
    epoch = await fill(engine, 3)
    await read_all(engine)
    redis.ask("FLUSHALL")
    await forked(lambda: engine.append("n", 4, b"4", 1, epoch))
    await forked(lambda: engine.read(3))
    await forked(lambda: engine.read(3, wait=30.0))
    await forked(engine.standing)
    standing = await engine.enter("again")
    assert standing.epoch != epoch
    assert (standing.newest, standing.offset) == (3, 1)  # no id is given twice
    assert standing.ancestors == (Ancestor(epoch, 0, 0),)
    await forked(lambda: engine.append("again", 1, b"1", 1, epoch))
    assert await engine.append("again", 1, b"1", 1, standing.epoch) == Placed(2, 4)
    assert [(each.first, each.count, each.body) for each in await engine.read(0)] == [
        (1, 3, b""),
        (4, 1, b"1"),
    ]


@pytest.mark.parametrize("written", [0, 2, 20])
async def test_a_waiting_reader_is_told_of_another_log_and_never_reads_it(
    engine: RedisEngine, open_on: Open, redis: RedisServer, written: int
) -> None:
    await fill(engine, 3)
    other = await open_on()
    ended = trio.Event()

    async def read() -> None:
        await forked(lambda: engine.read(3, wait=30.0))
        ended.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.02)
            redis.ask("FLUSHALL")
            epoch = (await other.enter("other")).epoch
            for serial in range(1, written + 1):
                await other.append("other", serial, b"another", 1, epoch)
            await ended.wait()


async def test_a_server_that_comes_back_without_its_file_is_another_log(
    engine: RedisEngine, redis: RedisServer
) -> None:
    epoch = await fill(engine, 3)
    redis.kill()
    shutil.rmtree(redis.folder)
    redis.folder.mkdir()
    redis.start()
    await forked(lambda: engine.read(3, wait=30.0))
    await forked(lambda: engine.append("n", 4, b"4", 1, epoch))
    assert (await engine.enter("again")).epoch != epoch


async def test_a_reader_of_nothing_yet_is_told_of_another_log(
    engine: RedisEngine, open_on: Open, redis: RedisServer
) -> None:
    await fill(engine, 3)
    reader = await open_on()
    redis.ask("FLUSHALL")
    await fill(await open_on(), 5)
    await forked(lambda: reader.read(0))
    await reader.enter("again")
    assert len(await reader.read(0)) == 5


class Snapshot:
    """The three keys as they are, to be put back: what a replica has that is behind."""

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis
        assert redis.ask("EVAL", _KEEP, "3", *KEYS) == b"+OK\r\n"

    def restore(self) -> None:
        assert self._redis.ask("EVAL", _RESTORE, "3", *KEYS) == b"+OK\r\n"


_KEEP = """
for _, key in ipairs(KEYS) do redis.call('SET', key .. ':kept', redis.call('DUMP', key)) end
return redis.status_reply('OK')
"""
_RESTORE = """
for _, key in ipairs(KEYS) do
  redis.call('RESTORE', key, 0, redis.call('GET', key .. ':kept'), 'REPLACE')
end
return redis.status_reply('OK')
"""


async def test_a_log_that_has_lost_its_end_is_not_gone_on_with(
    engine: RedisEngine, open_on: Open, redis: RedisServer
) -> None:
    epoch = await fill(engine, 3)
    snapshot = Snapshot(redis)
    await engine.append("n", 4, b"4", 5, epoch)
    snapshot.restore()
    await forked(lambda: engine.append("n", 5, b"5", 1, epoch))
    standing = await engine.enter("again")
    assert standing.epoch != epoch
    assert (standing.newest, standing.offset) == (8, 4)  # no id is given twice
    assert standing.ancestors == (Ancestor(epoch, 3, 3),)
    assert await engine.append("again", 1, b"1", 1, standing.epoch) == Placed(5, 9)
    other = await open_on()
    assert (await other.enter("other")).epoch == standing.epoch


async def test_a_reader_is_told_of_a_lost_end(
    engine: RedisEngine, open_on: Open, redis: RedisServer
) -> None:
    epoch = await fill(engine, 3)
    reader = await open_on()
    snapshot = Snapshot(redis)
    await engine.append("n", 4, b"4", 5, epoch)
    assert len(await reader.read(0)) == 4
    snapshot.restore()
    await forked(lambda: reader.read(4, wait=30.0))
    await forked(lambda: reader.append("n", 9, b"", 0, epoch))
    assert (await reader.enter("again")).epoch != epoch


async def test_a_lost_end_that_was_replaced_is_told_by_the_record_behind_it(
    engine: RedisEngine, open_on: Open, redis: RedisServer
) -> None:
    """Two nodes: one has read what the other never saw, and the other goes on writing."""
    epoch = await fill(engine, 3)
    reader, other = await open_on(), await open_on()
    await other.enter("other")
    snapshot = Snapshot(redis)
    await engine.append("n", 4, b"4", 1, epoch)
    assert len(await reader.read(0)) == 4
    assert await reader.read(4) == []
    snapshot.restore()
    await other.enter("other")
    await other.append("other", 1, b"in its place", 1, epoch)
    await forked(lambda: engine.append("n", 5, b"5", 1, epoch))  # as high, but another record
    await other.append("other", 2, b"behind it", 1, epoch)
    await forked(lambda: reader.read(4, wait=30.0))
    await forked(lambda: reader.append("n", 5, b"5", 1, epoch))


async def test_another_process_is_asked_for_the_last_record_first(
    engine: RedisEngine, open_on: Open, redis: RedisServer
) -> None:
    """A server that comes back with an older file, and was written to before this node asked."""
    redis.set_fsync("always")
    epoch = await fill(engine, 3)
    redis.kill()
    shutil.copytree(redis.folder, redis.folder.with_name("older"))
    redis.start()
    assert await engine.append("n", 4, b"4", 1, epoch) == Placed(4, 4)
    redis.kill()
    shutil.rmtree(redis.folder)
    shutil.move(redis.folder.with_name("older"), redis.folder)
    redis.start()
    other = await open_on()
    await other.enter("other")
    for serial in range(1, 10):
        await other.append("other", serial, b"another", 1, epoch)
    assert (await read_all(other))[3].body == b"another"
    await forked(lambda: engine.append("n", 5, b"5", 1, epoch))
    await forked(lambda: other.read(0))
    assert (await other.enter("again")).ancestors == (Ancestor(epoch, 12, 12),)
    assert [each.body for each in await read_all(other)].count(b"5") == 0


# Killed under load


# Not `everysec`: while a sync is under way, Redis then acknowledges what is in its memory only, for
# two seconds at most (`flushAppendOnlyFile`). That what a kill takes is told is shown above.
@pytest.mark.parametrize("policy", ["no", "always"])
async def test_a_killed_server_loses_nothing_that_it_acknowledged(
    engine: RedisEngine, open_on: Open, redis: RedisServer, policy: str
) -> None:
    await kill_under_load(engine, await open_on(), redis, policy, 2)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["no", "always"])
async def test_a_server_that_is_killed_all_the_time_loses_nothing(
    engine: RedisEngine, open_on: Open, redis: RedisServer, policy: str
) -> None:
    await kill_under_load(engine, await open_on(), redis, policy, 60)


async def kill_under_load(
    engine: Engine, reader: Engine, redis: RedisServer, policy: str, times: int
) -> None:
    """Append and read while the server is killed and started; each record is there once."""
    redis.set_fsync(policy)
    epoch = (await engine.enter("n")).epoch
    acknowledged: list[Placed] = []
    read: list[tuple[int, bytes]] = []
    stopping = stopped = False

    async def append() -> None:
        nonlocal stopped
        unanswered = False
        while not stopping or unanswered:
            serial = len(acknowledged) + 1
            try:
                body = b"%d" % serial
                acknowledged.append(await engine.append("n", serial, body, 1, epoch))
                unanswered = False
            except EngineUnavailable:
                unanswered = True
                await trio.sleep(0.001)
        stopped = True

    async def follow() -> None:
        while not stopped or len(read) < len(acknowledged):
            try:
                some = await reader.read(read[-1][0] if read else 0, wait=0.2)
            except EngineUnavailable:
                await trio.sleep(0.001)
            else:
                read.extend([(each.offset, each.body) for each in some])

    with trio.fail_after(30 + 5 * times):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            nursery.start_soon(follow)
            for _ in range(times):
                enough = len(acknowledged) + 200
                await until(lambda enough=enough: len(acknowledged) >= enough)  # type: ignore[misc]
                await trio.to_thread.run_sync(redis.kill)
                await trio.to_thread.run_sync(redis.start)
            stopping = True
    assert [each.offset for each in acknowledged] == list(range(1, len(acknowledged) + 1))
    assert read == [(serial, b"%d" % serial) for serial in range(1, len(acknowledged) + 1)]
