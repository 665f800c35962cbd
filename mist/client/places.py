"""Places: which position a reader is at who has taken some of the messages that were queued for it.

A message has an id and names no log, and the log may be another one while messages of the former
one are queued. So it is noted, beside the queue, where a position was known:

    queued    a:4 a:6 | a:2 a:3 |        of these, the reader has taken 3
    noted             2: after 1 of the new log, 4: after 9 of it, since it is live
    position          after 2 of the new log
"""

import attrs

from mist.client.position import Position

__all__ = ["Places"]


@attrs.frozen
class Places:
    """See the module. Never changed, so that another thread may look at them."""

    _noted: tuple[tuple[int, Position], ...] = ()

    def note(self, queued: int, position: Position, taken: int) -> "Places":
        """The same, and that who has taken so many messages has all up to a position.

        Args:
            queued: messages so far; no fewer than when it was noted before.
            taken: of them, by the reader. What it is past is forgotten.
        """
        past = [each for each in self._noted if each[0] <= taken]
        ahead = [each for each in self._noted if taken < each[0] < queued]
        return Places((*past[-1:], *ahead, (queued, position)))

    def after(self, taken: int, last: int | None) -> Position | None:
        """Where a reader is that has taken so many messages; None where that isn't known.

        Args:
            last: the id of the last of them.
        """
        for number, position in reversed(self._noted):
            if number < taken:  # that message came behind it
                return Position(position.epoch, max(position.id, last or 0))
            if number == taken:
                return position
        return None
