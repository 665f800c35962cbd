"""How sessions take turns: how much each reads, how long it works, and when it is flushed.

Sessions that have something to do at the same time each work on one chunk of what their peer
sent, then pause. The first to resume flushes for all of them. So ten publishers whose
messages meet in ten subscribers cost ten writes a turn, not a hundred, and the pause is the
one checkpoint that fairness asks for anyway. A session that was the last to work, too, is
most likely alone, and is flushed on the spot.

When many have work, each reads less, so that a turn (and with it everyone's latency) stays
short.

A chunk that takes longer than its turn is worked on in several (`mist.turns`). What it has queued
by then is flushed at its end, or every `_LATE` seconds: a flush a turn would be many small writes
in the place of a large one. So it is its session that sees to those outboxes, and others, which
flush their own in between, don't pay for them.
"""

from collections.abc import Iterable
from typing import Final

import trio

from mist.broker.broker import Broker
from mist.turns import Account, Turns

__all__ = ["FlushScheduler"]

READ_ALONE: Final = 65_536  # bytes in one read while few sessions are busy
READ_SHARED: Final = 16_384  # while many are; still far more than one message
_FEW: Final = 8  # sessions
_LATE: Final = 0.02  # seconds that a delivery waits for the end of its chunk, at most


class FlushScheduler:
    """The turns of one broker's sessions.

    Args:
        broker: whose outboxes are flushed.
        turns: bounds the time that each session takes from the others.

    Attributes:
        read_size: bytes that a session should read for its next chunk.
    """

    __slots__ = ("_broker", "_chunks", "_flushed", "_last", "_turns", "_working", "read_size")

    def __init__(self, broker: Broker, turns: Turns) -> None:
        self.read_size = READ_ALONE
        self._broker = broker
        self._turns = turns
        self._chunks = 0  # worked on in this turn
        self._last = ""
        self._working = 0  # who flush later what is queued now
        self._flushed = 0.0  # when somebody last did, on trio's clock

    async def work(self, steps: Iterable[object], account: Account) -> None:
        """Do what queues deliveries, in turns; `pause` comes after it.

        Cancelled, it leaves the rest undone.
        """
        turns = self._turns
        self._working += 1
        try:
            for _ in steps:
                if turns.over:
                    await self.rest(account)
        finally:
            self._working -= 1

    @property
    def crowded(self) -> bool:
        """Whether what has yet to begin should `rest` first; see `Turns`."""
        return self._turns.crowded

    async def rest(self, account: Account) -> None:
        """In the middle of a chunk: let others have their turns, until this one's is due again."""
        if trio.current_time() - self._flushed > _LATE:
            await self.flush(account)
        await self._turns.wait(account)

    async def pause(self, session: str, account: Account) -> bool:
        """See to it that what was queued before this call is flushed.

        Where it waits and is cancelled, the flush happens all the same.

        Args:
            session: the name of the one that has worked on a chunk.
            account: whom its turns are charged to.

        Returns:
            whether this was a checkpoint, so that others had their turn.
        """
        broker = self._broker
        if session == self._last:
            return await self._flush(account, leave=self._working > 0)
        self._last = session
        self._chunks += 1
        flushes = broker.flushes
        try:
            await trio.lowlevel.checkpoint()
        finally:
            # A flush since then, by the first session, has written ours too.
            if broker.flushes == flushes:
                self.read_size = READ_ALONE if self._chunks <= _FEW else READ_SHARED
                self._chunks = 0
                await self._flush(account, leave=self._working > 0)
            elif broker.ready and self._working:  # or left it to those who work still
                await self._flush(account, leave=self._working > 0)
        return True

    async def flush(self, account: Account) -> bool:
        """Have all that is queued written, in turns. Cancelled, it is written all the same.

        Returns:
            whether others had their turns meanwhile. Nearly always it fits into this one.
        """
        return await self._flush(account, leave=False)

    async def _flush(self, account: Account, *, leave: bool) -> bool:
        """As `flush`. Where it takes long, the rest may be left to those who queued most of it."""
        turns = self._turns
        rested = False
        self._flushed = trio.current_time()
        self._working += 1
        try:
            for _ in self._broker.flush_in_steps():
                if not turns.over:
                    continue
                if leave:  # ours was the first to be written
                    break
                with trio.CancelScope(shield=True):
                    await turns.wait(account)
                rested = True
        finally:
            self._working -= 1
        return rested
