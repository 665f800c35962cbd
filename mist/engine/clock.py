"""An engine's clock, as a node knows it: the time by which its log's messages are too old or not.

Each heartbeat tells it; in between, and while the engine doesn't answer, it goes on by a clock of
the node that can't be set. The node's own time of day is not looked at.
"""

from collections.abc import Callable
from typing import Final

from mist.engine.members import BeatReply
from mist.history.leaps import steady_seconds

__all__ = ["EngineClock"]

_MICROSECOND: Final = 1e-6  # seconds


class EngineClock:
    """See the module.

    Args:
        time: of the log's last record, microseconds: no time before the first heartbeat is
            earlier.
        steady: seconds, also while the machine is suspended.
    """

    def __init__(self, time: int, steady: Callable[[], float] = steady_seconds) -> None:
        self._steady = steady
        self._ahead = time * _MICROSECOND - steady()

    def note_beat(self, reply: BeatReply) -> None:
        """The engine has answered a heartbeat."""
        self._ahead = reply.time - self._steady()

    def now(self) -> float:
        """Unix seconds. Goes back where the engine's clock does."""
        return self._steady() + self._ahead
