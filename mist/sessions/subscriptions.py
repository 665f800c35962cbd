"""What one session is subscribed to: counted, bounded.

Whether a token allows a subscription is decided by the session.
"""

from collections.abc import Iterable, Iterator, Sequence

import attrs

from mist.broker.broker import Broker, Group
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.outbox import Outbox
from mist.errors import NotSubscribed, TooManySubscriptions
from mist.index.shards import ShardedDict
from mist.message import TagSet
from mist.wire import WireForm

__all__ = ["NamedSubscriptionSet", "Quota", "SubscriptionSet", "named_tags"]


@attrs.define(eq=False, weakref_slot=True)
class Quota:
    """What subscriptions count against: those of all sessions of a token together.

    Attributes:
        used: how many there are.
    """

    used: int = 0


class SubscriptionSet:
    """The subscriptions of one session, by the groups of the broker that they are in.

    Iteration gives the groups.

    Args:
        broker: where they are made.
        outbox: for which.
        max_bytes: of the canonical tag lists of all of them.
        counted: whether a subscription made twice has to be undone twice.

    Attributes:
        counted: as given; not to be changed once there are some.
        list_bytes: of the canonical tag lists of all of them.
        quota: what they count against.
        version: another number whenever there are others.
    """

    __slots__ = (
        "_broker",
        "_groups",
        "_max_bytes",
        "_outbox",
        "counted",
        "list_bytes",
        "quota",
        "version",
    )

    def __init__(self, broker: Broker, outbox: Outbox, max_bytes: int, *, counted: bool) -> None:
        self.list_bytes = 0
        self.quota = Quota()
        self.version = 0
        self._broker = broker
        self._outbox = outbox
        self._max_bytes = max_bytes
        self.counted = counted
        self._groups: ShardedDict[Group, int] = ShardedDict()  # with how often

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def __contains__(self, tags: object) -> bool:
        """Whether exactly this tag set is subscribed to."""
        return isinstance(tags, frozenset) and self._broker.find(tags) in self._groups

    def slices(self) -> Iterator[Sequence[Group]]:
        """All groups, some thousand at a time; see `ShardedDict.slices`."""
        return self._groups.slices()

    def charge(self, quota: Quota) -> None:
        """Count against another quota from now on."""
        self.quota.used -= len(self._groups)
        self.quota = quota
        self.quota.used += len(self._groups)

    def tag_sets(self) -> Iterable[TagSet]:
        """All that is subscribed to. O(n)."""
        return [group.tags for group in self._groups]

    def add(self, tags: TagSet, most: int) -> bool:
        """Subscribe to a tag set.

        Args:
            most: how many there may be.

        Returns:
            Whether there is now something to undo that wasn't there before.

        Raises:
            TooManySubscriptions: there are too many, or their tag lists are too long.
        """
        known = self._broker.find(tags)
        if known is not None and known in self._groups:
            if self.counted:
                self._groups[known] += 1
            return self.counted
        if len(self._groups) >= most or self.list_bytes >= self._max_bytes:
            raise TooManySubscriptions
        group = self._broker.subscribe(self._outbox, tags)
        self._groups[group] = 1
        self.quota.used += 1
        self.version += 1
        self.list_bytes += len(group.tag_list)
        return True

    def add_all(self, tag_sets: Sequence[TagSet], most: int) -> list[TagSet]:
        """Subscribe to all of these or, where that raises, to none.

        Returns:
            Those that there is something to undo of.
        """
        made: list[TagSet] = []
        try:
            for tags in tag_sets:
                if self.add(tags, most):
                    made.append(tags)
        except TooManySubscriptions:
            self.remove_all(made)
            raise
        return made

    def remove(self, tags: TagSet) -> None:
        """Undo one `add`. Nothing happens where there is none."""
        group = self._broker.find(tags)
        if group is None or group not in self._groups:
            return
        self._groups[group] -= 1
        if not self._groups[group]:
            self.drop(group)

    def remove_all(self, tag_sets: Iterable[TagSet]) -> None:
        """Undo one `add` of each."""
        for tags in tag_sets:
            self.remove(tags)

    def drop(self, group: Group) -> bool:
        """End a subscription, however often it was made. Idempotent.

        Returns:
            whether there was one.
        """
        if self._groups.pop(group) is None:
            return False
        self._outbox.let_go()  # what is held may have been for this one
        self.quota.used -= 1
        self.version += 1
        self.list_bytes -= len(group.tag_list)
        self._broker.unsubscribe(self._outbox, group)
        return True


class NamedSubscriptionSet:
    """The named subscriptions of one session; see `mist.commands.SubscribeNamed`.

    Iteration gives them; see `ShardedDict`.

    Args:
        broker: where they are made.
        outbox: for which.
        quota: what they count against.

    Attributes:
        quota: as given.
        list_bytes: of the names and canonical tag lists of all of them.
    """

    __slots__ = ("_broker", "_by_name", "_outbox", "list_bytes", "quota")

    def __init__(self, broker: Broker, outbox: Outbox, quota: Quota) -> None:
        self.list_bytes = 0
        self.quota = quota
        self._broker = broker
        self._outbox = outbox
        self._by_name: ShardedDict[bytes, NamedSubscription] = ShardedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[NamedSubscription]:
        return self._by_name.values()

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def slices(self) -> Iterator[Sequence[NamedSubscription]]:
        """All of them, some thousand at a time; see `ShardedDict.slices`."""
        for names in self._by_name.slices():
            yield [named for named in map(self._by_name.get, names) if named is not None]

    def charge(self, quota: Quota) -> None:
        """Count against another quota from now on."""
        self.quota.used -= len(self._by_name)
        self.quota = quota
        self.quota.used += len(self._by_name)

    def add(self, tags: TagSet, name: bytes, form: WireForm, queue: str) -> None:
        """Make one, of a name that isn't in use."""
        named = NamedSubscription(self._outbox, form, name)
        self._by_name[name] = named
        self._broker.add_named(named, tags, queue)
        self.quota.used += 1
        self.list_bytes += _size(named)

    def remove(self, name: bytes, most: int | None) -> None:
        """End one: now, or after `most` messages.

        Raises:
            NotSubscribed: there is none of this name.
        """
        named = self.find(name)
        if most is None or named.taken >= most:
            self.drop(named)
        else:
            named.end_after(most, lambda: self.drop(named))

    def find(self, name: bytes) -> NamedSubscription:
        """The one of this name.

        Raises:
            NotSubscribed: there is none.
        """
        named = self._by_name.get(name)
        if named is None:
            raise NotSubscribed
        return named

    def of(self, group: Group) -> Sequence[NamedSubscription]:
        """Those that are in a group. O(these or the group's subscribers, whichever are fewer)."""
        if len(self) <= group.subscribers:
            return [named for named in self if named.group is group]
        found: list[NamedSubscription] = []
        for each in group.members:
            members = each.members if isinstance(each, QueueGroup) else (each,)
            found += [
                named
                for named in members
                if isinstance(named, NamedSubscription) and named.outbox is self._outbox
            ]
        return found

    def drop(self, named: NamedSubscription) -> None:
        """End one now. Idempotent."""
        if self._by_name.pop(named.name) is not None:
            self.list_bytes -= _size(named)
            self.quota.used -= 1
            self._broker.remove_named(named)
            named.release()


def named_tags(named: NamedSubscription) -> TagSet:
    """What a named subscription asks for."""
    assert named.group is not None
    return named.group.tags


def _size(named: NamedSubscription) -> int:
    assert named.group is not None
    return len(named.name) + len(named.group.tag_list)
