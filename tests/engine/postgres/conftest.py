"""A realm for each test on a PostgreSQL, which may do to it what it likes, and engines on it."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import trio

from mist.engine.opening import open_engine
from mist.engine.postgres.engine import PostgresEngine
from mist.history import Durability
from tests.engine.outages import QUICK
from tests.engine.postgres_server import HOST, PostgresServer, PostgresServers
from tests.engine.proxy import Proxy

Open = Callable[..., Awaitable[PostgresEngine]]


@pytest.fixture
def postgres_kind() -> str:
    """Which server, of `KINDS`. Modules differ in it; the contract's tests run on each."""
    return "wheel"


@pytest.fixture
def postgres(postgres_kind: str, postgres_servers: PostgresServers) -> Iterator[PostgresServer]:
    """A server that may be killed: others find it started again."""
    server = postgres_servers.get(postgres_kind)
    yield server
    if not server.runs:
        server.start()


@pytest.fixture
def realm() -> str:
    return secrets.token_hex(4)


@pytest.fixture
async def open_on(postgres: PostgresServer, realm: str) -> AsyncIterator[Open]:
    """Opens and enters an engine, on a port in place of the server's; closed after the test."""
    opened: list[PostgresEngine] = []

    async def open_on(
        port: int = 0, database: str = "postgres", **options: object
    ) -> PostgresEngine:
        url = postgres.url(**{"realm": realm, **options})
        place = f"{HOST}:{port or postgres.port}/{database}"
        url = url.replace(f"{HOST}:{postgres.port}/postgres", place)
        engine = await open_engine(url, durability=Durability.POWER)
        assert isinstance(engine, PostgresEngine)
        opened.append(engine)
        await engine.enter(secrets.token_hex(4))
        return engine

    yield open_on
    for each in opened:
        await each.close()


@pytest.fixture
def schema(realm: str) -> str:
    """That of the realm, as an identifier."""
    return f'"mist_{realm}"'


@pytest.fixture
async def engine(open_on: Open) -> PostgresEngine:
    return await open_on()


@pytest.fixture
async def quick(open_on: Open) -> PostgresEngine:
    """An engine that does not wait for long."""
    await open_on()  # makes the realm, which takes its time
    return await open_on(**QUICK)


@pytest.fixture
async def proxy(postgres: PostgresServer, nursery: trio.Nursery) -> Proxy:
    proxy = Proxy(postgres.port)
    await nursery.start(proxy.run)
    return proxy
