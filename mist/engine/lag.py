"""Lag: how many seconds a node is behind its engine's log.

By the engine's clock alone, and without reading what has not been applied yet: records come with
times, and each heartbeat tells the time and how far the log is. The first record that a node lacks
was appended later than the last one that it has applied, and later than the last heartbeat at which
it lacked none. So the lag is at most the time since the later of the two.

The second is what makes it right where hours lie between two records.
"""

from mist.engine.contract import Record
from mist.engine.members import BeatReply

__all__ = ["Lag"]

_MICROSECOND = 1e-6  # seconds


class Lag:
    """See the module.

    Args:
        offset: of the last record that was applied before.

    Attributes:
        seconds: as of the last heartbeat; 0 where no record is lacking. Until the first record is
            applied it counts from the first heartbeat.
    """

    def __init__(self, offset: int) -> None:
        self.seconds = 0.0
        self._offset = offset
        self._since = 0.0  # nothing that is lacking was appended before; 0 where it isn't known
        self._first = 0.0  # heartbeat at which something was lacking

    def note_applied(self, record: Record) -> None:
        """A record was applied."""
        self._offset = record.offset
        self._since = max(self._since, record.time * _MICROSECOND)

    def note_beat(self, reply: BeatReply) -> None:
        """The engine has answered a heartbeat."""
        if reply.offset <= self._offset:
            self._since = max(self._since, reply.time)
            self.seconds = 0.0
        else:
            self._first = self._first or reply.time
            self.seconds = max(reply.time - (self._since or self._first), 0.0)
