"""Where a client is at home: the process and the event loop that it was connected in.

Elsewhere nobody would read its connection, and a call would wait for ever: in a child after
`os.fork`, in a second `asyncio.run`, in another thread. There every call raises instead.
(Refused: to reconnect in a child. It would repeat the parent's subscriptions, and deliver to both
what only one of them asked for.)
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

import sniffio

from mist.client.errors import NoEventLoop
from mist.errors import ClientClosed

__all__ = ["FORKED", "Home"]

FORKED: Final = "this client was connected by another process; connect again after a fork"
_FORKED_LOOP: Final = (
    f"{FORKED}, with mist.client.sync or after an exec: a child can't use its parent's event loop"
)
_ELSEWHERE: Final = (
    "this client was connected in another event loop; connect in the one that uses it, "
    "or use mist.client.sync"
)


async def _go_on() -> None:
    pass


class Home:
    """The process and the event loop in which it is made.

    Attributes:
        checkpoint_if_cancelled: as trio has it, for what mostly has nothing to wait for. Under
            asyncio it does nothing: there a task is only ever cancelled where it waits.

    Raises:
        NoEventLoop: there is none.
    """

    def __init__(self) -> None:
        try:
            library = sniffio.current_async_library()
        except sniffio.AsyncLibraryNotFoundError:
            raise NoEventLoop from None
        if library not in ("asyncio", "trio"):
            raise NoEventLoop(f"mist.client runs under asyncio and trio, not under {library}")
        self._process = os.getpid()
        self.checkpoint_if_cancelled: Callable[[], Awaitable[None]] = _go_on
        # Once a message, so by the loops' own calls: anyio's cost ten times as much.
        self._current: Callable[[], object] = asyncio.get_running_loop
        if library == "trio":
            from trio.lowlevel import checkpoint_if_cancelled, current_trio_token

            self._current = current_trio_token
            self.checkpoint_if_cancelled = checkpoint_if_cancelled
        self._loop = self._current()

    @property
    def forked(self) -> bool:
        """Whether this is a copy in another process."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raises `ClientClosed` in another process."""
        if self.forked:
            raise ClientClosed(_FORKED_LOOP)

    def check(self) -> None:
        """Check that it is here.

        Raises:
            ClientClosed: it isn't, so the client can't be used.
        """
        self.check_process()
        try:
            here = self._current() == self._loop
        except RuntimeError:  # no loop of that kind
            here = False
        if not here:
            raise ClientClosed(_ELSEWHERE)
