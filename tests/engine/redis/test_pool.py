"""A Redis that fails: calls end in time, and go on once it is back; nothing is lost, or twice."""

import os

import pytest
import trio
import trio.testing

from mist.engine.contract import Engine, Placed
from mist.engine.redis.engine import RedisEngine
from tests.engine.outages import QUICK, SOON, all_refused, answered, refused
from tests.engine.proxy import Proxy
from tests.engine.redis.conftest import Open
from tests.engine.redis_server import RedisServer
from tests.engine.test_contract import fill, read_all
from tests.waiting import until


async def test_a_stopped_server_keeps_nobody_waiting(
    quick: RedisEngine, redis: RedisServer
) -> None:
    engine = quick
    epoch = await fill(engine, 2)
    with redis.frozen():
        await all_refused(engine, epoch)
        await all_refused(engine, epoch)  # none of whose connections was open before
    await answered(lambda: engine.append("n", 4, b"4", 0, epoch))
    assert (await engine.append("n", 5, b"5", 0, epoch)).offset == (await engine.standing()).offset


async def test_a_network_that_swallows_keeps_nobody_waiting(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port, **QUICK)
    epoch = await fill(engine, 2)
    with proxy.freeze():
        await all_refused(engine, epoch)
    with proxy.lose_replies():
        await all_refused(engine, epoch)
    await answered(engine.standing)


async def test_a_wait_is_ended_by_a_server_that_stops_in_it(
    quick: RedisEngine, redis: RedisServer, nursery: trio.Nursery
) -> None:
    await fill(quick, 1)
    ended = trio.Event()

    async def read() -> None:
        await refused(lambda: quick.read(1, wait=30.0))
        ended.set()

    nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked(0.02)
    with redis.frozen():
        with trio.fail_after(SOON):
            await ended.wait()


async def test_a_lost_reply_is_no_lost_record(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port, **QUICK)
    epoch = await fill(engine, 1)
    with proxy.lose_replies():
        await refused(lambda: engine.append("n", 2, b"two", 3, epoch))
    await answered(engine.standing)
    assert await engine.append("n", 2, b"two", 3, epoch) == Placed(2, 2)
    with proxy.lose_requests():
        await refused(lambda: engine.append("n", 3, b"three", 1, epoch))
    await answered(engine.standing)
    assert await engine.append("n", 3, b"three", 1, epoch) == Placed(3, 5)
    assert [each.body for each in await read_all(engine)] == [b"1", b"two", b"three"]


async def test_a_slow_network_is_waited_for(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port, timeout=1)
    epoch = await fill(engine, 2)
    body = os.urandom(12 << 20)
    proxy.delay = 0.007  # for each 64 kB
    began = trio.current_time()
    await engine.append("n", 3, body, 1, epoch)
    assert trio.current_time() - began > 1  # longer than what is small may take
    assert [each.body for each in await read_all(engine)] == [b"1", b"2", body]


async def test_connections_that_are_cut_are_not_noticed(
    open_on: Open, proxy: Proxy, redis: RedisServer, nursery: trio.Nursery
) -> None:
    engine = await open_on(proxy.port)
    epoch = await fill(engine, 2)
    got: list[bytes] = []
    read = trio.Event()

    async def wait() -> None:
        got.extend([each.body for each in await engine.read(2, wait=30.0)])
        read.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked(0.02)
    proxy.cut()
    assert await engine.append("n", 3, b"3", 1, epoch) == Placed(3, 3)
    with trio.fail_after(SOON):
        await read.wait()
    assert got == [b"3"]


async def test_a_server_that_is_started_again_is_found_again(
    engine: RedisEngine, redis: RedisServer
) -> None:
    redis.set_fsync("always")
    epoch = await fill(engine, 3)
    redis.kill()
    for _ in range(5):
        reason = await refused(lambda: engine.append("n", 4, b"4", 1, epoch))
    assert "connection refused" in reason
    redis.start()
    await answered(lambda: engine.append("n", 4, b"4", 1, epoch))
    assert await engine.append("n", 4, b"4", 1, epoch) == Placed(4, 4)
    assert [each.body for each in await read_all(engine)] == [b"1", b"2", b"3", b"4"]


async def test_connections_are_tried_with_a_backoff(redis: RedisServer, open_on: Open) -> None:
    engine = await open_on()
    redis.kill()
    attempts = 0
    with trio.move_on_after(1.0):
        while True:
            await refused(engine.standing)
            attempts += 1
    assert 2 <= attempts <= 15


async def test_an_idle_server_is_not_asked_much(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port)
    await fill(engine, 1)
    for _ in range(50):
        await engine.read(0)
    assert proxy.connections == 1  # one after another needs no more


async def test_a_cancelled_call_leaves_nothing_to_the_next(engine: RedisEngine) -> None:
    epoch = await fill(engine, 3)
    for after in (0, 1, 2):
        with trio.move_on_after(0.0):
            await engine.read(after)
        with trio.move_on_after(0.002):
            await engine.read(3, wait=10.0)
        assert len(await engine.read(after)) == 3 - after
        assert (await engine.standing()).epoch == epoch


