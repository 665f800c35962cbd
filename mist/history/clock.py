"""A log's clock: the wall clock made monotonic.

A wall clock that is set back would otherwise make messages that are older than those before
them, and retention by age would stop at them. Nor may time stand still until the clock has
caught up: if the clock was years ahead for a moment, as after a start without a network, nothing
in the log would age for years. So while the clock is behind what has been stamped already, time
advances at half its speed:

    clock     10   20   15   17   19   21   23   25
    time      10   20   20   21   22   23   23   25

A clock that jumps ahead, or a suspended machine, does not count as elapsed time: at most an hour
is counted at a time.

The age of a message, too, is by the wall clock, less what that was set ahead by since then (see
`leaps`); or, if it is from the clock's future, by the log's own time.
"""

from typing import Final

import attrs

from mist.history.layout import MICROSECONDS
from mist.history.leaps import Leap

__all__ = ["Clock", "Moment"]

_LEAP: Final = 3600 * MICROSECONDS


@attrs.frozen
class Moment:
    """Now, by the wall clock and by the log.

    Attributes:
        wall: the clock, microseconds since 1970.
        log: the log's time, microseconds since 1970; never less than `wall`.
        leaps: of the wall clock.
    """

    wall: int
    log: int
    leaps: tuple[Leap, ...] = ()

    def age(self, time: int) -> int:
        """Microseconds since something was stamped with `time`."""
        if time > self.wall:
            return self.log - time
        # A leap counts only while the clock is ahead of where it led: else it was undone.
        leapt = [
            leap.by
            for leap in self.leaps
            if time <= leap.after and leap.after + leap.by <= self.wall
        ]
        return max(self.wall - time - sum(leapt), 0)


@attrs.define
class Clock:
    """See the module.

    Attributes:
        latest: the log's time as last read, microseconds.
        leaps: of the wall clock, oldest first.
    """

    latest: int = 0
    leaps: tuple[Leap, ...] = attrs.field(default=(), init=False)
    _wall: int | None = attrs.field(default=None, init=False)  # the wall clock then

    def stamp(self, time: float) -> int:
        """The log's time, microseconds, of what arrived at `time` (Unix seconds)."""
        self.latest = self.moment(time).log
        return self.latest

    def moment(self, time: float) -> Moment:
        """The moment `time` (Unix seconds), for the age of messages."""
        wall = round(time * MICROSECONDS)
        if self._wall is None or not self._wall <= wall < self.latest:
            self._wall = wall
        elif wall - self._wall > _LEAP:
            self._wall = wall - _LEAP
        step = (wall - self._wall) // 2
        self._wall += 2 * step
        self.latest += step
        return Moment(wall, max(wall, self.latest), self.leaps)
