"""Presence for sessions: who watches which tag sets, whether they may, and telling them.

    a change       is only noted (`mist.broker.presence`)
    a round        four times a second, while anybody watches: rooms whose tags have changed are
                   looked at again, and what that comes to is told to all who watch
    a slow peer    with much in its outbox is told nothing meanwhile, and the whole list afterwards

Everything is bounded: the tag sets that a session, a token and the server watch; the attendees
of each (`mist.broker.presence.MOST_LISTED`); what is queued for a peer that doesn't read.

A right that a token loses ends what it watches by it, before anything else runs.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import trio

from mist.auth import Record
from mist.broker.presence import Presence, Seen
from mist.change import Change
from mist.errors import CommandError, NotGranted, PresenceOff, TooManyWatches
from mist.message import TagSet
from mist.replies import PresenceChanged, PresenceEnded, Present
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.presence_rooms import PresenceRoom, PresenceRooms, RoomKey, Watcher
from mist.turns import Account

__all__ = ["OtherNodes", "PresenceService"]

log = logging.getLogger("mist.presence")

_ROUND: Final = 0.25  # seconds
_CROWDED: Final = 1.0  # seconds between two looks at who is only counted
_OF_SESSION: Final = 100  # tag sets watched
_OF_TOKEN: Final = 200  # by all sessions of a token
_OF_SERVICE: Final = 10_000  # by a session without a token
_MOST: Final = 20_000  # by all
_BEHIND: Final = 65_536  # bytes queued for a peer above which it is told later
_TOLD: Final = 100  # watchers told in a step


class OtherNodes(Protocol):
    """Who is present at the other nodes; see `mist.sessions.realm_presence`."""

    async def run(self) -> None:
        """Keep it up to date, until cancelled."""

    async def learn(self, keys: Iterable[RoomKey]) -> None:
        """Ask them now, unless it is known already."""

    def seen(self, key: RoomKey) -> Iterable[Seen]:
        """Who is there, of each node, as of a moment ago."""

    def forget(self, key: RoomKey) -> None:
        """It is watched no more."""


class PresenceService:
    """See the module.

    Args:
        presence: who is where, at this server.
        scheduler: of the broker.

    Attributes:
        presence: as given.
        others: None on a single server. Set before the first session.
        refused: watches that were refused, by the error's code.
        ended: watches that ended with a token's right.
        told: notices queued, one for each watcher.
    """

    def __init__(self, presence: Presence, scheduler: FlushScheduler) -> None:
        self.presence = presence
        self.others: OtherNodes | None = None
        self.refused: Counter[str] = Counter()
        self.ended = 0
        self.told = 0
        self._scheduler = scheduler
        self._rooms = PresenceRooms()
        self._of: dict[Watcher, dict[RoomKey, None]] = {}
        self._of_token: Counter[str] = Counter()
        self._stale: dict[PresenceRoom, None] = {}  # to be looked at
        self._due: dict[PresenceRoom, None] = {}  # whose views have to be updated at some time
        self._behind: dict[PresenceRoom, None] = {}  # with watchers that are
        self._account = Account()
        self._looking = trio.Lock()
        self._opened = Change()

    # what peers ask for

    async def watch(self, watcher: Watcher, tags: TagSet) -> Present:
        """Watch a tag set. From what is returned on, the watcher is told of changes.

        Raises:
            PresenceOff, NotGranted, TooManyWatches: nothing has changed; it is counted.
        """
        room = await self._room(lambda: self._allowed(watcher, tags))
        self._enter(watcher, room)
        return room.view.present

    async def look(self, record: Record | None, tags: TagSet) -> Present:
        """Who is present at a tag set now, without watching it.

        Args:
            record: the token's, as it is now; None for services.

        Raises:
            PresenceOff, NotGranted, TooManyWatches: it is counted.
        """
        return (await self._room(lambda: self._visible(record, tags))).view.present

    async def _room(self, allowed: Callable[[], RoomKey]) -> PresenceRoom:
        try:
            key = allowed()
            room = self._rooms.open(key, trio.current_time())
            self.presence.watched = True
            self._opened.notify()
            if not room.view.is_ready:
                await self._first_look(room)
                if allowed() != key:  # it may have changed meanwhile
                    raise NotGranted
        except CommandError as error:
            self.refused[error.code] += 1
            raise
        return room

    async def _first_look(self, room: PresenceRoom) -> None:
        if self.others is not None:
            await self.others.learn([room.key])
        async with self._looking:
            if not room.view.is_ready:
                await self._look([room])
        if self._rooms.find(room.key) is not room:
            raise TooManyWatches  # it had to make room for others

    def unwatch(self, watcher: Watcher, tags: TagSet) -> None:
        """Undo `watch`; nothing happens where there is none."""
        for key in [each for each in self._of.get(watcher, ()) if each[0] == tags]:
            self._exit(watcher, key)

    def drop(self, watcher: Watcher) -> None:
        """A session has ended: it watches nothing more."""
        for key in list(self._of.get(watcher, ())):
            self._exit(watcher, key)

    def moving(self, watcher: Watcher) -> None:
        """A session is about to get another token; `recheck` follows."""
        if watcher.record is not None:
            self._count(watcher.record.id, -len(self._of.get(watcher, ())))

    def moved(self, watcher: Watcher) -> None:
        """A session has got another token."""
        if watcher.record is not None:
            self._count(watcher.record.id, len(self._of.get(watcher, ())))
        self.recheck(watcher)

    def recheck(self, watcher: Watcher) -> None:
        """A session's token has changed: what it may watch no more ends, and it is told so."""
        for key in list(self._of.get(watcher, ())):
            record = watcher.record
            if record is not None and (
                key[1] != record.attributes.site or not record.grant.may_see(key[0])
            ):
                self._exit(watcher, key)
                self.ended += 1
                watcher.tell_presence(PresenceEnded(key[0]))

    @property
    def watches(self) -> int:
        """How many tag sets are watched, each once for each session. O(sessions that watch)."""
        return sum(map(len, self._of.values()))

    # rights and bounds

    def _visible(self, record: Record | None, tags: TagSet) -> RoomKey:
        """The room that a token may look at."""
        if record is not None and not record.grant.may_see(tags):
            raise NotGranted
        if not all(map(self.presence.tags.covers, tags)):
            raise PresenceOff
        key = tags, "" if record is None else record.attributes.site
        if key not in self._rooms and len(self._rooms) >= _MOST:
            # What was only asked about makes room, so that nobody can ask so much that others
            # may not.
            idlest = self._rooms.idlest
            if idlest is None:
                raise TooManyWatches
            self._forget(idlest)
        return key

    def _allowed(self, watcher: Watcher, tags: TagSet) -> RoomKey:
        """The room that a session may watch."""
        if watcher.ended is not None:
            raise NotGranted
        record = watcher.record
        key = self._visible(record, tags)
        own = self._of.get(watcher, {})
        if key not in own and (
            len(own) >= (_OF_SERVICE if record is None else _OF_SESSION)
            or (record is not None and self._of_token[record.id] >= _OF_TOKEN)
        ):
            raise TooManyWatches
        return key

    def _count(self, token: str, change: int) -> None:
        self._of_token[token] += change
        if not self._of_token[token]:
            del self._of_token[token]

    def _enter(self, watcher: Watcher, room: PresenceRoom) -> None:
        self._rooms.enter(room, watcher)
        own = self._of.setdefault(watcher, {})
        if room.key not in own:
            own[room.key] = None
            if watcher.record is not None:
                self._count(watcher.record.id, 1)

    def _exit(self, watcher: Watcher, key: RoomKey) -> None:
        own = self._of[watcher]
        del own[key]
        if not own:
            del self._of[watcher]
        if watcher.record is not None:
            self._count(watcher.record.id, -1)
        room = self._rooms.find(key)
        assert room is not None
        self._rooms.exit(room, watcher, trio.current_time())

    def _forget(self, room: PresenceRoom) -> None:
        self._rooms.remove(room)
        for rooms in (self._stale, self._due, self._behind):
            rooms.pop(room, None)
        if self.others is not None:
            self.others.forget(room.key)

    # rounds

    async def run(self) -> None:
        """Tell those who watch, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_on)
            if self.others is not None:
                nursery.start_soon(self.others.run)

    async def _tell_on(self) -> None:
        while True:
            while not self._rooms:
                await self._opened.wait()
            await trio.sleep(_ROUND)
            try:
                await self._round()
            except Exception:
                # A mistake here costs those who watch a round, and not the server its life.
                log.exception("presence can't be told")

    async def _round(self) -> None:
        async with self._looking:
            now = trio.current_time()
            for room in self._rooms.expired(now):
                self._forget(room)
            if not self._rooms:
                self.presence.watched = False
                self.presence.changed.clear()
                return
            await self._scheduler.work(self._mark(now), self._account, late=True)
            ready = [each for each in self._stale if _is_time(each, now)]
            await self._look(ready)
            await self._scheduler.work(self._catch_up(), self._account, late=True)
        self._scheduler.flush()

    def note_changed(self, rooms: Iterable[RoomKey]) -> None:
        """Have rooms looked at again, since something has changed at another node."""
        for key in rooms:
            room = self._rooms.find(key)
            if room is not None:
                self._stale[room] = None

    @property
    def keys(self) -> list[RoomKey]:
        """What is watched. O(n)."""
        return [each.key for each in self._rooms]

    def concerned(self, tags: TagSet) -> list[RoomKey]:
        """What is watched of which a subscription under presence says something."""
        return [each.key for each in self._rooms.concerned(tags)]

    def _mark(self, now: float) -> Iterator[None]:
        changed, self.presence.changed = self.presence.changed, {}
        for tags in changed:
            self._stale.update(dict.fromkeys(self._rooms.concerned(tags)))
            yield
        for room in [each for each in self._due if (each.view.due or now) <= now]:
            self._stale[room] = None

    async def _look(self, rooms: Iterable[PresenceRoom]) -> None:
        """Look at rooms again, and tell what has changed. Under `_looking`."""
        for room in rooms:
            # What changes from here on marks it again.
            self._stale.pop(room, None)
            self._due.pop(room, None)
            await self._scheduler.work(self._looked_at(room), self._account, late=True)

    def _looked_at(self, room: PresenceRoom) -> Iterator[None]:
        view = room.view
        seen = yield from self.presence.look(view.tags, view.site)
        if self._rooms.find(room.key) is not room:
            return  # forgotten meanwhile
        if self.others is not None:
            seen = seen.with_others(self.others.seen(room.key))
        room.looked = trio.current_time()
        told = view.update(seen, room.looked)
        if view.due is not None:
            self._due[room] = None
        if told is None:
            return
        for number, watcher in enumerate(list(room.watchers), 1):
            if watcher in room.watchers:  # still
                self._tell(room, watcher, told)
            if not number % _TOLD:
                yield

    def _tell(self, room: PresenceRoom, watcher: Watcher, told: Present | PresenceChanged) -> None:
        if watcher.outbox.size > _BEHIND or watcher in room.behind:
            room.behind[watcher] = None
            self._behind[room] = None
            return
        self.told += 1
        watcher.tell_presence(told)

    def _catch_up(self) -> Iterator[None]:
        """Tell those who missed something all of it, once they have taken what was queued."""
        for room in list(self._behind):
            for watcher in [each for each in room.behind if each.outbox.size <= _BEHIND]:
                room.behind.pop(watcher, None)
                if watcher in room.watchers:
                    self._tell(room, watcher, room.view.present)
                yield
            if not room.behind:
                self._behind.pop(room, None)  # it may have had to make room for others meanwhile


def _is_time(room: PresenceRoom, now: float) -> bool:
    return room.view.is_listed or now - room.looked >= _CROWDED
