"""Schedule: a task waits for what is due next of many things.

    schedule.set(session, 1798761600.0)
    while True:
        for session in await schedule.due(50):
            …

It sleeps until the first is due, a second at most; where nothing is set, until something is: then
nobody pays for it. The clock may be set, as clocks of hosts are, and so it is looked at every
second while anything is set, however far. What comes and goes meanwhile, and is due later, wakes
nobody: to wake a task for each connection took a tenth of what the connection did.
"""

import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from mist.change import Change
from mist.deadlines import Deadlines

__all__ = ["Schedule"]

_T = TypeVar("_T")

_LOOK: Final = 1.0  # seconds


class Schedule(Generic[_T]):
    """See the module. What is set is hashable; equal things are one. One task waits.

    Args:
        now: Unix seconds.
    """

    __slots__ = ("_changed", "_deadlines", "_looks", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._deadlines = Deadlines[_T]()
        self._changed = Change()
        self._looks = math.inf  # when the task wakes by itself

    def __len__(self) -> int:
        """How many are set."""
        return len(self._deadlines)

    def set(self, one: _T, at: float) -> None:
        """Have one be due at a time, in place of any other.

        Args:
            at: Unix seconds. One that has passed is due in a moment.
        """
        if self._deadlines.set(one, at) and at < self._looks:
            self._changed.notify()

    def remove(self, one: _T) -> None:
        """Take one back, if it is set."""
        self._deadlines.remove(one)

    async def due(self, most: int) -> list[_T]:
        """Wait until any is due, and take those that are, the earliest first. A checkpoint.

        Args:
            most: of them; the others are due still.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if (first := self._deadlines.first) is None:
                self._looks = math.inf
                await self._changed.wait()
            elif first > (now := self._now()):
                self._looks = min(first, now + _LOOK)
                with trio.move_on_after(self._looks - now):
                    await self._changed.wait()
            else:
                return self._deadlines.due(now, most)
