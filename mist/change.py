"""A condition variable without a lock: any number of tasks wait for the next change.

    while not self.items:
        await self._changed.wait()

    self.items.append(item)
    self._changed.notify()

In one event loop nothing runs between the look at the condition and the wait, so there is no
lock to take, and no change is missed between the two.

Refused: a fresh `trio.Event` for each wait, kept in an attribute. The second task that waits
replaces the event of the first, which then sleeps until something else wakes it, or for ever.
"""

import trio

__all__ = ["Change"]


class Change:
    """What several tasks wait for, again and again.

    Holds nothing while nobody waits: one of these is in each session.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: trio.Event | None = None

    async def wait(self) -> None:
        """Wait for the next `notify`. A checkpoint.

        A call that came before this one does not count, and another waiting task may act on the
        change first: look at the condition before and after. Cancellation leaves nothing
        behind that a later `wait` or `notify`, or another waiting task, could tell.
        """
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()

    def notify(self) -> None:
        """Wake every task that waits now. O(waiting); nothing where none does."""
        event = self._event
        if event is not None:
            self._event = None
            event.set()
