"""Newcomers: where connections wait for the first that their peers say.

An event loop wakes all tasks whose sockets have become readable in one pass. Of thousands of peers
that connect in one moment, a hundred speak while one pass goes on, and then the next one takes ten
milliseconds, though each of them has hardly more to do than to wait for its turn (`mist.turns`).

So newcomers' sockets are watched apart from all others, and a few of those that are readable are
woken in a pass. While there is a crowd of them, everyone else then has as much time for itself as
these took. Which of them are next is fair to where they come from (see `mist.turn_queue`): who
comes alone does not wait for a thousand connections of another address. Whose peer is no newcomer
any more waits like everyone.
"""

import select
from typing import Final

import attrs
import trio

from mist.turn_queue import Account, Accounts, Place, TurnQueue
from mist.turns import let_others_run

__all__ = ["Newcomers"]

_AT_ONCE: Final = 8  # woken in a pass: half a millisecond of work
_LOOKED_AT: Final = 64  # readable sockets that are put in the queue in a pass
_CROWD: Final = 64  # that wait
_REST: Final = 0.005  # seconds, at most: others may take long, too


@attrs.define(eq=False)
class _Newcomer:
    """One that waits.

    Attributes:
        account: of its origin.
        woken: set once its turn has come.
        place: in the queue, once its socket is readable.
    """

    account: Account
    woken: trio.Event = attrs.field(factory=trio.Event)
    place: Place | None = None


class Newcomers:
    """See the module. For one event loop.

    Until `run` has begun, and after it has ended, and on systems without epoll(7), newcomers wait
    like everyone.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None  # while `run` runs
        self._waiting: dict[int, _Newcomer] = {}  # by file descriptors, those in `_epoll`
        self._queue = TurnQueue(trio.current_time)  # of those that are readable
        self._queued = 0
        self._accounts = Accounts()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting) + self._queued

    async def readable(self, fd: int, origin: str) -> None:
        """Wait until a socket is readable, or nearly so: it may have to be called again.

        Args:
            fd: open while this waits. For one task at a time.
            origin: of its peer; see `mist.origins`.
        """
        if self._epoll is None:
            await trio.lowlevel.wait_readable(fd)
            return
        self._epoll.register(fd, select.EPOLLIN)
        newcomer = _Newcomer(self._accounts.of(origin))
        self._waiting[fd] = newcomer
        try:
            await newcomer.woken.wait()
        finally:
            if self._waiting.get(fd) is newcomer:
                self._forget(fd)
            elif newcomer.place is not None and not newcomer.woken.is_set():
                newcomer.place.left = True
                self._queued -= 1

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
                    if self._queue:
                        await trio.lowlevel.checkpoint()
                    else:
                        await trio.lowlevel.wait_readable(epoll.fileno())
                    began = trio.current_time()
                    for fd, _ in epoll.poll(0, _LOOKED_AT):
                        self._enter(self._forget(fd))
                    taken = self._queue.take(_AT_ONCE)
                    self._queued -= len(taken)
                    for place in taken:
                        place.woken.set()
                    if len(taken) == _AT_ONCE and self.waiting >= _CROWD:
                        await self._rest(began)
            finally:
                for newcomer in self._waiting.values():
                    newcomer.woken.set()
                self._waiting.clear()
                for place in self._queue.take_all():
                    place.woken.set()
                self._queued = 0
                self._epoll = None

    async def _rest(self, began: float) -> None:
        """Wait until some have gone on, which were woken since `began`, and as long again."""
        await let_others_run()
        await trio.sleep(min(trio.current_time() - began, _REST))

    def _enter(self, newcomer: _Newcomer) -> None:
        newcomer.place = place = self._queue.place(newcomer.account, late=False)
        place.woken = newcomer.woken
        self._queue.enter(place)
        self._queued += 1

    def _forget(self, fd: int) -> _Newcomer:
        assert self._epoll is not None
        self._epoll.unregister(fd)
        return self._waiting.pop(fd)
