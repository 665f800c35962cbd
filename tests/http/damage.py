"""A log with damage in it, for tests."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from mist.server import Server
from tests.servers import listeners, running

__all__ = ["LARGE", "damage", "keeping"]

LISTEN = listeners("http")
LARGE = b"x" * 66_000
"""Data of a message that has a block of its own: `mist.history.compaction` leaves it alone."""


@asynccontextmanager
async def keeping(folder: Path) -> AsyncIterator[Server]:
    """A server without a secret whose log is a file; see `damage`."""
    settings = {"history": f"sqlite:///{folder}/history.db", "durability": "process"}
    async with running(folder, listen=LISTEN, **settings) as server:
        yield server


def damage(folder: Path, *ids: int) -> None:
    """Spoil the blocks that hold these ids."""
    with closing(sqlite3.connect(folder / "history.db")) as database, database:
        for id_ in ids:
            done = database.execute(
                "UPDATE block SET body = zeroblob(length(body)) WHERE ? BETWEEN first AND last",
                (id_,),
            )
            assert done.rowcount == 1
