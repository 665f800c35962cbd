"""One poll a client: a newer one ends those before, whose answers are not waited for any more.

A page that subscribes to a channel "from now on" (-1) may mean a now of long ago, by the time at
which its poll arrives:

- After an answer that it got while it was paused, it polls again no sooner than 15 seconds after
  it polled last, and only that poll names the channel. So now is when its last poll ended.
- With each channel that it subscribes to, it ends its poll and sends another one. Where it has not
  read yet what the first poll was told, it asks for the first channel from now on once more, and
  means the now of its first poll.

A page that has read how far the channel is asks by number; but a page that is paused keeps what it
reads for later, and asks from now on again. Both have been told the same, and only time tells them
apart: what was told just before the poll ended (`_UNREAD`) counts as not read.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from mist.bus.feed import Feed
from mist.http.bus_questions import NOW, Question
from mist.http.subscribers import PollSession
from mist.sessions.close_reason import CloseReason

__all__ = ["SUPERSEDED", "OpenPoll", "Polls"]

SUPERSEDED: Final = CloseReason(1000, "another poll of this client")

Client = tuple[str, str]
"""The token's id, and the client id."""

_MEMORY: Final = 90.0  # seconds; a hidden page polls once a minute
_MOST: Final = 10_000  # clients that are remembered
_UNREAD: Final = 2.0  # seconds in which a page may not have read yet what it was told
_MOST_UNREAD: Final = 10_000  # channels, of all clients, whose now is remembered


@attrs.define(eq=False)
class OpenPoll:
    """A client's poll, while it is open.

    Attributes:
        number: among its client's; 0 where it has none.
        since: channels that it asks for from now on, to the id that was the newest then.
        session: which reads for it.
        feed: what it reads.
        told: when its client was told for the first time how far those channels are; None where
            it was not.
    """

    number: int
    since: Mapping[str, int]
    session: PollSession
    feed: Feed
    told: float | None = None

    def unread(self, now: float) -> Mapping[str, int]:
        """Channel to the id up to which its client has read, or keeps what it has read."""
        if self.told is None or now - self.told <= _UNREAD:
            return self.since
        read = self.feed.place
        return {channel: max(start, read) for channel, start in self.since.items()}


@attrs.define(eq=False)
class _Ended:
    """A client's last poll, which has ended.

    Attributes:
        number: the poll's.
        newest: the newest id that it was told of, or might have been.
        at: when it ended.
        unread: as `OpenPoll.unread`; of channels that aren't in it, `newest`.
    """

    number: int
    newest: int
    at: float
    unread: Mapping[str, int]


class Polls:
    """The polls of all clients, one for each.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._open: dict[Client, OpenPoll] = {}
        self._ended: dict[Client, _Ended] = {}  # the one that ended last at the end
        self._unread: deque[_Ended] = deque()  # those with unread channels, in the same order
        self._channels = 0  # unread ones of all of these

    def since(self, client: Client, question: Question, newest: int) -> dict[str, int]:
        """What "now" means in a new poll: channels that it asks for from now on, to ids.

        Args:
            client: whose.
            question: what it asks.
            newest: the newest id.
        """
        start, unread = self._before(client, question.number, newest)
        return {
            channel: unread.get(channel, start)
            for channel, place in question.places.items()
            if place == NOW
        }

    def _before(self, client: Client, number: int, newest: int) -> tuple[int, Mapping[str, int]]:
        """What the poll before leaves: up to where all has been told, and the exceptions."""
        now = self._clock()
        if (poll := self._open.get(client)) is not None:
            # Pages end their poll when they subscribe: to them it is now.
            return newest, (poll.unread(now) if 0 < poll.number < number else {})
        ended = self._ended.get(client)
        if ended is None or not ended.number < number or now - ended.at > _MEMORY:
            return newest, {}
        return ended.newest, ended.unread

    def note_told(self, poll: OpenPoll) -> None:
        """A poll's client is being told how far the channels are."""
        if poll.told is None:
            poll.told = self._clock()

    def note_end(self, client: Client, poll: OpenPoll, newest: int, *, answered: bool) -> None:
        """A poll has ended.

        Args:
            client: whose.
            poll: which; nothing is noted of polls without a number.
            newest: the newest id that it was told of, or might have been.
            answered: whether it got its answer, to the end.
        """
        if poll.number <= 0:
            return
        known = self._ended.pop(client, None)
        if known is not None and known.number > poll.number:
            self._ended[client] = known
            return
        now = self._clock()
        ended = _Ended(poll.number, newest, now, {} if answered else poll.unread(now))
        self._ended[client] = ended
        if len(self._ended) > _MOST:
            del self._ended[next(iter(self._ended))]
        if ended.unread:
            self._unread.append(ended)
            self._channels += len(ended.unread)
        while self._channels > _MOST_UNREAD:
            first = self._unread.popleft()
            self._channels -= len(first.unread)
            first.unread = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def only(self, client: Client, poll: OpenPoll) -> Iterator[None]:
        """Have this be the client's only poll while the block runs.

        Of two the one with the lower number ends, as `SUPERSEDED`; of equal ones the older.
        """
        other = self._open.get(client)
        if other is not None and other.number > poll.number:
            poll.session.end(SUPERSEDED)
            yield
            return
        if other is not None:
            other.session.end(SUPERSEDED)
        self._open[client] = poll
        try:
            yield
        finally:
            if self._open.get(client) is poll:
                del self._open[client]
