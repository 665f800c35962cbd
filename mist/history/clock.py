"""A log's time: the wall clock's, but it never goes back.

A clock that is set back would otherwise make messages that are older than those before them,
and retention by age would stop at them. Nor may time stand still until the clock has caught
up: one that was years ahead for a moment, at a start without a network, say, would make a
log in which nothing grows older for years, and which nothing leaves. So while the clock is
behind what has been stamped already, time goes on at half its speed:

    clock     10   20   15   17   19   21   23   25
    time      10   20   20   21   22   23   23   25

A clock that leaps ahead, or a server that was asleep, is no time that passed: no more than an
hour is counted at a time.

By the same token a message is as old as the clock says, or, if it is from the clock's future,
as the log's own time says.
"""

from typing import Final

import attrs

from mist.history.layout import MICROSECONDS

__all__ = ["Clock", "Moment"]

_LEAP: Final = 3600 * MICROSECONDS


@attrs.frozen
class Moment:
    """Now, by both reckonings.

    Attributes:
        wall: the clock, microseconds since 1970.
        log: the log's time, likewise; no lower.
    """

    wall: int
    log: int

    def age(self, time: int) -> int:
        """Microseconds since something was stamped with `time`."""
        return (self.wall if time <= self.wall else self.log) - time


@attrs.define
class Clock:
    """See the module.

    Attributes:
        latest: the log's time when it was last asked for, microseconds.
    """

    latest: int = 0
    _wall: int | None = attrs.field(default=None, init=False)  # the clock then

    def stamp(self, time: float) -> int:
        """The log's time, microseconds, for what came at `time` (Unix seconds)."""
        self.latest = self.moment(time).log
        return self.latest

    def moment(self, time: float) -> Moment:
        """What `time` (Unix seconds) means for the age of messages."""
        wall = round(time * MICROSECONDS)
        if self._wall is None or not self._wall <= wall < self.latest:
            self._wall = wall
        elif wall - self._wall > _LEAP:
            self._wall = wall - _LEAP
        step = (wall - self._wall) // 2
        self._wall += 2 * step
        self.latest += step
        return Moment(wall, max(wall, self.latest))
