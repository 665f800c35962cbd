"""Subscriptions: who is subscribed to what, and what may be asked about it.

A subscriber is an outbox, which gets a message once however many of its subscriptions match; a
named subscription of one, which gets a copy of its own; or a queue group, of whose members one
gets it. All of the same tag set are in one `Group`, found through the index (`directory`).

Changing who is subscribed forgets exactly the cached matches that it concerns.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from mist.attributes import Attributes
from mist.broker.attribute_index import AttributeIndex, for_site, is_global, reaches
from mist.broker.directory import Directory
from mist.broker.failures import Failures
from mist.broker.groups import Group
from mist.broker.matches import Resolver, Subscriber
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.observer import DeliveryObserver
from mist.broker.outbox import Outbox
from mist.broker.preparation import Preparations
from mist.broker.queue_shares import QueueKey, QueueShares
from mist.message import Limits, TagSet
from mist.wire import WireForm

if TYPE_CHECKING:
    from mist.broker.presence import Presence

__all__ = ["Subscriptions"]

_LISTENERS: Final = 512  # that are looked at in a step: whether a message reaches one takes 0.7 µs


class Subscriptions:
    """The subscriptions of a broker, which is derived from this: it adds publishing.

    Args:
        limits: rules for what is published and subscribed.

    Attributes:
        limits: as given.
        failures: exceptions that were contained; see there.
        observer: who is told of subscribers and deliveries, or None; `Broker.observe` sets it.
        shares: of queue groups whose members are at several nodes; None on a single server. Set
            before the first subscription.
        presence: is told of subscribers; None where nobody may ask who they are. Set likewise.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.failures = Failures()
        self._directory = Directory()
        self._attribute_index = AttributeIndex()
        self._queues: dict[Group, dict[str, QueueGroup]] = {}
        self._resolver = Resolver(self._directory.cached, self._attribute_index, self._queues)
        self._preparations = Preparations(
            self._directory, self._resolver, limits.message_tags, limits.matches
        )
        self.observer: DeliveryObserver | None = None
        self.shares: QueueShares | None = None
        self.presence: Presence | None = None

    def subscribe(self, subscriber: Subscriber, tags: TagSet) -> Group:
        """Deliver messages that carry all of `tags`, as asked for, to `subscriber`. Idempotent.

        Returns:
            the group, which `unsubscribe` takes.
        """
        group = self._directory.open(tags)
        if self.observer is not None and subscriber not in group:
            self._moving(subscriber)
            self.observer.joined(group, subscriber.owner)
        if self.presence is not None:
            self.presence.joining(group, tags, subscriber)
        if self._preparations:
            self._preparations.joined(subscriber, group)
        group.add(subscriber)
        self._resolver.version += 1
        return group

    def unsubscribe(self, subscriber: Subscriber, group: Group) -> None:
        """Undo `subscribe`. Nothing happens where the subscriber isn't in the group."""
        if subscriber not in group:
            return
        if self.observer is not None:
            self._moving(subscriber)
            self.observer.left(group, subscriber.owner)
        if self.presence is not None:
            self.presence.leaving(group, subscriber)
        group.discard(subscriber)
        self._resolver.version += 1
        if self._preparations:
            self._preparations.left(group)
        if not group:
            self._directory.close(group)

    def _moving(self, subscriber: Subscriber) -> None:
        if self.observer is not None and not isinstance(subscriber, QueueGroup):
            self.observer.moving(subscriber.outbox)

    # named subscriptions and queue groups

    def add_named(self, named: NamedSubscription, tags: TagSet, queue: str = "") -> None:
        """Deliver messages that carry all of `tags` to a named subscription, or to its queue group.

        Args:
            queue: the queue group's name; empty for none. A queue group belongs to one tag set:
                the same name with other tags is another queue group.
        """
        named.failures = self.failures
        if not queue:
            named.group = self.subscribe(named, tags)
        else:
            group = self.find(tags)
            shared = None if group is None else self._queues.get(group, {}).get(queue)
            if shared is None:
                shared = self._open_queue(queue, tags)
            shared.add(named)
            named.group = shared.group
            if self.presence is not None and shared.group is not None:
                self.presence.joining(shared.group, tags, named, as_member=False)
            self._count(named, 1)
        self._attribute_index.enter(named)

    def remove_named(self, named: NamedSubscription) -> None:
        """Undo `add_named`. Idempotent."""
        group, queue = named.group, named.queue
        if group is None:
            return
        if not named.withdrawn:
            self._count(named, -1)
        self._moving(named)
        named.group = None
        self._attribute_index.leave(named)
        if queue is None:
            self.unsubscribe(named, group)
            return
        queue.discard(named)
        if self.presence is not None:
            self.presence.leaving(group, named)
        if queue.members:
            return
        if queue.share is not None and queue.share.counts_here:
            # Messages are for it until all nodes have heard: they are counted as dropped.
            queue.share.on_left = lambda: self._close_queue(queue)
        else:
            self._close_queue(queue)

    def withdraw(self, named: NamedSubscription) -> None:
        """Tell other nodes that a member is about to leave its queue group; `remove_named` follows.

        It gets what is for it until they have heard, so that nothing is lost in between.
        """
        if not named.withdrawn:
            self._count(named, -1)
            named.withdrawn = True

    def _count(self, named: NamedSubscription, change: int) -> None:
        share = None if named.queue is None else named.queue.share
        if self.shares is not None and share is not None:
            self.shares.count(QueueKey(share.queue, share.tags, named.attributes.site), change)

    def _open_queue(self, name: str, tags: TagSet) -> QueueGroup:
        queue = QueueGroup(name)
        group = queue.group = self.subscribe(queue, tags)
        self._queues.setdefault(group, {})[name] = queue
        if self.shares is not None:
            queue.share = self.shares.open(name, group.tag_list.decode())
        return queue

    def _close_queue(self, queue: QueueGroup) -> None:
        group = queue.group
        if group is None or queue.members:
            return
        queue.group = None
        queues = self._queues[group]
        if queues.get(queue.name) is queue:
            del queues[queue.name]
        if not queues:
            del self._queues[group]
        self.unsubscribe(queue, group)
        if self.shares is not None and queue.share is not None:
            self.shares.close(queue.share)

    # what a subscriber is like

    def describe(
        self,
        outbox: Outbox,
        attributes: Attributes,
        groups: Iterable[Group],
        named_subscriptions: Sequence[NamedSubscription] = (),
    ) -> None:
        """Give an outbox attributes, by which targeted delivery finds it.

        Args:
            groups, named_subscriptions: those that it is in, and has.
        """
        if attributes == outbox.attributes:
            return
        concerned: set[Group] = set()
        if attributes.site != outbox.attributes.site:
            concerned.update(groups)
            concerned.update(each.group for each in named_subscriptions if each.group is not None)
        if self.observer is not None:
            for group in concerned:
                self.observer.changing(group)
        every: list[Outbox | NamedSubscription] = [outbox, *named_subscriptions]
        sharing = [each for each in named_subscriptions if not each.withdrawn]
        for each in every:
            self._attribute_index.leave(each)
        for named in sharing:
            self._count(named, -1)
        outbox.attributes = attributes
        for each in every:
            self._attribute_index.enter(each)
        for named in sharing:
            self._count(named, 1)
        for group in concerned:
            group.changed()
        self._resolver.version += 1
        if self.presence is not None:
            self.presence.renamed(groups)
            self.presence.renamed(
                [each.group for each in named_subscriptions if each.group is not None]
            )

    def reshape(self, outbox: Outbox, form: WireForm, groups: Iterable[Group]) -> None:
        """Give an outbox another wire form; `groups` are those it is in."""
        outbox.form = form
        self._resolver.version += 1
        for group in groups:
            group.changed()

    def assign(
        self,
        outbox: Outbox,
        owner: str,
        groups: Iterable[Group],
        named_subscriptions: Iterable[NamedSubscription] = (),
    ) -> None:
        """Have another account pay for an outbox; `groups` and `named_subscriptions` are those that
        it is in, and has.

        Its subscriptions count as ended for the one and made for the other.
        """
        was_service = not outbox.owner
        if self.observer is not None and outbox.owner != owner:
            self._moving(outbox)
            groups = list(groups)
            self.observer.moved(groups, outbox.owner, owner)
            for group in groups:
                group.changed()
        outbox.owner = owner
        if self.presence is None:
            return
        if not was_service:
            self.presence.renamed(groups)
            return
        for group in groups:
            self.presence.joining(group, group.tags, outbox)
        for named in named_subscriptions:
            if named.group is not None:
                self.presence.joining(named.group, named.group.tags, named)

    # what there is

    def find(self, tags: TagSet) -> Group | None:
        """The group of exactly this tag set, as asked for, if anyone is subscribed to it."""
        return self._directory.find(tags)

    def listens(
        self, tags: TagSet, site: str = "", but: Outbox | None = None
    ) -> Generator[None, None, bool]:
        """Whether anybody would get a message with these tags that is for everyone; in steps.

        Who comes or goes meanwhile may be taken into account or not.

        Args:
            site: that its publisher is bound to, so that it is for everyone there.
            but: who doesn't get it.
        """
        anybody = not self._attribute_index.bound and not site and but is None
        audience, everywhere = for_site(None, site) if site else None, is_global(tags)
        looked_at = 0
        for groups in self._directory.match_in_steps(tags):
            if anybody and any(groups):
                return True
            for each in chain.from_iterable(() if anybody else map(_members, groups)):
                if each.outbox is not but and reaches(audience, each.attributes, everywhere):
                    return True
                looked_at += 1
                if looked_at % _LISTENERS == 0:
                    yield
            yield
        return False

    def receivers(self, tags: TagSet) -> Generator[None, None, set[Outbox]]:
        """Whose a message with these tags that is for everyone could be; in steps.

        All members of a queue group are among them, though only one gets it.
        """
        found: set[Outbox] = set()
        for groups in self._directory.match_in_steps(tags):
            members = chain.from_iterable(map(_members, groups))
            while some := [each.outbox for each in islice(members, _LISTENERS)]:
                found.update(some)
                yield
            yield
        return found

    def tag_sets(self) -> int:
        """How many distinct tag sets are subscribed to. O(1)."""
        return len(self._directory)

    def tags(self) -> TagSet:
        """Every distinct tag that anyone is subscribed to, as asked for. O(tags)."""
        return self._directory.tags()

    def tags_in_steps(self) -> Iterator[list[str]]:
        """What `tags` has, some at a time; one may come twice where it comes and goes meanwhile."""
        return self._directory.tags_in_steps()

    def groups(self) -> Iterator[list[Group]]:
        """All groups, some at a time; see `Index.slices`."""
        return self._directory.groups()

    def tag_uses(self) -> Iterator[list[tuple[str, int]]]:
        """Distinct tags, and how many tag sets have them, some at a time; see there, too."""
        return self._directory.tag_uses()


def _members(group: Group) -> Iterator[Outbox | NamedSubscription]:
    """Who may get what a group does, members of queue groups among them; as they are now."""
    for each in tuple(group.members):
        if isinstance(each, QueueGroup):
            yield from tuple(each.members)
        else:
            yield each
