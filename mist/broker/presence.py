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

Who is present is kept at the groups (`Group.presence`). A hundred thousand sessions may have a room
each, so of a group's only member, where it is present, no more is kept than when it came.

Services, which have no token, are never present.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

import attrs

from mist.addresses import EVERYTHING
from mist.broker.groups import Group
from mist.broker.matches import Subscriber
from mist.broker.named_subscriptions import QueueGroup
from mist.message import EVENTS, TagSet

__all__ = ["MOST_LISTED", "NOBODY", "Identity", "Presence", "PresenceLog", "PresenceTags", "Seen"]

MOST_LISTED: Final = 1_000
"""Sessions at a tag set above which they are only counted."""

_STEP: Final = 2_000  # groups or sessions looked at in a step, up to 1 ms
_LOGGED: Final = 10_000  # tag sets whose last change is known
_RESERVED: Final = ("..", ">", EVENTS)

_outbox: Final = attrgetter("outbox")

Identity = tuple[str, str, str]
"""User and client id, empty where there is none; and where there is neither, the token's id."""


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
        sessions: how many, each once, however many of its subscriptions are there.
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
        self._by_tag: dict[str, Group | dict[Group, None]] = {}

    # what the broker tells

    def joining(
        self, group: Group, tags: TagSet, subscriber: Subscriber, *, as_member: bool = True
    ) -> None:
        """A subscriber is about to join a group, or is in one and is no service any more. O(tags)
        for the first one, else O(1).

        Args:
            tags: the group's; of the first subscriber they are kept.
            as_member: False where only a queue group that it is in is one of the group's members.
        """
        if isinstance(subscriber, QueueGroup) or not subscriber.outbox.owner:
            if group.presence is not None:
                group.presence = _presents(group)  # who is present is the only member no more
            return
        present = _presents(group)
        if subscriber in present:
            return
        if not present:
            covered = self.tags.among(tags)
            if not covered:
                return
            for tag in covered:
                self._enter(tag, group)
        present[subscriber] = now = round(self._clock(), 3)
        group.presence = now if as_member and not group else present
        self._note(group)

    def leaving(self, group: Group, subscriber: Subscriber) -> None:
        """A subscriber is about to leave a group, in which it may be. O(1), or O(tags)."""
        present = _presents(group)
        if present.pop(subscriber, None) is None:
            return
        self._note(group)
        if not present:
            group.presence = None
            for tag in self.tags.among(group.tags):
                self._leave(tag, group)

    def renamed(self, groups: Iterable[Group]) -> None:
        """A subscriber of these groups is somebody else now."""
        if self._is_noted:
            for group in groups:
                if group.presence is not None:
                    self._note(group)

    @property
    def _is_noted(self) -> bool:
        return self.watched or self.log is not None

    def _note(self, group: Group) -> None:
        if self._is_noted:
            tags = self.tags.among(group.tags)
            if self.watched:
                self.changed[tags] = None
            if self.log is not None:
                self.log.note(tags)

    def _enter(self, tag: str, group: Group) -> None:
        there = self._by_tag.get(tag)
        if there is None:
            self._by_tag[tag] = group
            if self.on_tag is not None:
                self.on_tag(tag, True)
        elif isinstance(there, dict):
            there[group] = None
        else:
            self._by_tag[tag] = {there: None, group: None}

    def _leave(self, tag: str, group: Group) -> None:
        there = self._by_tag[tag]
        if isinstance(there, dict):
            del there[group]
        if there is group or not there:
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
        found: dict[Identity, float] = {}
        # One may have thousands of subscriptions that name the tags, and is one session.
        sessions: set[Any] = set()
        looked = 0
        for group in groups:
            present = _presents(group)
            there = list(present)
            for start in range(0, len(there), _STEP):
                some = there[start : start + _STEP]
                if looked and looked + len(some) > _STEP:
                    looked = 0
                    yield
                looked += len(some)
                if site:
                    some = [each for each in some if each.attributes.site == site]
                sessions.update(map(_outbox, some))
                if len(sessions) <= MOST_LISTED:
                    _find(found, present, some)
        return Seen(len(sessions), None if len(sessions) > MOST_LISTED else found)

    def _at(self, tags: TagSet) -> Generator[None, None, Sequence[Group]]:
        """The groups whose subscribers are at a tag set."""
        fewest: dict[Group, None] | None = None
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
        found: list[Group] = []
        for start in range(0, len(candidates), _STEP):
            if start:
                yield
            found += [each for each in candidates[start : start + _STEP] if tags <= each.tags]
        return found

    @property
    def tag_count(self) -> int:
        """Distinct tags at which anybody is present."""
        return len(self._by_tag)


def _presents(group: Group) -> dict[Any, float]:
    """Who is present in a group, with when they came: the group's own dict, where it has one."""
    present = group.presence
    if isinstance(present, float):
        (member,) = group.members
        return {member: present}
    return {} if present is None else present


def _find(found: dict[Identity, float], present: dict[Any, float], some: Iterable[Any]) -> None:
    """Note since when some of those who are present in a group are there."""
    for subscriber in some:
        since = present.get(subscriber)
        if since is not None:  # still
            attributes = subscriber.attributes
            names = attributes.user, attributes.client
            identity = (*names, "" if any(names) else subscriber.outbox.owner)
            found[identity] = min(since, found.get(identity, since))
