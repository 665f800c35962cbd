"""Pausing deliveries to a peer that has fallen behind, or that replays: the history has what comes.

    live      deliveries are queued
    paused    they are left to the history, which is replayed: a message is *owed* until then
    holding   paused, and those that come now are kept here, too; when they follow what was
              replayed without a gap, they are queued, and none is read again
    ended     none are taken ever again: what is owed, or comes, is *gone*

What else becomes of messages is told in `outbox`.
"""

from collections.abc import Callable, MutableSequence
from typing import Any

from mist.broker.backlog import Backlog, Written
from mist.broker.outbox_limits import OutboxLimits

__all__ = ["PausableBacklog"]


def _nothing() -> None:
    pass


class PausableBacklog(Backlog):
    """See the module.

    Args:
        limits: bounds of what is queued.
        ready, written: see `Backlog`.

    Attributes:
        owed: messages left to the history, and not replayed yet.
        gone: messages that were not delivered before the session ended.
    """

    __slots__ = (
        "_held",
        "_held_size",
        "_limits",
        "_settled_gone",
        "_spent",
        "_surplus",
        "gone",
        "owed",
    )

    def __init__(
        self, limits: OutboxLimits, ready: MutableSequence[Any], written: Written | None = None
    ) -> None:
        super().__init__(limits.bytes, limits.messages, ready, written)
        self.owed = 0
        self.gone = 0
        self._settled_gone = 0
        self._surplus = 0  # replayed without being owed
        self._limits = limits
        self._spent = False  # whether deliveries have ended for good
        self._held: list[tuple[bytes, int, Callable[[], None]]] | None = None  # see `hold`
        self._held_size = 0  # bytes

    @property
    def muted(self) -> bool:
        """Whether no deliveries are taken: they ended by `mute` or `close`, or are paused."""
        return self._max_messages < 0

    @property
    def ended(self) -> bool:
        """Whether no deliveries are taken ever again."""
        return self._spent

    @property
    def paused(self) -> bool:
        """Whether deliveries come from the history for now; see `pause`."""
        return self._max_messages < 0 and not self._spent

    def pause(self) -> None:
        """Take no deliveries for now: they will be replayed from the history (`replay`)."""
        self._max_messages = -1
        self.let_go()

    def hold(self) -> None:
        """While deliveries are paused, keep those that come from now on, until `resume_live`."""
        self.let_go()
        self._held = []
        self._held_size = 0

    @property
    def holding(self) -> bool:
        """Whether all deliveries since `hold` are here, so that none need be replayed."""
        return self._held is not None

    @property
    def waiting(self) -> int:
        """Messages that are neither delivered nor dropped yet: queued, held or owed."""
        held = 0 if self._held is None else sum([count for _, count, _ in self._held])
        return self.queued + held + self.owed

    def let_go(self) -> None:
        """Forget what was held: it is owed, and will be replayed where it is still wanted."""
        held, self._held = self._held, None
        for _, count, _ in held or ():
            self.owed += count

    def defer(self, count: int) -> None:
        """Account for messages that are not queued, since deliveries are paused or have ended."""
        if self._spent:
            self.gone += count
        else:
            self.owed += count

    def keep(self, wire: bytes, count: int, on_resumed: Callable[[], None] = _nothing) -> bool:
        """Deal with a delivery that `put` refused because deliveries are paused.

        Args:
            on_resumed: called if it is held and queued at last.

        Returns:
            False where they aren't, and the outbox is merely full.
        """
        if self._max_messages >= 0:
            return False
        if self._held is None:
            self.defer(count)
            return True
        self._held.append((wire, count, on_resumed))
        self._held_size += len(wire)
        if self._held_size > self._limits.bytes // 4:
            self.let_go()
        return True

    def resume_live(self) -> None:
        """Take deliveries again, first of all those held; unless they have ended meanwhile."""
        if self._spent:
            return
        self._max_messages = self._limits.messages
        held, self._held = self._held, None
        for wire, count, on_resumed in held or ():
            self.replay(wire, count)
            on_resumed()
        self._write_off()

    def replay(self, wire: bytes, count: int) -> None:
        """Queue messages from the history, however much is queued; mind `has_room_to_replay`."""
        if count and not self._spent:
            self.append(wire, count)

    def note_replayed(self, count: int, *, owed: bool) -> None:
        """Account for messages from the history that are queued, or can't be written.

        Args:
            owed: whether they were published while deliveries were paused, and deferred then.
        """
        if owed:
            self.owed -= count
        else:
            self._surplus += count

    def _write_off(self) -> None:
        """Nothing that is owed will be replayed any more: a subscription ended meanwhile, the
        history was trimmed, or the session has ended."""
        if self.owed > 0:
            self.gone += self.owed
        else:
            self._surplus -= self.owed
        self.owed = 0

    def settle(self) -> tuple[int, int]:
        """Messages that are gone, and that were replayed without being owed, since the last call.

        For the broker's totals; see `Broker.settle`.
        """
        gone, surplus = self.gone - self._settled_gone, self._surplus
        self._settled_gone, self._surplus = self.gone, 0
        return gone, surplus

    @property
    def replay_bytes(self) -> int:
        """Bytes to replay at a time, at most: so much that replies fit in beside it."""
        return self._limits.bytes // 4 + 1

    @property
    def has_room_to_replay(self) -> bool:
        """Whether at most a quarter of the bound is queued. Room is left for live deliveries."""
        return self._spent or (
            4 * self.size <= self._max_bytes and 4 * self.queued <= self._limits.messages
        )

    def mute(self) -> None:
        """Take no more deliveries: those to come are gone, as is what is owed. Replies pass."""
        self._max_messages = -1
        self.let_go()
        self._spent = True
        self._write_off()
        if self.on_room is not None:
            self.on_room()
