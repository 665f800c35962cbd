"""Real servers for tests: all parts real, ports free ones, the registry in memory.

Without a history unless a test names one: then what a test sends is what is told to others, to
the byte and in the same turn.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mist.config import Config, Listen
from mist.server import Server, open_server


@asynccontextmanager
async def running(data: Path, **settings: object) -> AsyncIterator[Server]:
    """A server on loopback, TCP first and WebSocket second, until the end of the block."""
    settings.setdefault("listen", (Listen("tcp", "127.0.0.1", 0), Listen("ws", "127.0.0.1", 0)))
    settings.setdefault("tokens", "memory://")
    settings.setdefault("history", "none")
    config = Config(data=data, **settings)  # type: ignore[arg-type]
    async with open_server(config) as server, trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()
