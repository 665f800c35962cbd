"""A Redis for each test, which may do to it what it likes, and engines on it."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from mist.engine.opening import open_engine
from mist.engine.redis.engine import RedisEngine
from mist.history import Durability
from tests.engine.outages import QUICK
from tests.engine.proxy import Proxy
from tests.engine.redis_server import HOST, KINDS, RedisServer

Open = Callable[..., Awaitable[RedisEngine]]


@pytest.fixture(params=KINDS)
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path, request.param) as server:
        yield server


@pytest.fixture
async def open_on(redis: RedisServer) -> AsyncIterator[Open]:
    """Opens and enters an engine, on a port in place of the server's; closed after the test."""
    opened: list[RedisEngine] = []

    async def open_on(port: int = 0, **options: object) -> RedisEngine:
        url = redis.url(**options)
        url = url.replace(f"{HOST}:{redis.port}", f"{HOST}:{port or redis.port}")
        engine = await open_engine(url, durability=Durability.PROCESS)
        assert isinstance(engine, RedisEngine)
        opened.append(engine)
        await engine.enter(secrets.token_hex(4))
        return engine

    yield open_on
    for each in opened:
        await each.close()


@pytest.fixture
async def engine(open_on: Open) -> RedisEngine:
    return await open_on()


@pytest.fixture
async def quick(open_on: Open) -> RedisEngine:
    """An engine that does not wait for long."""
    return await open_on(**QUICK)


@pytest.fixture
async def proxy(redis: RedisServer, nursery: trio.Nursery) -> Proxy:
    proxy = Proxy(redis.port)
    await nursery.start(proxy.run)
    return proxy
