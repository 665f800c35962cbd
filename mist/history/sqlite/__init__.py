"""`sqlite:///…`: a log in a file that one server writes and others may read.

What it is made of, from the outside in:

    threads     where the work is done: one that writes, a few that read
    files       what is open, and the lock of the one who writes
    block store       blocks over one connection: `rows` writes and reads them, `search` finds them
    keys        the table of keys
    channels    the tables of channels and of blocks' numbers in them
directory   which blocks hold a tag
    chores      housekeeping, in pieces
    presence    whether the file is still there
    database    its tables, who may write it, what its errors mean; over `mist.sqlite`
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
    # The last await: no cancellation can come between the open files and their owner.
    files = await trio.to_thread.run_sync(lambda: Files(path, durability, read_only=read_only))
    if not read_only:
        lower_switch_interval()
    return Log(Threads(files), files.metadata, files.durability, read_only=read_only)
