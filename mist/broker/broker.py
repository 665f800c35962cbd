"""Who gets a message: subscriptions, matching, fan-out.

Three steps, each cheaper because of the one before:

1. *Index* (`mist.index`, through `directory`): a message's tag set → the groups whose tag set it
   contains. A `Group` is all subscribers of one tag set.
2. *Memo*: a tag list as written → its `Match`. A publisher uses few tag lists, so nearly
   every message is one dict lookup. A match knows its groups; a new tag set forgets exactly
   the matches it matches, a further subscriber of a known tag set forgets none.
3. *Targets* (`mist.broker.fanout`): the distinct outboxes behind a match's groups, by wire form.
   Routes with the same outboxes share one `Recipients` object, so that "same destination" is an
   identity check, and consecutive messages with the same destination are joined and appended
   once.

What a publish costs is therefore a dict lookup a message, and an append for each run of
messages and subscriber. Nothing here waits, locks, or allocates for a delivery.

A message reaches an outbox once, however many of its subscriptions match, and messages reach
an outbox in the order published.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import attrs

from mist.audience import Attributes, Audience
from mist.broker.directory import Directory
from mist.broker.fanout import FanOut, carried
from mist.broker.matches import Group, Match, Matched, Recipients, Subscriber
from mist.broker.meters import Meters
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.outbox import Outbox
from mist.broker.usage import UsageAccounting
from mist.broker.validation import Accepted, Rejected, validate
from mist.errors import CommandError
from mist.message import Limits, TagSet, parse_tag_list
from mist.wire import Batch, Entry, WireForm

__all__ = ["Accepted", "Broker", "BrokerStatistics", "Group", "Rejected"]


def _ignore(error: CommandError) -> None:
    pass


@attrs.frozen
class BrokerStatistics:
    """Counts of a broker since it was made.

    Attributes:
        published: messages accepted.
        published_by_peers: those of them that came over a session.
        rejected: messages refused for their tags.
        unmatched: messages that nobody was subscribed to.
        tag_sets: distinct tag sets subscribed to now.
        tags: distinct tags in these.
        dropped: messages not delivered, by reason, over all outboxes, gone ones included.
        failures: exceptions that were contained, by what failed; see `mist.broker.failures`.
    """

    published: int
    published_by_peers: int
    rejected: int
    unmatched: int
    tag_sets: int
    tags: int
    dropped: dict[str, int]
    failures: dict[str, int]


class Broker:
    """Subscriptions and fan-out. Knows outboxes and wire forms; no session, socket or task.

    Args:
        limits: rules for what is published and subscribed.
        meters: what is measured now and then; None measures nothing.

    Attributes:
        ready: outboxes with something to flush. Pass it to each `Outbox`; call `flush` when
            a chunk of work is done.
        dropped: messages not delivered, by reason.
        failures: exceptions that were contained; see there.
        meters: as given.
    """

    def __init__(self, limits: Limits | None = None, meters: Meters | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self.meters = meters
        # The message whose tags are looked at next. Infinity is never reached.
        self._sample_at: float = math.inf if meters is None else 1
        self._directory = Directory()
        self._matches = self._directory.matches
        self._fan_out = FanOut(self._matches)
        self.ready = self._fan_out.ready
        self.dropped = self._fan_out.dropped
        self.failures = self._fan_out.failures
        self._accounts: UsageAccounting | None = None
        self._published = 0
        self._published_inside = 0
        self._rejected = 0
        self._unmatched = 0

    def keep_accounts(self, accounts: UsageAccounting) -> None:
        """Note who gets what, from now on. Before the first subscription and message."""
        self._accounts = self._fan_out.accounts = accounts

    # subscriptions

    def subscribe(self, outbox: Subscriber, tags: TagSet) -> Group:
        """Deliver messages that carry all of `tags`, as asked for, to `outbox`. Idempotent.

        Returns:
            the group, which `unsubscribe` takes.
        """
        group = self._directory.open(tags)
        if self._accounts is not None and outbox not in group:
            self._accounts.joined(group, outbox.owner)
        group.add(outbox)
        return group

    def unsubscribe(self, outbox: Subscriber, group: Group) -> None:
        """Undo `subscribe`. Nothing happens where the outbox isn't in the group."""
        if outbox not in group:
            return
        if self._accounts is not None:
            self._accounts.left(group, outbox.owner)
        group.discard(outbox)
        if not group:
            self._directory.close(group)

    def find(self, tags: TagSet) -> Group | None:
        """The group of exactly this tag set, as asked for, if anyone is subscribed to it."""
        return self._directory.find(tags)

    def add_named(self, named: NamedSubscription, tags: TagSet, queue: str = "") -> None:
        """Deliver messages that carry all of `tags` to a named subscription, or to its queue group.

        Args:
            queue: the queue group's name; empty for none. A queue is of these tags: others of the
                same name are none of its business.
        """
        named.failures = self.failures
        if not queue:
            named.group = self.subscribe(named, tags)
        else:
            group = self.find(tags)
            shared = None if group is None else self._fan_out.queues.get(group, {}).get(queue)
            if shared is None:
                shared = QueueGroup()
                group = shared.group = self.subscribe(shared, tags)
                self._fan_out.queues.setdefault(group, {})[queue] = shared
            shared.add(named)
            named.group = shared.group
        self._fan_out.attribute_index.enter(named)

    def remove_named(self, named: NamedSubscription) -> None:
        """Undo `add_named`. Idempotent."""
        group, queue = named.group, named.queue
        if group is None:
            return
        named.group = None
        self._fan_out.attribute_index.leave(named)
        if queue is None:
            self.unsubscribe(named, group)
            return
        queue.discard(named)
        if not queue.members:
            queues = self._fan_out.queues[group]
            for name in [name for name, each in queues.items() if each is queue]:
                del queues[name]
            if not queues:
                del self._fan_out.queues[group]
            self.unsubscribe(queue, group)

    def describe(
        self,
        outbox: Outbox,
        attributes: Attributes,
        groups: Iterable[Group],
        named_subscriptions: Sequence[NamedSubscription] = (),
    ) -> None:
        """Give an outbox attributes.

        Args:
            groups, named_subscriptions: those that it is in, and has.
        """
        if attributes == outbox.attributes:
            return
        attribute_index = self._fan_out.attribute_index
        every: list[Outbox | NamedSubscription] = [outbox, *named_subscriptions]
        for each in every:
            attribute_index.leave(each)
        site = outbox.attributes.site
        outbox.attributes = attributes
        for each in every:
            attribute_index.enter(each)
        if site != attributes.site:
            for group in {
                *groups,
                *(named.group for named in named_subscriptions if named.group is not None),
            }:
                group.changed()

    def listens(self, tags: TagSet) -> bool:
        """Whether anybody would get a message with these tags that is for everyone."""
        return any(group for group in self._directory.match(tags))

    def receivers(self, tags: TagSet) -> frozenset[Outbox]:
        """Whose a message with these tags that is for everyone could be. O(subscribers).

        All members of a queue are among them, though only one gets it.
        """
        found: set[Outbox] = set()
        for group in self._directory.match(tags):
            for each in group.members:
                members = each.members if isinstance(each, QueueGroup) else (each,)
                found.update(member.outbox for member in members)
        return frozenset(found)

    def tag_sets(self) -> int:
        """How many distinct tag sets are subscribed to. O(1)."""
        return len(self._directory)

    def tags(self) -> TagSet:
        """Every distinct tag that anyone is subscribed to, as asked for. O(tags)."""
        return self._directory.tags()

    def groups(self) -> Iterator[list[Group]]:
        """All groups, some at a time; see `Index.slices`."""
        return self._directory.groups()

    def tag_uses(self) -> Iterator[list[tuple[str, int]]]:
        """Distinct tags, and how many tag sets have them, some at a time; see there, too."""
        return self._directory.tag_uses()

    # publishing

    def publish(
        self,
        batch: Batch,
        source: Outbox | None = None,
        on_error: Callable[[CommandError], None] = _ignore,
        *,
        first: int | None = None,
    ) -> int:
        """Queue a batch's messages for everyone they match. Call `flush` some time after.

        More than `BURST` bytes queued since the last flush are flushed here.

        Args:
            batch: tag lists in it need no check before.
            source: the publisher's own outbox, left out where it doesn't want its echo.
            on_error: called for a tag list that breaks the rules, after what stands before
                it was queued and before what stands behind it.
            first: the id of the first message, where there is a history. Then every tag list
                has been checked (`validate`), and the others' ids follow it.

        Returns:
            messages accepted.
        """
        skip = None if source is None or source.echo else source
        envelope = batch.envelope
        accepted: int | None
        if envelope is not None and envelope.audience is not None:
            accepted = self._publish_to(envelope.audience, batch, skip, on_error, first)
        else:
            accepted = self._publish_whole(batch, skip, first)
        if accepted is None:
            accepted = self._publish_each(batch, skip, on_error, first)
        self._published += accepted
        if source is None:
            self._published_inside += accepted
        if self._published >= self._sample_at:
            self._sample(batch, accepted)
        return accepted

    def validate(self, batch: Batch) -> Iterator[Accepted | Rejected]:
        """Check a batch's tag lists without delivering anything; its parts, in order."""
        for part in validate(batch, self.limits.message_tags, self._matches):
            if isinstance(part, Rejected):
                self._rejected += part.count
            yield part

    def _publish_whole(self, batch: Batch, skip: Outbox | None, first: int | None) -> int | None:
        """Deliver a batch that has one destination; else do nothing and return None.

        Whatever the number of messages, what is looked up is distinct tag lists, and where
        these are canonical, what is queued is the bytes that the publisher sent.
        """
        if batch.whole is None:
            return None
        find = self._matches.get
        common: Recipients | None = None
        canonical = True
        distinct = set(batch.tag_lists)
        for tag_list in distinct:
            match = find(tag_list)
            if match is None:
                return None
            canonical = canonical and match.written is None
            recipients = match.recipients or self._fan_out.resolve(match)
            if recipients is not common:
                if common is not None:
                    return None
                common = recipients
        count = batch.whole[1]
        if common is self._fan_out.nobody:
            self._unmatched += count
        elif common is not None:
            entries = None if canonical else self._fan_out.entries_of(batch)
            if self._accounts is not None:
                self._note_whole(batch, entries, distinct, skip)
            self._fan_out.deliver(common, batch, entries, skip, first)
        return count

    def _note_whole(
        self,
        batch: Batch,
        entries: list[Matched] | None,
        distinct: set[bytes],
        skip: Outbox | None,
    ) -> None:
        """Note for the accounts what `_publish_whole` delivers; `entries` unless canonical."""
        assert self._accounts is not None
        assert batch.whole is not None
        matches = self._matches
        if entries is not None:
            self._accounts.published(entries)
        elif len(distinct) == 1:  # one run, whatever it came as
            entries = [(matches[batch.tag_lists[0]], *batch.whole)]
            self._accounts.published(entries)
        else:
            self._accounts.published_lines(batch.runs, matches)
        if skip is not None:
            self._accounts.missed(skip, entries or self._fan_out.entries_of(batch))

    def _publish_each(
        self,
        batch: Batch,
        skip: Outbox | None,
        on_error: Callable[[CommandError], None],
        first: int | None,
    ) -> int:
        """Deliver a batch run by run, those that follow each other to one destination joined."""
        find = self._matches.get
        entries: list[Matched] = []
        current: Recipients | None = None
        start = first  # the id of the first of `entries`
        accepted = 0
        for tag_list, wire, count in batch.runs:
            match = find(tag_list)
            if match is None:
                try:
                    match = self._match(tag_list)
                except CommandError as error:
                    if entries and current is not None:
                        self._deliver(current, batch, entries, skip, start)
                        entries = []
                    self._rejected += count
                    for _ in range(count):
                        on_error(error)
                    continue
            recipients = match.recipients or self._fan_out.resolve(match)
            if recipients is not current:
                if entries and current is not None:
                    self._deliver(current, batch, entries, skip, start)
                    entries = []
                current = recipients
                start = None if first is None else first + accepted
            accepted += count
            if recipients is self._fan_out.nobody:
                self._unmatched += count
                continue
            if match.written is not None:
                wire = match.rewrite(match.written, wire, count)
            entries.append((match, wire, count))
        if entries and current is not None:
            self._deliver(current, batch, entries, skip, start)
        return accepted

    def _publish_to(
        self,
        audience: Audience,
        batch: Batch,
        skip: Outbox | None,
        on_error: Callable[[CommandError], None],
        first: int | None,
    ) -> int:
        """Deliver a batch run by run to those of its subscribers whom an audience admits."""
        accepted = 0
        for tag_list, wire, count in batch.runs:
            try:
                match = self._matches.get(tag_list) or self._match(tag_list)
            except CommandError as error:
                self._rejected += count
                for _ in range(count):
                    on_error(error)
                continue
            recipients = self._fan_out.aim_at(match, audience)
            if not recipients.by_form and not recipients.queues:
                self._unmatched += count
            else:
                if match.written is not None:
                    wire = match.rewrite(match.written, wire, count)
                if self._accounts is not None:
                    self._note_addressed(recipients, match, wire, count, skip)
                start = None if first is None else first + accepted
                self._fan_out.deliver(recipients, batch, [(match, wire, count)], skip, start)
            accepted += count
        return accepted

    def _note_addressed(
        self, recipients: Recipients, match: Match, wire: bytes, count: int, skip: Outbox | None
    ) -> None:
        """Note for the accounts what some of a match's subscribers get."""
        assert self._accounts is not None
        size = len(wire) - count * match.overhead
        for _, outboxes in recipients.by_form:
            for each in outboxes:
                if each.outbox is not skip:
                    self._accounts.correct(each, match, count, 0, size)
        for queue in recipients.queues:  # which takes it off again, and gives it to its members
            if queue.group is not None:
                self._accounts.credit(queue.group, queue.owner, count, 0, size)

    def _deliver(
        self,
        recipients: Recipients,
        batch: Batch,
        entries: list[Matched],
        skip: Outbox | None,
        first: int | None,
    ) -> None:
        if self._accounts is not None:
            self._accounts.published(entries)
            if skip is not None:
                self._accounts.missed(skip, entries)
        self._fan_out.deliver(recipients, batch, entries, skip, first)

    @property
    def flushes(self) -> int:
        """How often `flush` was called, or a burst came together."""
        return self._fan_out.flushes

    def flush(self) -> None:
        """Have every outbox with something queued write what it can without waiting."""
        self._fan_out.flush()

    def reshape(self, outbox: Outbox, form: WireForm, groups: Iterable[Group]) -> None:
        """Give an outbox another wire form; `groups` are those it is in."""
        outbox.form = form
        for group in groups:
            group.changed()

    def assign(self, outbox: Outbox, owner: str, groups: Iterable[Group]) -> None:
        """Have another account pay for an outbox; `groups` are those it is in.

        Its subscriptions count as ended for the one and made for the other.
        """
        if self._accounts is not None and outbox.owner != owner:
            for group in groups:
                self._accounts.left(group, outbox.owner)
                self._accounts.joined(group, owner)
                group.changed()
        outbox.owner = owner

    def statistics(self) -> BrokerStatistics:
        """A frozen copy of the counts."""
        return BrokerStatistics(
            published=self._published,
            published_by_peers=self._published - self._published_inside,
            rejected=self._rejected,
            unmatched=self._unmatched,
            tag_sets=len(self._directory),
            tags=self._directory.distinct_tags,
            dropped=dict(self.dropped),
            failures=dict(self.failures.counts),
        )

    def note_brought(
        self, outbox: Outbox, runs: Iterable[tuple[Sequence[Entry], Sequence[int] | None, int]]
    ) -> None:
        """Note for the accounts what an outbox was brought from the history.

        Args:
            runs: what was given to its form's `join`, and how many messages came of it.
        """
        accounts = self._accounts
        if accounts is None:
            return
        totals: dict[bytes, tuple[TagSet, list[int]]] = {}  # sent, dropped, bytes
        for entries, firsts, count in runs:
            sent, lost = carried(outbox.form, entries, firsts, count)
            for tag_list, wire, number in sent:
                total = totals.setdefault(tag_list.canonical, (tag_list.tags, [0, 0, 0]))[1]
                total[0] += number
                total[2] += len(wire) - number * (len(tag_list.head) + 1)
            for tag_list, _, number in lost:
                totals.setdefault(tag_list.canonical, (tag_list.tags, [0, 0, 0]))[1][1] += number
        for canonical, (tags, total) in totals.items():
            match = self._matches.get(canonical) or self._route(canonical, tags)
            accounts.correct(outbox, match, *total)

    def sample_soon(self) -> None:
        """Have the next message's tags looked at, however long it would have been until then."""
        if self.meters is not None:
            self._sample_at = self._published + 1

    def _sample(self, batch: Batch, accepted: int) -> None:
        assert self.meters is not None
        before = self._published - accepted
        # Tag lists stand for one message each, or for about as many; see `Batch`.
        place = (int(self._sample_at) - before - 1) * len(batch.tag_lists) // accepted
        later = self.meters.tags.sample(batch.tag_lists[place], self._published)
        self._sample_at = self._published + later

    def _match(self, tag_list: bytes) -> Match:
        tags = parse_tag_list(tag_list, self.limits.message_tags)
        meters = self.meters
        began = 0.0 if meters is None else meters.match.begin()
        match = self._route(tag_list, tags)
        if began and meters is not None:
            meters.match.end(began)
        self._directory.remember(tag_list, tags, match)
        return match

    def _route(self, tag_list: bytes, tags: TagSet) -> Match:
        groups = self._directory.match(tags)
        if self._accounts is not None and len(groups) > 1:
            groups = sorted(groups, key=attrgetter("tag_list"))  # the first one's account pays
        return Match(tag_list, tags, groups)
