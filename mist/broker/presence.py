"""Presence: who is subscribed to a tag set. A core without I/O or clock.

A session is present at a tag set T while one of its subscriptions names all of T. Only tags that
an operator has put under presence count (`PresenceTags`): of what else is subscribed to, nothing
is kept.

    subscribed to {room:7, urgent}     with room:* under presence
    present at {room:7}                yes
    present at {urgent}                no: that tag is not under presence
    present at {room:7, room:8}        no: the subscription doesn't name room:8

Goals: little for each session (its place in a dict, and a number), nothing for each message, and
changes that cost O(1), however many watch. So a change only notes which tags it concerns; what
became of a watched tag set is worked out afterwards, by looking at all who are there (`look`).
`mist.broker.presence_view` makes joins and leaves of two such looks.

Services, which have no token, are never present.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

import attrs

from mist.addresses import EVERYTHING
from mist.broker.groups import Group
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.message import EVENTS, TagSet

__all__ = ["MOST_LISTED", "NOBODY", "Identity", "Presence", "PresenceLog", "PresenceTags", "Seen"]

MOST_LISTED: Final = 1_000
"""Sessions at a tag set above which they are only counted."""

_STEP: Final = 2_000  # groups or sessions looked at in a step, up to 1 ms
_LOGGED: Final = 10_000  # tag sets whose last change is known
_RESERVED: Final = ("..", ">", EVENTS)

Identity = tuple[str, str, str]
"""User and client id, empty where there is none; and where there is neither, the token's id."""

_Present = Outbox | NamedSubscription


@attrs.frozen
class PresenceTags:
    """Which tags are under presence.

    Attributes:
        patterns: tags, or beginnings of tags and `*`.
    """

    patterns: Sequence[str]
    _exact: frozenset[str] = attrs.field(init=False, repr=False, eq=False)
    _prefixes: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)

    @_exact.default
    def _find_exact(self) -> frozenset[str]:
        return frozenset(each for each in self.patterns if not each.endswith("*"))

    @_prefixes.default
    def _find_prefixes(self) -> tuple[str, ...]:
        return tuple({each[:-1] for each in self.patterns if each.endswith("*")})

    def covers(self, tag: str) -> bool:
        """Whether a tag is under presence; none that the server reserves ever is."""
        if tag in self._exact or tag.startswith(self._prefixes):
            return not tag.startswith(_RESERVED) and tag not in EVERYTHING
        return False

    def among(self, tags: Iterable[str]) -> TagSet:
        """Those of some tags that are under presence."""
        return frozenset(filter(self.covers, tags))


@attrs.frozen
class Seen:
    """Who is at a tag set.

    Attributes:
        sessions: how many subscribers.
        since: of each identity, when the first of its sessions came, Unix seconds; None where
            there are more than `MOST_LISTED` sessions.
    """

    sessions: int
    since: dict[Identity, float] | None

    def with_others(self, others: Iterable["Seen"]) -> "Seen":
        """All of several nodes together."""
        every = [self, *others]
        sessions = sum([each.sessions for each in every])
        if sessions > MOST_LISTED:
            return Seen(sessions, None)
        found: dict[Identity, float] = {}
        for each in every:
            for identity, since in (each.since or {}).items():
                found[identity] = min(since, found.get(identity, since))
        return Seen(sessions, found)


NOBODY: Final = Seen(0, {})


class _Attendance:
    """The subscribers of one group that are present, with when they came.

    A lone one is held without a dict, and a lone tag without a set: a hundred thousand sessions
    may have a room each.
    """

    __slots__ = ("_lone", "_many", "_since", "_tags")

    def __init__(self, tags: TagSet) -> None:
        self._tags: str | TagSet = next(iter(tags)) if len(tags) == 1 else tags
        self._lone: _Present | None = None
        self._since = 0.0
        self._many: dict[_Present, float] | None = None

    @property
    def tags(self) -> TagSet:
        """Those under presence."""
        return frozenset((self._tags,)) if isinstance(self._tags, str) else self._tags

    def __len__(self) -> int:
        return int(self._lone is not None) if self._many is None else len(self._many)

    def items(self) -> Iterable[tuple[_Present, float]]:
        if self._many is not None:
            return self._many.items()
        return () if self._lone is None else ((self._lone, self._since),)

    def add(self, present: _Present, since: float) -> bool:
        if self._many is not None:
            if present in self._many:
                return False
            self._many[present] = since
            return True
        if self._lone is None:
            self._lone, self._since = present, since
            return True
        if self._lone is present:
            return False
        self._many = {self._lone: self._since, present: since}
        self._lone = None
        return True

    def discard(self, present: _Present) -> bool:
        if self._many is not None:
            return self._many.pop(present, None) is not None
        if self._lone is not present:
            return False
        self._lone = None
        return True


class PresenceLog:
    """Which tags changed since when, for those who ask now and then.

    Attributes:
        version: of the last change.
    """

    def __init__(self) -> None:
        self.version = 1
        self._latest: dict[TagSet, int] = {}  # of each the last change, the oldest first
        self._known_from = 1  # the version behind which all changes are known

    def note(self, tags: TagSet) -> None:
        """These have changed. O(1)."""
        self.version += 1
        self._latest.pop(tags, None)
        self._latest[tags] = self.version
        if len(self._latest) > _LOGGED:
            oldest = next(iter(self._latest))
            self._known_from = self._latest.pop(oldest)

    def since(self, version: int) -> list[TagSet] | None:
        """What has changed since a version; None where that isn't known any more. O(result)."""
        if not self._known_from <= version <= self.version:
            return None
        changed: list[TagSet] = []
        for tags, latest in reversed(self._latest.items()):
            if latest <= version:
                break
            changed.append(tags)
        return changed


