"""Presence, as a client watches it: who is subscribed to a tag set, kept up to date.

    async with client.presence(["room:7"]) as room:
        print(room.count, room.attendees)
        async for change in room:
            print(change.joined, change.left, room.attendees)

It outlives connections: after each reconnect the server tells the whole list again, and what has
changed since is told as any other change.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mist.client.dialect import PresenceTold, Request
from mist.client.errors import Revoked, Temporary, remote_error
from mist.client.feed import Feed
from mist.client.home import Home
from mist.client.postponed import Postponed, passes_by_itself
from mist.commands import UnwatchPresence, WatchPresence
from mist.errors import MistError
from mist.message import TagSet
from mist.replies import Attendee, Failed, PresenceChanged, Present, Reply

__all__ = ["PresenceTable", "PresenceWatch"]

_QUEUED: Final = 1_000  # changes for a slow reader; then they become one


_Name = tuple[str, str, float, int]


def _name_of(attendee: Attendee) -> _Name:
    """Who it is; of the nameless only the time tells."""
    user, client = attendee.user, attendee.client
    return user, client, 0.0 if user or client else attendee.since, 0


def _next(name: _Name) -> _Name:
    """Of another nameless one that came at the same time."""
    return *name[:3], name[3] + 1


def _add(there: dict[_Name, Attendee], attendees: Iterable[Attendee]) -> dict[_Name, Attendee]:
    for each in attendees:
        name = _name_of(each)
        while name in there and not (each.user or each.client):
            name = _next(name)
        there[name] = each
    return there


def _remove(there: dict[_Name, Attendee], attendees: Iterable[Attendee]) -> None:
    """Undo `_add`."""
    for each in attendees:
        name = _name_of(each)
        while _next(name) in there:
            name = _next(name)
        there.pop(name, None)


class PresenceWatch(Feed[Present | PresenceChanged]):
    """The presence at one tag set, and an iterator of its changes. Made by `Client.presence`.

    Iterating gives a `PresenceChanged` for who joined and left, and a `Present` where the list
    was replaced by another, or by a number.

    Attributes:
        tags: the tag set.
        count: how many are there.
    """

    def __init__(self, tags: TagSet, home: Home) -> None:
        super().__init__(home)
        self.tags = tags
        self.count = 0
        self._there: dict[_Name, Attendee] | None = None
        self._known = False

    @property
    def attendees(self) -> Sequence[Attendee] | None:
        """Who is there, as of the last message from the server; None while there are too many for a
        list. The first to come first, those who joined later behind them."""
        return None if self._there is None else list(self._there.values())

    @property
    def present(self) -> Present:
        """The same as one value."""
        return Present(self.tags, self.count, self.attendees)

    def __aiter__(self) -> "PresenceWatch":
        return self

    async def __anext__(self) -> Present | PresenceChanged:
        """The next change, waited for. Cancellation loses none."""
        self._home.check()
        await self._home.checkpoint_if_cancelled()
        await self._until_queued()
        return self._queue.popleft()

    # for the client

    def take(self, told: Present | PresenceChanged) -> None:
        """The server has told something."""
        if isinstance(told, PresenceChanged) and not self._known:
            return  # it is told to another watch of these tags, and in the list that will come
        self.count = told.count
        if isinstance(told, PresenceChanged):
            listed = dict(self._there or {})
            _remove(listed, told.left)
            self._there = _add(listed, told.joined)
            self._put(told)
            return
        before, known = self._there, self._known
        self._known = True
        self._there = there = None if told.attendees is None else _add({}, told.attendees)
        if not known:
            self.settled.set()  # the first list is no change
        elif before is None or there is None:
            self._put(told)
        else:
            joined = [each for name, each in there.items() if name not in before]
            left = [each for name, each in before.items() if name not in there]
            if joined or left:
                self._put(PresenceChanged(self.tags, joined, left, self.count))

    def _put(self, told: Present | PresenceChanged) -> None:
        if len(self._queue) >= _QUEUED:
            self._queue.clear()
            told = self.present
        self._queue.append(told)
        self._arrived.notify()


class PresenceTable:
    """What a client watches, each tag set once at the server.

    Args:
        send: queues a request for the current connection.
        postponed: takes what the server refused for the moment.
    """

    def __init__(self, send: Callable[[Request], None], postponed: Postponed) -> None:
        self._send = send
        self._postponed = postponed
        self._watches: dict[TagSet, list[PresenceWatch]] = {}
        self._online = False

    def add(self, watch: PresenceWatch) -> None:
        """Watch; see its `settled`. The server tells all of it again, to all who watch the same."""
        self._watches.setdefault(watch.tags, []).append(watch)
        if self._online:
            self._send(Request(WatchPresence(watch.tags)))

    def remove(self, watch: PresenceWatch) -> None:
        """End a watch, and the server's with the last one of its tag set. Idempotent."""
        watch.end()
        watches = self._watches.get(watch.tags, [])
        if watch not in watches:
            return
        watches.remove(watch)
        if not watches:
            del self._watches[watch.tags]
            if self._online:
                self._send(Request(UnwatchPresence(watch.tags)))

    def resubscribe(self) -> list[Request]:
        """What a new connection is asked for."""
        self._online = True
        return [Request(WatchPresence(tags)) for tags in self._watches]

    def disconnected(self) -> None:
        """The connection is gone."""
        self._online = False

    def told(self, event: PresenceTold) -> None:
        """The server has told something."""
        for watch in self._watches.get(event.told.tags, ()):
            watch.take(event.told)

    def settle(self, command: WatchPresence | UnwatchPresence, reply: Reply) -> None:
        """The reply to a request."""
        tags = command.tags
        if isinstance(command, UnwatchPresence):
            if passes_by_itself(reply):
                self._postponed.add(command, lambda: tags not in self._watches)
            return
        if not isinstance(reply, Failed):
            return
        error = remote_error(str(reply.error))
        if not isinstance(error, Temporary):
            self._end(tags, error)
            return
        # Those who were told before a reconnect wait; a new watch is refused.
        watches = self._watches.get(tags, [])
        for each in [it for it in watches if not it.settled.is_set()]:
            watches.remove(each)
            each.end(error)
        if watches:
            self._postponed.add(command, lambda: tags in self._watches)
        else:
            self._watches.pop(tags, None)

    def ended(self, tags: TagSet) -> None:
        """The server tells no more, since the token has lost the right."""
        self._end(tags, Revoked(tags))

    def fail(self, error: MistError) -> None:
        """The client has ended."""
        for tags in list(self._watches):
            self._end(tags, error)

    def _end(self, tags: TagSet, error: MistError) -> None:
        for watch in self._watches.pop(tags, []):
            watch.end(error)
