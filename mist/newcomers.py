"""Newcomers: where connections wait for the first that their peers say.

An event loop wakes all tasks whose sockets have become readable in one pass. Of thousands of peers
that connect in one moment, a hundred speak while one pass goes on, and then the next one takes ten
milliseconds, though each of them has hardly more to do than to wait for its turn (`mist.turns`).

So newcomers' sockets are watched apart from all others, and a few of those that are readable are
woken in a pass. While there is a crowd of them, everyone else then has as much time for itself as
these took. Whose peer is no newcomer any more waits like everyone.
"""

import select
from typing import Final

import trio

from mist.turns import let_others_run

__all__ = ["Newcomers"]

_AT_ONCE: Final = 8  # woken in a pass: half a millisecond of work
_CROWD: Final = 64  # that wait
_REST: Final = 0.005  # seconds, at most: others may take long, too


class Newcomers:
    """See the module. For one event loop.

    Until `run` has begun, and after it has ended, and on systems without epoll(7), newcomers wait
    like everyone.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None  # while `run` runs
        self._waiting: dict[int, trio.Event] = {}  # by file descriptors, those in `_epoll`

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def readable(self, fd: int) -> None:
        """Wait until a socket is readable, or nearly so: it may have to be called again.

        Args:
            fd: open while this waits. For one task at a time.
        """
        if self._epoll is None:
            await trio.lowlevel.wait_readable(fd)
            return
        self._epoll.register(fd, select.EPOLLIN)
        woken = self._waiting[fd] = trio.Event()
        try:
            await woken.wait()
        finally:
            if self._waiting.get(fd) is woken:
                self._forget(fd)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wake newcomers until cancelled."""
        if not hasattr(select, "epoll"):
            task_status.started()
            await trio.sleep_forever()
        with select.epoll() as epoll:
            self._epoll = epoll
            try:
                task_status.started()
                while True:
                    await trio.lowlevel.wait_readable(epoll.fileno())
                    began = trio.current_time()
                    ready = epoll.poll(0, _AT_ONCE)
                    for fd, _ in ready:
                        self._forget(fd).set()
                    if len(ready) == _AT_ONCE and self.waiting >= _CROWD:
                        await self._rest(began)
            finally:
                for woken in self._waiting.values():
                    woken.set()
                self._waiting.clear()
                self._epoll = None

    async def _rest(self, began: float) -> None:
        """Wait until some have gone on, which were woken since `began`, and as long again."""
        await let_others_run()
        await trio.sleep(min(trio.current_time() - began, _REST))

    def _forget(self, fd: int) -> trio.Event:
        assert self._epoll is not None
        self._epoll.unregister(fd)
        return self._waiting.pop(fd)
