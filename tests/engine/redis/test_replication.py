"""Replicas that have what is acknowledged, and what is delivered."""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.auth.shared import Version
from mist.engine.contract import Placed
from mist.engine.opening import open_engine
from mist.engine.redis.engine import RedisEngine
from mist.engine.redis.tokens import RedisTokens, open_redis_tokens
from mist.errors import RegistryUnavailable, StartupError
from mist.history import Durability
from tests.engine.outages import answered, refused
from tests.engine.proxy import Proxy
from tests.engine.redis_server import RedisServer
from tests.engine.test_contract import fill, read_all

Open = Callable[..., Coroutine[Any, Any, RedisEngine]]

MISSING = "0 of 1 replicas have what was stored"


@pytest.fixture
def replica(redis: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "replica"
    folder.mkdir()
    with RedisServer(folder, redis.kind) as server:
        yield server


@pytest.fixture
async def between(redis: RedisServer, proxy: Proxy, replica: RedisServer) -> Proxy:
    """What stands between the master and its replica."""
    await trio.to_thread.run_sync(replica.follow, proxy.port)
    await trio.to_thread.run_sync(redis.until_followed, 1)
    return proxy


@pytest.fixture
async def open_with(redis: RedisServer) -> AsyncIterator[Open]:
    """Opens an engine, which waits for a number of replicas; closed after the test."""
    opened: list[RedisEngine] = []

    async def open_with(replicas: int) -> RedisEngine:
        engine = await open_engine(redis.url(), durability=Durability.PROCESS, replicas=replicas)
        assert isinstance(engine, RedisEngine)
        opened.append(engine)
        return engine

    yield open_with
    for each in opened:
        await each.close()


async def test_an_append_waits_for_the_replica(open_with: Open, between: Proxy) -> None:
    engine = await open_with(1)
    epoch = await fill(engine, 3)
    with between.freeze():
        assert MISSING in await refused(lambda: engine.append("n", 4, b"4", 2, epoch))
    await answered(lambda: engine.append("n", 4, b"4", 2, epoch))
    assert await engine.append("n", 4, b"4", 2, epoch) == Placed(4, 4)
    assert [each.body for each in await read_all(engine)] == [b"1", b"2", b"3", b"4"]


async def test_an_append_that_is_repeated_elsewhere_waits_too(
    open_with: Open, between: Proxy
) -> None:
    one, other = await open_with(1), await open_with(1)
    epoch = await fill(one, 1)
    await other.enter("m")
    with between.freeze():
        await refused(lambda: one.append("n", 2, b"2", 1, epoch))
        assert MISSING in await refused(lambda: other.append("n", 2, b"2", 1, epoch))
    await answered(lambda: other.append("n", 2, b"2", 1, epoch))
    assert await one.append("n", 2, b"2", 1, epoch) == Placed(2, 2)


async def test_nothing_is_read_before_the_replica_has_it(open_with: Open, between: Proxy) -> None:
    hasty, reader = await open_with(0), await open_with(1)
    epoch = await fill(hasty, 2)
    await reader.enter("r")
    assert len(await reader.read(0)) == 2
    got: list[bytes] = []

    async def read() -> None:
        await answered(lambda: reader.read(2, wait=5.0))
        got.extend([each.body for each in await reader.read(2)])

    async with trio.open_nursery() as nursery:
        with between.freeze():
            nursery.start_soon(read)
            await hasty.append("n", 3, b"3", 1, epoch)
            assert MISSING in await refused(lambda: reader.read(2))
            assert got == []
    assert got == [b"3"]


async def test_what_the_replica_had_is_read_without_it(
    open_with: Open, between: Proxy, replica: RedisServer
) -> None:
    one = await open_with(1)
    epoch = await fill(one, 3)
    await one.append("n", 4, b"4", 1, epoch)
    replica.kill()
    late = await open_with(1)
    await late.enter("late")
    assert [each.body for each in await late.read(0)] == [b"1", b"2", b"3"]
    assert MISSING in await refused(lambda: late.read(3))


async def test_two_replicas_are_not_one(
    open_with: Open, between: Proxy, redis: RedisServer
) -> None:
    await (await open_with(1)).enter("first")
    engine = await open_with(2)
    epoch = (await engine.enter("n")).epoch
    assert "1 of 2 replicas" in await refused(lambda: engine.append("n", 1, b"", 1, epoch))


async def test_what_is_there_is_read_while_memory_is_full(
    open_with: Open, between: Proxy, redis: RedisServer
) -> None:
    hasty, reader = await open_with(0), await open_with(1)
    epoch = await fill(hasty, 1)
    await reader.enter("r")
    await hasty.append("n", 2, bytes(2 << 20), 1, epoch)
    redis.ask("CONFIG", "SET", "maxmemory", "1mb")
    assert "its memory is full" in await refused(lambda: hasty.append("n", 3, b"", 1, epoch))
    assert len(await read_all(reader)) == 2


async def test_too_few_replicas_are_told_at_the_start(
    open_with: Open, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartupError, match="has 0 of the 1 replicas that engine_replicas asks for"):
        await open_with(1)
    assert caplog.text == ""
    await (await open_with(0)).enter("n")
    await open_with(1)  # of a realm that is there, one may be about to be replaced
    (warning,) = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert "nothing is stored until they are there" in warning


@pytest.mark.parametrize("url", ["memory://", "memory://realm", "postgresql://someone:hush@h/db"])
async def test_what_has_no_replicas_to_choose_is_refused(url: str) -> None:
    with pytest.raises(StartupError, match="a setting for Redis only") as error:
        await open_engine(url, replicas=1)
    assert "hush" not in str(error.value)


# tokens


@pytest.fixture
async def store(redis: RedisServer) -> AsyncIterator[RedisTokens]:
    store = await open_redis_tokens(redis.url(), Durability.PROCESS, replicas=1)
    await store.enter(bytes(32))
    yield store
    await store.aclose()


async def test_a_change_of_tokens_waits_for_the_replica(store: RedisTokens, between: Proxy) -> None:
    before = (await store.load()).version
    changes = {bytes(32): b"value"}
    with between.freeze(), trio.fail_after(10):
        with pytest.raises(RegistryUnavailable) as error:
            await store.write(changes, before, "a1")
    assert MISSING in str(error.value.__cause__)
    with trio.fail_after(10):
        while True:
            try:
                version = await store.write(changes, before, "a1")
            except RegistryUnavailable:
                await trio.sleep(0.01)
            else:
                break
    assert version == Version(before.number + 1, "a1")
    assert (await store.load()).version == version
