"""Groups: all subscribers of one tag set, in the order they came.

The index finds groups, not subscribers, so a thousand subscribers of one tag set are one entry in
it. A group that changes has the cached matches through it forget their recipients: an exact
invalidation, which costs what was computed since the last change, and no more.

A group asks nothing of its subscribers but to be hashable. What they are is up to
`mist.broker.matches.Subscriber`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakSet

from mist.message import TagSet

__all__ = ["Group", "Watcher", "collect"]


class Watcher(Protocol):
    """What keeps something that was computed from a group's members: a match."""

    def forget(self) -> None:
        """Forget it: a member came or went."""


class Group:
    """The subscribers of one tag set.

    Attributes:
        tag_list: the canonical wire form of the tag set.
        presence: who is present, with when they came (`mist.broker.presence`, which alone changes
            it): None where nobody is; only when, where that one is the only member.
    """

    # A million subscriptions may be a million groups of one subscriber, so a lone subscriber
    # is held without a dict, and watchers only once there is one.
    __slots__ = ("_members", "_watchers", "presence", "tag_list")

    def __init__(self, tag_list: bytes) -> None:
        self.tag_list = tag_list
        self.presence: dict[Any, float] | float | None = None
        self._members: Any = None  # one subscriber, or a dict of them
        self._watchers: WeakSet[Watcher] | None = None

    @property
    def tags(self) -> TagSet:
        """The tag set."""
        return frozenset(self.tag_list.decode().split(","))

    @property
    def members(self) -> Iterable[Any]:
        """The subscribers."""
        members = self._members
        if members is None:
            return ()
        return members if isinstance(members, dict) else (members,)

    @property
    def subscribers(self) -> int:
        """How many they are. O(1)."""
        members = self._members
        return len(members) if isinstance(members, dict) else int(members is not None)

    def __contains__(self, subscriber: object) -> bool:
        members = self._members
        return subscriber in members if isinstance(members, dict) else subscriber is members

    def __bool__(self) -> bool:
        return self._members is not None

    def add(self, subscriber: Any) -> None:
        """Add a subscriber; one that is in already stays where it is. O(watchers)."""
        members = self._members
        if members is None:
            self._members = subscriber
        elif isinstance(members, dict):
            members[subscriber] = None
        elif members is not subscriber:
            self._members = {members: None, subscriber: None}
        self.changed()

    def discard(self, subscriber: Any) -> None:
        """Remove a subscriber; nothing happens where it isn't in. O(watchers)."""
        members = self._members
        if members is subscriber:
            self._members = None
        elif isinstance(members, dict):
            members.pop(subscriber, None)
            if not members:
                self._members = None
        self.changed()

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told of the next change, and of no other."""
        if self._watchers is None:
            self._watchers = WeakSet()
        self._watchers.add(watcher)

    def changed(self) -> None:
        """Have everything forgotten that was computed from these members."""
        # A match watches again when its recipients are resolved again.
        if self._watchers:
            for watcher in self._watchers:
                watcher.forget()
            self._watchers.clear()


def collect(groups: Sequence[Group]) -> Mapping[Any, None]:
    """The distinct subscribers of some groups, in the order met. O(groups + subscribers).

    Of one group alone they are its own, which change with it; O(1).
    """
    if len(groups) == 1 and type(members := groups[0]._members) is dict:
        return members  # there may be 100,000, whose copy takes 8 ms
    found: dict[Any, None] = {}
    for group in groups:
        members = group._members  # there may be 100,000 groups, of one each
        if type(members) is dict:
            found.update(members)
        elif members is not None:
            found[members] = None
    return found
