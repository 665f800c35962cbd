"""The broker: publish and subscribe. Who gets a message, decided in three cached steps.

1. *Index* (`mist.index`, through `directory`): a message's tag set → the groups whose tag set it
   contains. A `Group` is all subscribers of one tag set.
2. *Memo*: a tag list as written → its `Match`. A publisher uses few tag lists, so nearly
   every message is one dict lookup. A match knows its groups; a new tag set forgets exactly
   the matches it matches, a further subscriber of a known tag set forgets none.
3. *Recipients* (`matches`): the distinct outboxes behind a match's groups, by wire form. Matches
   with the same outboxes share one `Recipients` object, so that "same destination" is an identity
   check, and consecutive messages with the same destination are joined and queued once (`fanout`).

So the walk of a publish is: match each tag list (memo, else index), take its recipients (kept, else
resolved), deliver. There are three ways to walk it, by what a batch has in common:

    whole      matches cached, one destination: looks at distinct tag lists, never at messages
    runs       anything else: a dict lookup a message, an append for each run and subscriber
    targeted   has an audience: recipients are resolved for each run, and kept by nobody

Nothing here waits, locks, or allocates for a delivery.

A message reaches an outbox once, however many of its subscriptions match, and messages reach
an outbox in the order published.
"""

from collections.abc import Callable, Iterable, Iterator

import attrs

from mist.audience import Audience
from mist.broker.contained_observer import ContainedObserver
from mist.broker.fanout import FanOut
from mist.broker.groups import Group
from mist.broker.matches import Match, Matched, Recipients, Resolver
from mist.broker.meters import Meters
from mist.broker.observer import DeliveryObserver, Replayed
from mist.broker.outbox import Outbox
from mist.broker.subscriptions import Subscriptions
from mist.broker.tag_rates import TagRates
from mist.broker.validation import Accepted, Rejected, validate
from mist.errors import CommandError
from mist.message import Limits, parse_tag_list
from mist.wire import Batch, TagList

__all__ = ["Accepted", "Broker", "BrokerStatistics", "Group", "Rejected"]

