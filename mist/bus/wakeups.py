"""Deliveries that bring nothing but word that there is something to read in the history."""

from collections.abc import Sequence
from typing import Final

import trio

from mist.broker.outbox import Outbox
from mist.change import Change
from mist.message import Envelope
from mist.wire import Entry, WireForm

__all__ = ["NUDGES", "Nudged"]


class _Nudges(WireForm):
    """No message at all, only that there are some."""

    name = "nudges"

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        return [b""] * sum(entry[2] for entry in entries)

    def join(
        self,
        entries: Sequence[Entry],
        *,
        framable: bool,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, int]:
        return b"", sum(entry[2] for entry in entries)


NUDGES: Final = _Nudges()


class Nudged:
    """Waits for an outbox whose form is `NUDGES`. For one task.

    Args:
        outbox: nothing but this writes from it.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._nudged = False
        self._changed = Change()
        outbox.flush = self.nudge
        # More than fits is no more than a nudge either.
        outbox.on_behind = lambda after: self.nudge()

    def nudge(self) -> None:
        """Wake up the task that waits."""
        self._outbox.sent(0)  # which is all there is: none of it has a byte
        self._outbox.resume_live()
        self._nudged = True
        self._changed.notify()

    def arm(self) -> None:
        """From now on, `wait` is for what comes. Call it ahead of reading what there is."""
        self._nudged = False

    async def wait(self, deadline: float = float("inf")) -> bool:
        """Wait for a nudge since `arm`.

        Args:
            deadline: on trio's clock.

        Returns:
            Whether there was one.
        """
        with trio.move_on_at(deadline):
            await trio.lowlevel.checkpoint()
            while not self._nudged:
                await self._changed.wait()
        return self._nudged
