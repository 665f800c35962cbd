"""Opening a message history by its URL: which member of the family its scheme names."""

from typing import TYPE_CHECKING

import trio

from mist.errors import StartupError
from mist.history import Durability, History

if TYPE_CHECKING:
    from mist.history.mirroring import Mirror

__all__ = ["open_history", "open_mirror"]


async def open_history(
    url: str, *, durability: Durability = Durability.POWER, read_only: bool = False
) -> History:
    """Open the log that `url` names, or create it. Close it after use.

    A `sqlite://` log that is opened to be written lowers the interpreter's switch interval, for
    the whole process and permanently: its threads would starve beside a busy event loop.

    Args:
        url: `memory://`, `sqlite:///history.db`.
        durability: what `append` waits for.
        read_only: to read while a server has it open. It must exist; methods that change it raise
            `HistoryUnavailable`.

    Raises:
        StartupError: one line that says why not: an unknown scheme, a directory that can't
            be written, a file that is damaged, in use, of another program or another version.
    """
    scheme, separator, location = url.partition("://")
    match scheme.lower() if separator else "":
        # Imported here, so that a member's dependencies are needed only where it is used.
        case "memory":
            from mist.history.memory import open_memory

            return await open_memory()
        case "sqlite":
            from mist.history.sqlite import open_sqlite

            return await open_sqlite(location, durability, read_only=read_only)
        case _:
            # Not the whole URL: that of a shared log may hold a password.
            raise StartupError(
                f"history: no such kind of URL: {scheme!r}; expected sqlite or memory"
                if separator
                else "history: not a URL; try sqlite:///history.db or memory://"
            )


async def open_mirror(url: str) -> "tuple[History, Mirror]":
    """Open the log that `url` names as a mirror of another.

    It survives a crash of the server, and where it doesn't survive one of the machine it is
    behind: what was acknowledged is kept elsewhere.

    Args:
        url: as for `open_history`.

    Raises:
        StartupError: as for `open_history`; or it has messages of its own.
    """
    from mist.history.mirroring import NotAMirror  # only for nodes of an engine

    history = await open_history(url, durability=Durability.PROCESS)
    try:
        return history, await history.mirror()
    except BaseException as error:
        with trio.CancelScope(shield=True):
            await history.close()
        if isinstance(error, NotAMirror):
            raise StartupError(
                "history: it has messages of its own, which an engine doesn't; name another file "
                "for the mirror"
            ) from None
        raise
