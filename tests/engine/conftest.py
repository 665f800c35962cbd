"""Engines, each kind in turn: a realm of its own for each test, and any number of nodes on it."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mist.engine.contract import Engine
from mist.engine.opening import open_engine
from mist.history import Durability
from tests.engine.redis_server import RedisServers

Connect = Callable[[], Awaitable[Engine]]


@pytest.fixture(params=["memory", "redis wheel", "redis system"])
async def connect(
    request: pytest.FixtureRequest, redis_servers: RedisServers
) -> AsyncIterator[Connect]:
    """Another connection to the same realm, each time it is called. It has entered."""
    kind, _, which = request.param.partition(" ")
    name = secrets.token_hex(4)
    url = redis_servers.get(which).url(name) if kind == "redis" else f"memory://{name}"
    opened: list[Engine] = []

    async def connect() -> Engine:
        engine = await open_engine(url, durability=Durability.PROCESS)
        opened.append(engine)
        await engine.enter(secrets.token_hex(4))
        return engine

    yield connect
    for engine in opened:
        await engine.close()


@pytest.fixture
async def engine(connect: Connect) -> Engine:
    return await connect()
