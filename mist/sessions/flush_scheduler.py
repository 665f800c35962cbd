"""How sessions take turns: how much each reads, and when what they queued is flushed.

Sessions that have something to do at the same time each work on one chunk of what their peer
sent, then pause. The first to resume flushes for all of them. So ten publishers whose
messages meet in ten subscribers cost ten writes a turn, not a hundred, and the pause is the
one checkpoint that fairness asks for anyway. A session that was the last to work, too, is
most likely alone, and is flushed on the spot.

When many have work, each reads less, so that a turn (and with it everyone's latency) stays
short.
"""

from typing import Final

import trio

from mist.broker.broker import Broker

__all__ = ["FlushScheduler"]

READ_ALONE: Final = 65_536  # bytes in one read while few sessions are busy
READ_SHARED: Final = 16_384  # while many are; still far more than one message
_FEW: Final = 8  # sessions


class FlushScheduler:
    """The turns of one broker's sessions.

    Args:
        broker: whose outboxes are flushed.

    Attributes:
        read_size: bytes that a session should read for its next chunk.
    """

    __slots__ = ("_broker", "_chunks", "_last", "read_size")

    def __init__(self, broker: Broker) -> None:
        self.read_size = READ_ALONE
        self._broker = broker
        self._chunks = 0  # worked on in this turn
        self._last = ""

    async def pause(self, session: str) -> bool:
        """See to it that what was queued before this call is flushed.

        Where it waits and is cancelled, the flush happens all the same.

        Args:
            session: the name of the one that has worked on a chunk.

        Returns:
            whether this was a checkpoint, so that others had their turn.
        """
        broker = self._broker
        if session == self._last:
            broker.flush()
            return False
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
                broker.flush()
        return True
