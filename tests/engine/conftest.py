"""Engines, each kind in turn: a realm of its own for each test, and any number of nodes on it."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mist.engine.contract import Engine
from mist.engine.opening import open_engine
from mist.history import Durability
from tests.engine.postgres_server import PostgresServers
from tests.engine.redis_server import RedisServers

Connect = Callable[[], Awaitable[Engine]]


KINDS = ["memory", "redis wheel", "redis system", "postgres wheel", "postgres system"]


def realm_url(
    kind: str, name: str, redis_servers: RedisServers, postgres_servers: PostgresServers
) -> str:
    """The URL of a realm on an engine of some kind, such as those of `KINDS`."""
    family, _, which = kind.partition(" ")
    match family:
        case "redis":
            return redis_servers.get(which).url(name)
        case "postgres":
            return postgres_servers.get(which).url(name)
        case _:
            return f"memory://{name}"


@pytest.fixture(params=KINDS)
async def connect(
    request: pytest.FixtureRequest, redis_servers: RedisServers, postgres_servers: PostgresServers
) -> AsyncIterator[Connect]:
    """Another connection to the same realm, each time it is called. It has entered."""
    url = realm_url(request.param, secrets.token_hex(4), redis_servers, postgres_servers)
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
