"""Real servers for tests: all parts real, ports free ones, the registry in memory.

Without a history unless a test names one: then what a test sends is what is told to others, to
the byte and in the same turn.

Most tests use the fixture `server` of tests/conftest.py, which `server_settings` configures.
"""

import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import attrs
import trio

from mist.commands import Register
from mist.config import Config, Listen
from mist.server import Server, open_server


class Served(Protocol):
    """A server that a client of tests can reach, in this process or in one of its own."""

    @property
    def urls(self) -> Sequence[str]:
        """Where it listens."""


def listeners(*schemes: str) -> tuple[Listen, ...]:
    """A listener on loopback for each scheme, on a free port."""
    return tuple(Listen(scheme, "127.0.0.1", 0) for scheme in schemes)


def port_of(url: str) -> int:
    """The port of a listener's URL."""
    return int(url.rpartition(":")[2].rstrip("/"))


@asynccontextmanager
async def running(
    data: Path,
    *,
    grants: Mapping[str, Collection[str]] | None = None,
    failed_auth_delay: float | None = None,
    **settings: object,
) -> AsyncIterator[Server]:
    """A server on loopback, TCP first and WebSocket second, until the end of the block.

    Args:
        data: the data directory; made if it is missing.
        grants: tokens that are registered, and their tags.
        failed_auth_delay: see `HubLimits`; seconds.
        settings: of `Config`. Where there is a history, it mirrors the engine that the environment
            names in MIST_TEST_ENGINE, if any.
    """
    settings.setdefault("listen", listeners("tcp", "ws"))
    settings.setdefault("tokens", "memory://")
    settings.setdefault("history", "none")
    if settings["history"] != "none" and "MIST_TEST_ENGINE" in os.environ:
        settings.setdefault("engine", os.environ["MIST_TEST_ENGINE"])
    config = Config(data=data, **settings)  # type: ignore[arg-type]
    async with open_server(config) as server, trio.open_nursery() as nursery:
        if failed_auth_delay is not None:
            server.hub.hub_limits = attrs.evolve(
                server.hub.hub_limits, failed_auth_delay=failed_auth_delay
            )
        await nursery.start(server.run)
        if grants:
            await server.hub.registry.execute(
                [Register(token, frozenset(tags)) for token, tags in grants.items()]
            )
        yield server
        nursery.cancel_scope.cancel()