async def test_connections_that_are_open_at_one_end_are_not_tried_one_by_one(
    open_on: Open, proxy: Proxy
) -> None:
    engine = await open_on(proxy.port, **QUICK)
    epoch = await fill(engine, 2)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(engine.read, 0)
    assert proxy.connections > 2
    proxy.forget()
    await refused(lambda: engine.append("n", 3, b"3", 1, epoch))
    assert await engine.append("n", 3, b"3", 1, epoch) == Placed(3, 3)


async def test_closing_does_not_wait_for_a_server(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port, timeout=60)
    await fill(engine, 2)
    with proxy.freeze(), trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, engine.standing)
            nursery.start_soon(refused, lambda: engine.read(2, wait=30.0))
            await trio.testing.wait_all_tasks_blocked(0.02)
            await engine.close()


async def test_a_cancelled_close_closes_all_connections(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port)
    await fill(engine, 1)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(engine.read, 0)
    assert proxy.open > 1
    with trio.CancelScope() as scope:
        scope.cancel()
        await engine.close()
    await until(lambda: proxy.open == 0)


async def test_many_tasks_may_wait(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port)
    epoch = await fill(engine, 1)
    assert await engine.read(1) == []
    got: list[int] = []

    async def read() -> None:
        got.extend([each.offset for each in await engine.read(1, wait=30.0)])

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert proxy.connections <= 2
            await engine.append("n", 2, b"2", 1, epoch)
    assert got == [2] * 200


async def test_a_server_that_becomes_a_replica_is_refused(
    engine: RedisEngine, redis: RedisServer
) -> None:
    epoch = await fill(engine, 2)
    redis.ask("REPLICAOF", "127.0.0.1", "1")
    assert "it is a replica" in await refused(lambda: engine.append("n", 3, b"3", 1, epoch))
    assert "a replica" in await refused(lambda: wait_for_ever(engine))
    redis.ask("REPLICAOF", "NO", "ONE")
    await answered(lambda: engine.append("n", 3, b"3", 1, epoch))
    assert len(await read_all(engine)) == 3


async def wait_for_ever(engine: Engine) -> None:
    while True:
        await engine.read(2, wait=1.0)


async def refused_meanwhile(
    engine: RedisEngine, redis: RedisServer, setting: str, value: str, usual: str
) -> str:
    """Why an append and staging are refused under a setting, which changes nothing."""
    epoch = await fill(engine, 2)
    await engine.append("n", 3, bytes(2 << 20), 1, epoch)
    redis.ask("CONFIG", "SET", setting, value)
    reason = await refused(lambda: engine.append("n", 4, b"4", 1, epoch))
    assert reason == await refused(lambda: engine.stage("batch", 0, b""))
    assert len(await read_all(engine)) == 3
    assert (await engine.standing()).offset == 3
    redis.ask("CONFIG", "SET", setting, usual)
    assert await engine.append("n", 4, b"4", 1, epoch) == Placed(4, 4)
    assert [each.body for each in await engine.read(3)] == [b"4"]
    return reason


async def test_a_full_server_changes_nothing_and_is_told(
    engine: RedisEngine, redis: RedisServer
) -> None:
    reason = await refused_meanwhile(engine, redis, "maxmemory", "1mb", "0")
    assert "its memory is full" in reason


# Version 6.2 does not look at it in scripts.
@pytest.mark.parametrize("redis", ["system"], indirect=True)
async def test_missing_replicas_change_nothing_and_are_told(
    engine: RedisEngine, redis: RedisServer
) -> None:
    reason = await refused_meanwhile(engine, redis, "min-replicas-to-write", "1", "0")
    assert "fewer replicas" in reason


async def test_a_full_server_can_be_trimmed(engine: RedisEngine, redis: RedisServer) -> None:
    epoch = (await engine.enter("n")).epoch
    for serial in range(1, 31):
        await engine.append("n", serial, bytes(1 << 20), 1, epoch)
    redis.ask("CONFIG", "SET", "maxmemory", "16mb")
    await refused(lambda: engine.append("n", 31, b"31", 1, epoch))
    await engine.trim(30)
    assert (await engine.standing()).oldest == 31
    assert await engine.append("n", 31, b"31", 1, epoch) == Placed(31, 31)


async def test_a_password_that_is_set_later_is_told(
    engine: RedisEngine, redis: RedisServer
) -> None:
    await fill(engine, 1)
    redis.kill()
    redis.options += ["--requirepass", "hush-hush"]
    redis.start()
    assert "wants a password" in await refused(engine.standing)


async def test_scripts_that_are_forgotten_are_sent_again(
    engine: RedisEngine, redis: RedisServer
) -> None:
    epoch = await fill(engine, 2)
    assert await engine.read(2) == []
    redis.ask("SCRIPT", "FLUSH")
    assert await engine.read(2, wait=0.01) == []
    redis.ask("SCRIPT", "FLUSH")
    assert await engine.append("n", 3, b"3", 1, epoch) == Placed(3, 3)
    assert [each.body for each in await engine.read(2, wait=1.0)] == [b"3"]


class Steps(trio.abc.Instrument):
    """How often a task was run."""

    def __init__(self) -> None:
        self.count = 0
        self._task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self._task


async def test_a_call_takes_one_step_of_its_task(engine: RedisEngine) -> None:
    await fill(engine, 1)
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    for _ in range(20):
        await engine.standing()
    trio.lowlevel.remove_instrument(steps)
    # A reply may come in pieces.
    assert 20 <= steps.count <= 24
