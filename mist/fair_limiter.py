"""So many at a time; who is next is fair to accounts.

Behind a limit that is first come, first served, who asks a thousand times keeps everyone else
waiting behind all of these. Here those who wait are numbered as in `mist.turn_queue`: who has asked
for little comes before who has asked for much, however long that has been waiting.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mist.turn_queue import Account, Accounts, TurnQueue

__all__ = ["FairLimiter"]


class FairLimiter:
    """See the module. Nothing is kept of who has no place and waits for none.

    Args:
        most: at a time.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._queue = TurnQueue(trio.current_time)
        self._accounts = Accounts()

    @asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[None]:
        """Wait for a place, and have it in the block. A checkpoint only where it waits.

        Args:
            name: of the account; places are shared fairly between accounts.
        """
        # Kept by this task, and gone with the last that has it.
        account = self._accounts.of(name)
        await self._take(account)
        try:
            yield
        finally:
            self._give()

    async def _take(self, account: Account) -> None:
        place = self._queue.place(account, late=False)
        # While any is free, nobody waits but who was cancelled.
        if self._free:
            self._free -= 1
            self._queue.pass_by(place)
            return
        place.woken = trio.Event()
        self._queue.enter(place)
        try:
            await place.woken.wait()
        except BaseException:
            place.left = True
            if place.woken.is_set():
                self._give()
            raise

    def _give(self) -> None:
        taken = self._queue.take(1)
        if taken:
            taken[0].woken.set()
        else:
            self._free += 1
