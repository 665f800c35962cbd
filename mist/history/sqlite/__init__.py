"""`sqlite:///…`: a log in a file that one server writes and others may read.

How it is built, from the outside in:

    threads     the threads that run the work: one that writes, a few that read
    worker      the one that writes, which an event loop asks and hears of without detours
    files       the open files, and the writer's lock
    block_store blocks over one connection: `rows` writes and reads them, `search` finds them
    idempotency the table of keys
    commits     the table of writers
    channels    the tables of channels and of blocks' numbers in them
    directory   which blocks hold a tag
    maintenance checkpoints, indexing and vacuuming, in steps
    copying     a copy of a log that is in use, for backups
    database    its schema, the writer's lock, what its errors mean; over `mist.sqlite`
"""

import trio

from mist.errors import StartupError
from mist.history import Durability, History
from mist.history.log import Log
from mist.history.sqlite.database import LOG
from mist.history.sqlite.files import Files
from mist.history.sqlite.threads import Threads, lower_switch_interval

__all__ = ["open_sqlite"]


async def open_sqlite(location: str, durability: Durability, *, read_only: bool) -> History:
    """See `open_history`. Cancellation leaves nothing open.

    Args:
        location: `/` and the path, which is taken as it is.
        durability: POWER or PROCESS.
    """
    if durability is Durability.NOTHING:
        raise StartupError("history: a file can't be less durable than process")
    await trio.lowlevel.checkpoint()
    path = LOG.locate(location)
    # The last await: no cancellation can separate the open files from their owner.
    files = await trio.to_thread.run_sync(lambda: Files(path, durability, read_only=read_only))
    if not read_only:
        lower_switch_interval()
    return Log(Threads(files), files.metadata, files.durability, read_only=read_only)
