"""A hub over a history, each kind in turn; the last three are the mirrors of engines."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mist.auth.opening import open_registry
from mist.engine.node import open_node
from mist.history import Durability, History
from mist.history.opening import open_history
from mist.sessions.hub import Hub
from tests.engine.postgres_server import PostgresServers
from tests.engine.redis_servers import RedisServers
from tests.sessions.storing import NODES, sequence


@pytest.fixture(params=["memory", "sqlite", "engine", "redis", "postgres"])
async def history(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    redis_servers: RedisServers,
    postgres_servers: PostgresServers,
) -> AsyncIterator[History]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/history.db"
    if request.param in ("engine", "redis", "postgres"):
        engine = "memory://"
        if request.param == "redis":
            engine = redis_servers.get("wheel").url(secrets.token_hex(4))
        elif request.param == "postgres":
            engine = postgres_servers.get("wheel").url(secrets.token_hex(4))
        async with await open_node(engine, url, durability=Durability.PROCESS) as node:
            NODES[node.history] = node
            yield node.history
    else:
        async with await open_history(url) as history:
            yield history


@pytest.fixture
async def hub(history: History, nursery: trio.Nursery) -> Hub:
    hub = Hub(await open_registry("memory://"))
    await nursery.start(hub.turns.run)
    hub.sequencer = await sequence(hub.broker, history, hub.flush_scheduler)
    nursery.start_soon(hub.sequencer.run)
    return hub
