"""One poll a client: a newer one ends those before, whose answers are not waited for any more.

Between two polls a client may wait: after an answer that it got while it was paused it polls again
no sooner than 15 seconds after it polled last. Only that poll names a channel that its page has
subscribed to meanwhile, "from now on". So "now" is when the client's last poll ended.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from mist.sessions.close_reason import CloseReason
from mist.sessions.session import Session

__all__ = ["SUPERSEDED", "Polls"]

SUPERSEDED: Final = CloseReason(1000, "another poll of this client")

Client = tuple[str, str]
"""The token's id, and the client id."""

_MEMORY: Final = 90.0  # seconds; a hidden page polls once a minute
_MOST: Final = 10_000  # clients that are remembered


@attrs.frozen
class _Ended:
    """A client's last poll, which has ended.

    Attributes:
        number: the poll's.
        newest: the newest id when it ended.
        at: when that was.
    """

    number: int
    newest: int
    at: float


class Polls:
    """The polls of all clients, one for each.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._newest: dict[Client, tuple[int, Session]] = {}
        self._ended: dict[Client, _Ended] = {}  # the one that ended last at the end

    def now(self, client: Client, number: int) -> int | None:
        """Which id was the newest when the client's last poll ended.

        Args:
            client: whose.
            number: of its new poll.

        Returns:
            None where that isn't known, was too long ago, or the polls are not numbered; and where
            a poll is still open, since pages end theirs when they subscribe.
        """
        ended = self._ended.get(client)
        if (
            client in self._newest
            or ended is None
            or not ended.number < number
            or self._clock() - ended.at > _MEMORY
        ):
            return None
        return ended.newest

    def note_end(self, client: Client, number: int, newest: int) -> None:
        """A poll of a client has ended.

        Args:
            client: whose.
            number: the poll's; nothing is noted of polls without one.
            newest: the newest id that it was told of, or might have been.
        """
        if number <= 0:
            return
        known = self._ended.pop(client, None)
        if known is not None and known.number > number:
            self._ended[client] = known
            return
        self._ended[client] = _Ended(number, newest, self._clock())
        if len(self._ended) > _MOST:
            del self._ended[next(iter(self._ended))]

    def __len__(self) -> int:
        return len(self._newest)

    @contextmanager
    def only(self, client: Client, number: int, session: Session) -> Iterator[None]:
        """Have this be the client's only poll while the block runs.

        Of two the one with the lower number ends, as `SUPERSEDED`; of equal ones the older.
        """
        other = self._newest.get(client)
        if other is not None and other[0] > number:
            session.end(SUPERSEDED)
            yield
            return
        if other is not None:
            other[1].end(SUPERSEDED)
        self._newest[client] = number, session
        try:
            yield
        finally:
            if self._newest.get(client) == (number, session):
                del self._newest[client]
