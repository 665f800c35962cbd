"""Deliveries that wake a reader of the history, and bring nothing themselves."""

from collections.abc import Callable, MutableSequence, Sequence
from typing import Final

import trio

from mist.broker.backlog import Written
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.change import Change
from mist.message import Envelope
from mist.wire import Entry, WireForm

__all__ = ["WAKEUPS", "WakeupOutbox"]


class _WakeupForm(WireForm):
    """No bytes for any message, only their number."""

    name = "wakeups"
    delivers = False

    def count_whole(self, wire: bytes, end: int) -> int:
        # What an outbox of this form has queued are answers, of which a client takes all or none.
        return 0

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


WAKEUPS: Final = _WakeupForm()
"""The form of a `WakeupOutbox`."""


class WakeupOutbox(Outbox):
    """An outbox whose deliveries wake a task that reads them in the history. For one task.

        outbox.arm()
        ...                     read what there is
        await outbox.wait()     more has come since `arm`

    Nothing of a delivery is queued, so it is never full of them; what the task has read is
    queued as in any other outbox.

    Args:
        form: `WAKEUPS`.
        limits, ready, on_dropping, on_overrun, written: as for every outbox.
    """

    __slots__ = ("_changed", "_room", "_woken")

    def __init__(
        self,
        form: WireForm,
        limits: OutboxLimits,
        ready: MutableSequence[Outbox],
        *,
        on_dropping: Callable[[Outbox], None] = lambda outbox: None,
        on_overrun: Callable[[str], None] = lambda reason: None,
        written: Written | None = None,
    ) -> None:
        super().__init__(
            form, limits, ready, on_dropping=on_dropping, on_overrun=on_overrun, written=written
        )
        self._woken = False
        self._changed = Change()
        self._room = Change()
        self.on_room = self._room.notify

    def put(self, wire: bytes, count: int) -> bool:
        """Take note that there are messages, unless deliveries have ended."""
        if self.muted:
            return False
        self.wake()
        return True

    def defer(self, count: int) -> None:
        """Account for messages that wake nobody any more: none was due."""

    def wake(self) -> None:
        """Wake the task, as a delivery does."""
        self._woken = True
        self._changed.notify()

    def arm(self) -> None:
        """From now on, `wait` is for what comes. Call it ahead of reading what there is."""
        self._woken = False

    async def wait(self, deadline: float = float("inf")) -> bool:
        """Wait for a delivery since `arm`. A checkpoint.

        Args:
            deadline: on trio's clock.

        Returns:
            Whether there was one.
        """
        with trio.move_on_at(deadline):
            await trio.lowlevel.checkpoint()
            while not self._woken:
                await self._changed.wait()
        return self._woken

    async def wait_for_room(self) -> None:
        """Wait until the peer has taken most of what is queued, or is gone. A checkpoint."""
        await trio.lowlevel.checkpoint()
        while not self.has_room_to_replay:
            await self._room.wait()