class Presence:
    """See the module. Of one broker, which tells of its subscribers.

    Args:
        tags: which tags are under presence.
        clock: Unix seconds.

    Attributes:
        tags: as given.
        watched: whether changes are noted.
        changed: tags under presence of the groups that have changed, while `watched`.
        log: the same for other nodes; None until one asks.
        on_tag: called with each tag at which the first session is, True; or no more, False.
    """

    def __init__(self, tags: PresenceTags, clock: Callable[[], float]) -> None:
        self.tags = tags
        self._clock = clock
        self.watched = False
        self.changed: dict[TagSet, None] = {}
        self.log: PresenceLog | None = None
        self.on_tag: Callable[[str, bool], None] | None = None
        self._attendances: dict[Group, _Attendance] = {}
        self._by_tag: dict[str, _Attendance | dict[_Attendance, None]] = {}

    # what the broker tells

    def joined(self, group: Group, subscriber: _Present) -> None:
        """A subscriber has joined a group. O(tags) for the first one, else O(1)."""
        if not subscriber.outbox.owner:
            return
        attendance = self._attendances.get(group)
        if attendance is None:
            tags = self.tags.among(group.tags)
            if not tags:
                return
            attendance = self._attendances[group] = _Attendance(tags)
            for tag in tags:
                self._enter(tag, attendance)
        if attendance.add(subscriber, round(self._clock(), 3)):
            self._note(attendance)

    def left(self, group: Group, subscriber: _Present) -> None:
        """A subscriber has left a group, in which it may have been. O(1), or O(tags)."""
        attendance = self._attendances.get(group)
        if attendance is None or not attendance.discard(subscriber):
            return
        self._note(attendance)
        if not attendance:
            del self._attendances[group]
            for tag in attendance.tags:
                self._leave(tag, attendance)

    def renamed(self, groups: Iterable[Group]) -> None:
        """A subscriber of these groups is somebody else now."""
        if self.watched or self.log is not None:
            for group in groups:
                attendance = self._attendances.get(group)
                if attendance is not None:
                    self._note(attendance)

    def _note(self, attendance: _Attendance) -> None:
        if self.watched:
            self.changed[attendance.tags] = None
        if self.log is not None:
            self.log.note(attendance.tags)

    def _enter(self, tag: str, attendance: _Attendance) -> None:
        there = self._by_tag.get(tag)
        if there is None:
            self._by_tag[tag] = attendance
            if self.on_tag is not None:
                self.on_tag(tag, True)
        elif isinstance(there, dict):
            there[attendance] = None
        else:
            self._by_tag[tag] = {there: None, attendance: None}

    def _leave(self, tag: str, attendance: _Attendance) -> None:
        there = self._by_tag[tag]
        if isinstance(there, dict):
            del there[attendance]
        if there is attendance or not there:
            del self._by_tag[tag]
            if self.on_tag is not None:
                self.on_tag(tag, False)

    # what may be asked

    def look(self, tags: TagSet, site: str = "") -> Generator[None, None, Seen]:
        """Who is at a tag set now, worked out in steps. O(groups of its rarest tag + sessions).

        What changes between two steps is in `changed` afterwards.

        Args:
            site: only sessions bound to it are seen; empty for all.
        """
        groups = yield from self._at(tags)
        sessions = sum(map(len, groups))
        if sessions > MOST_LISTED and not site:
            return Seen(sessions, None)
        found: dict[Identity, float] = {}
        sessions = looked = 0
        for attendance in groups:
            looked += 1
            for present, since in list(attendance.items()):
                looked += 1
                if looked > _STEP:
                    looked = 0
                    yield
                attributes = present.attributes
                if site and attributes.site != site:
                    continue
                sessions += 1
                if sessions > MOST_LISTED:
                    continue
                names = attributes.user, attributes.client
                identity = (*names, "" if any(names) else present.outbox.owner)
                found[identity] = min(since, found.get(identity, since))
        return Seen(sessions, None if sessions > MOST_LISTED else found)

    def _at(self, tags: TagSet) -> Generator[None, None, Sequence[_Attendance]]:
        """The groups whose subscribers are at a tag set."""
        fewest: dict[_Attendance, None] | None = None
        for tag in tags:
            there = self._by_tag.get(tag)
            if there is None:
                return ()
            each = there if isinstance(there, dict) else {there: None}
            if fewest is None or len(each) < len(fewest):
                fewest = each
        candidates = list(fewest or ())
        if len(tags) == 1:
            return candidates
        found: list[_Attendance] = []
        for start in range(0, len(candidates), _STEP):
            if start:
                yield
            found += [each for each in candidates[start : start + _STEP] if tags <= each.tags]
        return found

    @property
    def tag_count(self) -> int:
        """Distinct tags at which anybody is present."""
        return len(self._by_tag)
