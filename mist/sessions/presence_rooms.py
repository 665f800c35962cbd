"""Presence rooms: the tag sets whose presence is watched, each with who watches it.

A room that nobody watches any more is kept for some seconds, for clients that ask now and then.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from mist.auth import Record
from mist.broker.outbox import Outbox
from mist.broker.presence_view import PresenceView
from mist.message import TagSet
from mist.replies import PresenceChanged, PresenceEnded, Present
from mist.sessions.close_reason import CloseReason

__all__ = ["PresenceRoom", "PresenceRooms", "RoomKey", "Watcher"]

_KEPT: Final = 5.0  # seconds

RoomKey = tuple[TagSet, str]
"""A tag set, and the site whose sessions are seen; empty for all."""


class Watcher(Protocol):
    """A session, as presence knows it.

    Attributes:
        record: the token's registry record; None for services.
        ended: None while the session lives.
    """

    record: Record | None
    outbox: Outbox
    ended: CloseReason | None

    def tell_presence(self, told: Present | PresenceChanged | PresenceEnded) -> None:
        """Queue a notice."""


class PresenceRoom:
    """A watched tag set.

    Attributes:
        view: what those who watch have been told.
        watchers: who they are.
        behind: those of them that missed something, and are told all of it later.
        looked: when it was last looked at.
    """

    __slots__ = ("behind", "left", "looked", "view", "watchers")

    def __init__(self, key: RoomKey) -> None:
        self.view = PresenceView(*key)
        self.watchers: dict[Watcher, None] = {}
        self.behind: dict[Watcher, None] = {}
        self.looked = 0.0
        self.left = 0.0  # when the last watcher left

    @property
    def key(self) -> RoomKey:
        """Which it is."""
        return self.view.tags, self.view.site


class PresenceRooms:
    """See the module. All times are seconds by a clock that never goes back."""

    def __init__(self) -> None:
        self._rooms: dict[RoomKey, PresenceRoom] = {}
        self._by_tag: dict[str, dict[PresenceRoom, None]] = {}  # by the first tag of each
        self._idle: dict[PresenceRoom, None] = {}  # without watchers, the first to go first

    def __len__(self) -> int:
        return len(self._rooms)

    def __iter__(self) -> Iterator[PresenceRoom]:
        return iter(list(self._rooms.values()))

    def __contains__(self, key: object) -> bool:
        return key in self._rooms

    def find(self, key: RoomKey) -> PresenceRoom | None:
        """The room, if there is one."""
        return self._rooms.get(key)

    def open(self, key: RoomKey, now: float) -> PresenceRoom:
        """The room, made where there is none. Kept for a while, also without a watcher."""
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = PresenceRoom(key)
            self._by_tag.setdefault(min(key[0]), {})[room] = None
        if not room.watchers:
            self._rest(room, now)
        return room

    def enter(self, room: PresenceRoom, watcher: Watcher) -> None:
        """Somebody watches; idempotent."""
        room.watchers[watcher] = None
        room.behind.pop(watcher, None)
        self._idle.pop(room, None)

    def exit(self, room: PresenceRoom, watcher: Watcher, now: float) -> None:
        """Undo `enter`."""
        del room.watchers[watcher]
        room.behind.pop(watcher, None)
        if not room.watchers:
            self._rest(room, now)

    def _rest(self, room: PresenceRoom, now: float) -> None:
        room.left = now
        self._idle.pop(room, None)
        self._idle[room] = None

    def expired(self, now: float) -> list[PresenceRoom]:
        """Rooms whose time without watchers is over."""
        found: list[PresenceRoom] = []
        for room in self._idle:
            if now - room.left < _KEPT:
                break
            found.append(room)
        return found

    @property
    def idlest(self) -> PresenceRoom | None:
        """The room that has been without watchers for longest; None where all have some."""
        return next(iter(self._idle), None)

    def remove(self, room: PresenceRoom) -> None:
        """Forget a room without watchers."""
        del self._idle[room], self._rooms[room.key]
        first = min(room.view.tags)
        del self._by_tag[first][room]
        if not self._by_tag[first]:
            del self._by_tag[first]

    def concerned(self, tags: TagSet) -> Iterable[PresenceRoom]:
        """The rooms at which a subscription is present that names these tags under presence."""
        for tag in tags:
            for room in self._by_tag.get(tag, ()):
                if room.view.tags <= tags:
                    yield room