OnError = Callable[[CommandError], None]


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
        matched: deliveries that were due: messages, times those who were to get each.
        replayed: messages that sessions were given from the history, beside those due.
        tag_sets: distinct tag sets subscribed to now.
        tags: distinct tags in these.
        dropped: messages not delivered, by reason, over all outboxes, gone ones included.
            `matched + replayed` are those delivered and dropped, and those that wait: queued for
            sessions, or owed to them (`mist.broker.outbox`).
        failures: exceptions that were contained, by what failed; see `mist.broker.failures`.
    """

    published: int
    published_by_peers: int
    rejected: int
    unmatched: int
    matched: int
    replayed: int
    tag_sets: int
    tags: int
    dropped: dict[str, int]
    failures: dict[str, int]


class Broker(Subscriptions):
    """Subscriptions and publishing. Knows outboxes and wire forms; no session, socket or task.

    Args:
        limits: rules for what is published and subscribed.
        meters: what is measured now and then; None measures nothing.

    Attributes:
        ready: outboxes with something to flush. Pass it to each `Outbox`; call `flush` when
            a chunk of work is done.
        dropped: messages not delivered, by reason.
        meters: as given.
    """

    def __init__(self, limits: Limits | None = None, meters: Meters | None = None) -> None:
        super().__init__()
        self.limits = Limits() if limits is None else limits
        self.meters = meters
        self._matches = self._directory.matches
        self._resolver = Resolver(self._matches, self._attribute_index, self._queues)
        self._nobody = self._resolver.nobody
        self._fan_out = FanOut(self._matches, self._attribute_index, self.failures)
        self._tag_rates: TagRates | None = None
        if meters is not None:
            self._tag_rates = TagRates(meters.clock, self._matches, self.limits.message_tags)
        self.ready = self._fan_out.ready
        self.dropped = self._fan_out.dropped
        self._published = 0
        self._published_inside = 0
        self._rejected = 0
        self._unmatched = 0

    def observe(self, observer: DeliveryObserver) -> None:
        """Tell an observer who gets what. Call it before the first subscription and message.

        What it raises is contained.
        """
        self.observer = self._fan_out.observer = ContainedObserver(observer, self.failures)

    # publishing

    def publish(
        self,
        batch: Batch,
        source: Outbox | None = None,
        on_error: OnError = _ignore,
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
        if envelope is not None and envelope.audience is not None:
            accepted = self._publish_targeted(envelope.audience, batch, skip, on_error, first)
        else:
            # Most batches are cached and go to one destination whole: then nothing is done for
            # each message. All others go run by run.
            accepted = self._publish_whole(batch, skip, first)
            if not accepted:
                accepted = self._publish_runs(batch, skip, on_error, first)
        self._published += accepted
        if source is None:
            self._published_inside += accepted
        if self._tag_rates is not None:
            self._tag_rates.count(batch)
        return accepted

    def _publish_whole(self, batch: Batch, skip: Outbox | None, first: int | None) -> int:
        """Deliver a batch whose matches are cached and have one destination.

        Whatever the number of messages, what is looked up is distinct tag lists, and where
        these are canonical, what is queued is the bytes that the publisher sent.

        Returns:
            messages accepted; 0 where the batch isn't such a one, and nothing was done.
        """
        if batch.whole is None:
            return 0
        find = self._matches.get
        common: Recipients | None = None
        canonical = True
        for tag_list in set(batch.tag_lists):
            match = find(tag_list)
            if match is None:
                return 0
            canonical = canonical and match.written is None
            recipients = match.recipients or self._resolver.resolve(match)
            if recipients is not common:
                if common is not None:
                    return 0
                common = recipients
        count = batch.whole[1]
        if common is self._nobody:
            self._unmatched += count
        elif common is not None:
            entries = None if canonical else self._fan_out.entries_of(batch)
            self._fan_out.deliver(common, batch, entries, skip, first)
        return count

    def _publish_runs(
        self, batch: Batch, skip: Outbox | None, on_error: OnError, first: int | None
    ) -> int:
        """Deliver a batch run by run, those that follow each other to one destination joined."""
        find = self._matches.get
        resolve, nobody = self._resolver.resolve, self._nobody
        deliver = self._fan_out.deliver
        entries: list[Matched] = []  # found and not delivered yet, all for `current`
        current = nobody
        start = first  # the id of the first of `entries`
        accepted = 0
        for tag_list, wire, count in batch.runs:
            match = find(tag_list)
            if match is None:
                try:
                    match = self._match(tag_list)
                except CommandError as error:
                    if entries:
                        deliver(current, batch, entries, skip, start)
                        entries = []
                    self._reject(error, count, on_error)
                    continue
            recipients = match.recipients or resolve(match)
            if recipients is not current:
                if entries:
                    deliver(current, batch, entries, skip, start)
                    entries = []
                current = recipients
                start = None if first is None else first + accepted
            accepted += count
            if recipients is nobody:
                self._unmatched += count
                continue
            if match.written is not None:
                wire = match.rewrite(match.written, wire, count)
            entries.append((match, wire, count))
        if entries:
            deliver(current, batch, entries, skip, start)
        return accepted

    def _publish_targeted(
        self,
        audience: Audience,
        batch: Batch,
        skip: Outbox | None,
        on_error: OnError,
        first: int | None,
    ) -> int:
        """Deliver a batch run by run to those of its recipients whom an audience admits.

        Recipients are found for each run and not kept, so there is nothing to join by.
        """
        find = self._matches.get
        resolve, nobody = self._resolver.resolve_targeted, self._nobody
        accepted = 0
        for tag_list, wire, count in batch.runs:
            try:
                match = find(tag_list) or self._match(tag_list)
            except CommandError as error:
                self._reject(error, count, on_error)
                continue
            recipients = resolve(match, audience)
            if recipients is nobody:
                self._unmatched += count
            else:
                if match.written is not None:
                    wire = match.rewrite(match.written, wire, count)
                start = None if first is None else first + accepted
                self._fan_out.deliver(recipients, batch, [(match, wire, count)], skip, start)
            accepted += count
        return accepted

    def _reject(self, error: CommandError, count: int, on_error: OnError) -> None:
        self._rejected += count
        for _ in range(count):
            on_error(error)

    def validate(self, batch: Batch) -> Iterator[Accepted | Rejected]:
        """Check a batch's tag lists without delivering anything; its parts, in order."""
        for part in validate(batch, self.limits.message_tags, self._matches):
            if isinstance(part, Rejected):
                self._rejected += part.count
            yield part

    # matching

    def _match(self, tag_list: bytes) -> Match:
        """Match a tag list that is not cached, and offer the match to the memo."""
        tags = parse_tag_list(tag_list, self.limits.message_tags)
        meters = self.meters
        began = 0.0 if meters is None else meters.match.begin()
        match = Match(tag_list, tags, self._directory.match(tags))
        if began and meters is not None:
            meters.match.end(began)
        self._directory.remember(tag_list, tags, match)
        return match

    def _match_of(self, tag_list: TagList) -> Match:
        canonical = tag_list.canonical
        return self._matches.get(canonical) or Match(
            canonical, tag_list.tags, self._directory.match(tag_list.tags)
        )

    # what happens beside publishing

    @property
    def flushes(self) -> int:
        """How often `flush` was called, or a burst came together."""
        return self._fan_out.flushes

    def flush(self) -> None:
        """Have every outbox with something queued write what it can without waiting."""
        self._fan_out.flush()

    def note_replayed(self, outbox: Outbox, runs: Iterable[Replayed]) -> None:
        """Tell the observer what an outbox was sent from the history."""
        if self.observer is not None:
            self.observer.replayed(outbox, runs, self._match_of)

    def settle(self, outbox: Outbox) -> None:
        """Count what is gone of an outbox, and what it was replayed. At its end, and before."""
        self._fan_out.settle(outbox)

    def note_answered(self, count: int) -> None:
        """Count messages that a reader of the history was given, who has no deliveries."""
        self._fan_out.replayed += count

    def note_unreadable(self, count: int) -> None:
        """Count messages that were stored and can't be read, so that nobody is looked for."""
        self._fan_out.matched += count
        self.dropped["unreadable"] += count

    def top_tags(self, most: int) -> list[tuple[str, float]]:
        """The tags of most messages, and messages a second; see `TagRates.top`."""
        return [] if self._tag_rates is None else self._tag_rates.top(most)

    def statistics(self) -> BrokerStatistics:
        """A frozen copy of the counts."""
        return BrokerStatistics(
            published=self._published,
            published_by_peers=self._published - self._published_inside,
            rejected=self._rejected,
            unmatched=self._unmatched,
            matched=self._fan_out.matched,
            replayed=self._fan_out.replayed,
            tag_sets=len(self._directory),
            tags=self._directory.distinct_tags,
            dropped=dict(self.dropped),
            failures=dict(self.failures.counts),
        )
