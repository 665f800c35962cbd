"""Engines, each kind in turn: a realm of its own for each test, and any number of nodes on it."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mist.engine.contract import Engine
from mist.engine.opening import open_engine

Connect = Callable[[], Awaitable[Engine]]


@pytest.fixture(params=["memory"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Another connection to the same realm, each time it is called."""
    url = f"memory://{secrets.token_hex(4)}"
    opened: list[Engine] = []

    async def connect() -> Engine:
        opened.append(await open_engine(url))
        return opened[-1]

    yield connect
    for engine in opened:
        await engine.close()


@pytest.fixture
async def engine(connect: Connect) -> Engine:
    return await connect()
