"""Engines, each kind in turn: a realm of its own for each test, and any number of nodes on it."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing

from mist.auth.opening import open_registry
from mist.auth.registry import Registry
from mist.engine.contract import Engine
from mist.engine.node import open_node
from mist.engine.opening import open_engine
from mist.history import Durability
from mist.sessions.close_reason import HISTORY_FORKED
from mist.sessions.hub import Hub
from mist.sessions.node_sequencer import NodeSequencer
from tests.engine.flaky import FlakyEngine
from tests.engine.nodes import Server, Start
from tests.engine.postgres_server import PostgresServers
from tests.engine.redis_servers import RedisServers

Connect = Callable[[], Awaitable[Engine]]


KINDS = [
    "memory",
    "redis wheel",
    "redis system",
    "redis valkey",
    "redis cluster",
    "postgres wheel",
    "postgres system",
]


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


@pytest.fixture(params=["memory", "redis system", "postgres system"])
def realm(
    request: pytest.FixtureRequest, redis_servers: RedisServers, postgres_servers: PostgresServers
) -> str:
    """The URL of a new realm."""
    return realm_url(request.param, secrets.token_hex(4), redis_servers, postgres_servers)


@pytest.fixture
async def start(realm: str, nursery: trio.Nursery) -> AsyncIterator[Start]:
    """Starts another node of the realm, each time it is called."""
    async with AsyncExitStack() as stack:

        async def start(
            mirror: str = "memory://",
            timeout: float = 5.0,
            registry: Registry | None = None,
            *,
            busy: bool = False,
        ) -> Server:
            node = await stack.enter_async_context(
                await open_node(realm, mirror, durability=Durability.PROCESS)
            )
            node.engine = engine = FlakyEngine(node.engine)
            engine.busy = busy
            hub = Hub(registry or await open_registry("memory://"))
            await nursery.start(hub.turns.run)
            hub.sequencer = sequencer = await NodeSequencer.following(
                hub.broker,
                node,
                hub.flush_scheduler,
                registry=hub.registry,
                timeout=timeout,
                on_epoch=partial(hub.end_subscribers, HISTORY_FORKED),
            )
            server = Server(node, engine, hub, sequencer)
            nursery.start_soon(server.run)
            await trio.testing.wait_all_tasks_blocked()
            return server

        yield start
        nursery.cancel_scope.cancel()
