"""How sessions take turns: how much each reads, how long it works, and when it is flushed.

Sessions that have something to do at the same time each work on one chunk of what their peer
sent, then pause. The first to resume flushes for all of them. So ten publishers whose
messages meet in ten subscribers cost ten writes a turn, not a hundred, and the pause is the
one checkpoint that fairness asks for anyway. A session that was the last to work, too, is
most likely alone, and is flushed on the spot.

When many have work, each reads less, so that a turn (and with it everyone's latency) stays
short.

A chunk that takes longer than its turn is worked on in several (`mist.turns`), and so is a flush:
nobody who publishes one message waits until ten thousand outboxes of somebody else's are written.
A flush writes the latest first, which are the caller's own, and as many as fit into its turn. The
rest is left to one task (`FlushScheduler.run`), which writes the oldest first.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

import trio

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.change import Change
from mist.turns import Account, Turns

__all__ = ["FlushScheduler"]

READ_ALONE: Final = 65_536  # bytes in one read while few sessions are busy
READ_SHARED: Final = 16_384  # while many are; still far more than one message
_FEW: Final = 8  # sessions
_LATE: Final = 0.02  # seconds that a delivery waits for the end of its chunk, at most

# What all have left to be written is one task's, so it has more turns than one of them.
_COST: Final = 1 / 8


class FlushScheduler:
    """The turns of one broker's sessions.

    Args:
        broker: whose outboxes are flushed.
        turns: bounds the time that each session takes from the others.

    Attributes:
        read_size: bytes that a session should read for its next chunk.
    """

    __slots__ = (
        "_broker",
        "_chunks",
        "_flushed",
        "_last",
        "_left",
        "_left_at",
        "_running",
        "_turns",
        "_working",
        "read_size",
    )

    def __init__(self, broker: Broker, turns: Turns) -> None:
        self.read_size = READ_ALONE
        self._broker = broker
        self._turns = turns
        self._chunks = 0  # worked on in this turn
        self._last = ""
        self._working = 0  # who have queued, and will queue more
        self._flushed = 0.0  # when somebody last did, on the clock of the turns
        self._left = Change()
        self._left_at: float | None = None  # when a flush first left something to `run`
        self._running = False

    async def run(self) -> None:
        """Write what flushes have left, until cancelled. Until then they leave nothing."""
        broker, turns, account = self._broker, self._turns, Account(_COST)
        self._running = True
        try:
            while True:
                while self._left_at is None:
                    await self._left.wait()
                for _ in broker.flush_in_steps(oldest_first=True):
                    if turns.over:
                        await turns.wait(account)
                if broker.meters is not None:
                    broker.meters.publish_to_write.observe(turns.now - self._left_at)
                self._left_at = None
        finally:
            self._running = False

    async def every(self, seconds: float, look: Callable[[float], Iterable[object]]) -> None:
        """Look after each of many every so many seconds, in turns, until cancelled.

        Thousands that came together are due in one moment.

        Args:
            look: the steps of one time, which may queue and need not flush; given trio's time.
        """
        account = Account()
        while True:
            await trio.sleep(seconds)
            await self._turns.drive(look(trio.current_time()), account)
            self.flush()

    async def work(
        self,
        steps: Iterable[object],
        account: Account,
        *,
        late: bool = False,
        shielded: bool = False,
    ) -> None:
        """Do what queues deliveries, in turns; `pause` comes after it.

        Cancelled, it leaves the rest undone.

        Args:
            account, late: as for `Turns.wait`.
            shielded: whether it is not cancelled once it has begun. Costs nothing where it
                needn't wait, which a cancel scope around it would.
        """
        turns = self._turns
        began = turns.now
        self._working += 1
        try:
            for _ in steps:
                if turns.spent(began):
                    if shielded:
                        with trio.CancelScope(shield=True):
                            await self.rest(account, late=late)
                    else:
                        await self.rest(account, late=late)
        finally:
            self._working -= 1

    def storing(self) -> AbstractContextManager[None]:
        """While a thread stores what is published: replays and connections wait."""
        return self._turns.ahead_of_late()

    @property
    def now(self) -> float:
        """The clock, for `spent`."""
        return self._turns.now

    def spent(self, began: float) -> bool:
        """Whether work that began then has to `rest` before its next step; see `Turns`."""
        return self._turns.spent(began)

    async def rest(self, account: Account, *, late: bool = False) -> None:
        """In the middle of a chunk: let others have their turns, until this one's is due again."""
        # A flush a turn would be many small writes in the place of a large one.
        if self._turns.now - self._flushed > _LATE:
            self.flush()
        await self._turns.wait(account, late=late)

    async def pause(self, session: str, outbox: Outbox | None = None) -> bool:
        """See to it that what was queued before this call is flushed.

        Where it waits and is cancelled, the flush happens all the same.

        Args:
            session: the name of the one that has worked on a chunk.
            outbox: its own, where its peer was only answered. Then, and where nothing else is
                queued, there is nothing to share, and it is answered at once.

        Returns:
            whether this was a checkpoint, so that others had their turn.
        """
        broker = self._broker
        ready = broker.ready
        if (
            session == self._last
            or self._working
            or self._left_at is not None
            or (outbox is not None and (not ready or (len(ready) == 1 and ready[0] is outbox)))
        ):
            # Where there is much of others', it would be on top of this one's after a checkpoint.
            self.flush()
            return False
        self._last = session
        self._chunks += 1
        flushes = broker.flushes
        try:
            await trio.lowlevel.checkpoint()
        finally:
            # A flush since then, by the first session, has written ours too, or has left it.
            if broker.flushes == flushes:
                self.read_size = READ_ALONE if self._chunks <= _FEW else READ_SHARED
                self._chunks = 0
                self.flush()
        return True

    def flush(self) -> bool:
        """Write what is queued, the latest first, as far as that fits into this turn.

        The rest is written by `run`.

        Returns:
            whether there is no rest. Nearly always.
        """
        self._flushed = self._turns.now
        for _ in self._broker.flush_in_steps():
            if self._running and self._turns.over:
                if self._left_at is None:
                    self._left_at = self._flushed
                self._left.notify()
                return False
        return True
