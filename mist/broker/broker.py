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

Each walk is done in steps, between which others may have their turns: a step is some hundred
messages, some thousand recipients, or part of a match that takes long (`matching`).

Nothing here waits, locks, or allocates for a delivery.

A message reaches an outbox once, however many of its subscriptions match, and messages reach
an outbox in the order published.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

import attrs

from mist.audience import Audience
from mist.broker.contained_observer import ContainedObserver
from mist.broker.fanout import FanOut
from mist.broker.groups import Group
from mist.broker.matches import Match, Matched, Recipients
from mist.broker.matching import Matcher
from mist.broker.meters import Meters
from mist.broker.observer import DeliveryObserver, Replayed
from mist.broker.outbox import Outbox
from mist.broker.preparation import Preparation
from mist.broker.queued import Queued
from mist.broker.subscriptions import Subscriptions
from mist.broker.tag_rates import TagRates
from mist.broker.validation import Accepted, Rejected
from mist.errors import CommandError
from mist.message import Limits
from mist.wire import Batch, Run, carried

__all__ = ["Accepted", "Broker", "BrokerStatistics", "Group", "Rejected"]

OnError = Callable[[CommandError], None]

_Joined = tuple[Recipients | CommandError, list[Matched], int, int]
"""Messages with the same recipients, and how many; or so many that are refused, and why. And the
place of the first run among them."""

_RUNS: Final = 100  # in a step; of short lists that were never seen before, 2 ms
_NEW: Final = 8_192  # bytes of lists in a step that were never seen: 0.7 ms of 64 tags each


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
        super().__init__(Limits() if limits is None else limits)
        self.meters = meters
        self._matches = self._directory.matches
        self._matcher = Matcher(
            self._directory, self._resolver, self._preparations, self.limits, meters
        )
        self._nobody = self._resolver.nobody
        self._fan_out = FanOut(self._matches, self._resolver, self._attribute_index, self.failures)
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
        accepted = 0
        for done in self.publish_in_steps(batch, source, on_error, first=first):
            accepted = accepted if done is None else done
        return accepted

    def publish_in_steps(
        self,
        batch: Batch,
        source: Outbox | None = None,
        on_error: OnError = _ignore,
        *,
        first: int | None = None,
    ) -> Iterable[int | None]:
        """As `publish`, in steps; all of it is done when there is none left.

        A step is some hundred messages that are cached, one that isn't and takes long, or some
        thousand recipients. Between two steps other batches may be published, and subscriptions
        may come and go; of the rest of this batch they are then told from there on.

        Returns:
            The steps. Each is the number of messages that everyone has been given by then, the
            last one of all that were accepted; or None where some have been given a message and
            others have not. Nearly always there is but one, and it has been done.
        """
        skip = None if source is None or source.echo else source
        envelope = batch.envelope
        if envelope is not None and envelope.audience is not None:
            steps = self._publish_targeted(envelope.audience, batch, skip, on_error, first)
            return self._counted(steps, batch, source)
        # Most batches are cached and go to one destination whole: then nothing is done for each
        # message. All others go run by run.
        accepted, left = self._publish_whole(batch, skip, first)
        if left is not None:
            return self._counted(_ending_with(accepted, left), batch, source)
        if accepted:
            self._count(batch, accepted, source)
            return (accepted,)
        return self._counted(self._publish_runs(batch, skip, on_error, first), batch, source)

    def _counted(
        self, steps: Iterable[int | None], batch: Batch, source: Outbox | None
    ) -> Iterator[int | None]:
        accepted = 0
        try:
            for done in steps:
                accepted = accepted if done is None else done
                yield done
        finally:  # also where nobody asks for the rest
            self._count(batch, accepted, source)

    def _count(self, batch: Batch, accepted: int, source: Outbox | None) -> None:
        self._published += accepted
        if source is None:
            self._published_inside += accepted
        if accepted and self._tag_rates is not None:
            self._tag_rates.count(batch)

    def _publish_whole(
        self, batch: Batch, skip: Outbox | None, first: int | None
    ) -> tuple[int, Iterator[None] | None]:
        """Deliver a batch whose matches are cached and have one destination.

        Whatever the number of messages, what is looked up is distinct tag lists, and where
        these are canonical, what is queued is the bytes that the publisher sent.

        Returns:
            messages accepted; 0 where the batch isn't such a one, and nothing was done. And what
            is left of the fan-out.
        """
        if batch.whole is None:
            return 0, None
        find = self._matches.get
        common: Recipients | None = None
        canonical = True
        for tag_list in set(batch.tag_lists):
            match = find(tag_list)
            if match is None:
                return 0, None
            recipients = match.recipients
            if recipients is None:
                if self._preparations.takes_long(tag_list, match):
                    return 0, None
                recipients = self._resolver.resolve(match)
            canonical = canonical and match.written is None
            if recipients is not common:
                if common is not None:
                    return 0, None
                common = recipients
        count = batch.whole[1]
        left = None
        if common is self._nobody:
            self._unmatched += count
        elif common is not None:
            entries = None if canonical else self._fan_out.entries_of(batch)
            left = self._fan_out.deliver(common, batch, entries, skip, first)
        return count, left

    def _publish_runs(
        self, batch: Batch, skip: Outbox | None, on_error: OnError, first: int | None
    ) -> Iterator[int | None]:
        """Deliver a batch run by run, those that follow each other to one destination joined."""
        deliver = self._fan_out.deliver
        runs = batch.runs
        accepted = place = 0
        while place < len(runs):
            if place:
                yield accepted
            prepared = yield from self._matcher.prepare(runs[place][0], accepted)
            joined: list[_Joined] = []
            following = self._join(runs, place, prepared, joined)
            version = self._resolver.version
            for recipients, entries, count, begins in joined:
                if self._resolver.version != version:  # in a step of the one before
                    following = begins
                    break
                if isinstance(recipients, CommandError):
                    self._reject(recipients, count, on_error)
                    continue
                if recipients is self._nobody:
                    self._unmatched += count
                else:
                    start = None if first is None else first + accepted
                    left = deliver(recipients, batch, entries, skip, start)
                    if left is not None:
                        yield from left
                accepted += count
            place = following
        yield accepted

    def _join(
        self,
        runs: Sequence[Run],
        place: int,
        prepared: Match | CommandError | None,
        joined: list[_Joined],
    ) -> int:
        """Find the recipients of some runs, and join those that follow each other to the same.

        Args:
            place: of the first of them.
            prepared: what that one matches, where that is known already.
            joined: to which they are added.

        Returns:
            The place of the first that isn't among them.
        """
        find, resolve = self._matches.get, self._resolver.resolve
        takes_long = self._preparations.takes_long
        nobody = self._nobody
        current: Recipients | None = None
        entries: list[Matched] = []
        total = begins = new = 0
        for tag_list, wire, count in runs[place : place + _RUNS]:
            match = find(tag_list)
            if match is None or (recipients := match.recipients) is None:
                if new > _NEW:
                    break
                new += len(tag_list)
                if prepared is not None:
                    found, prepared = prepared, None
                elif takes_long(tag_list, match):
                    break  # it comes first the next time, and is prepared
                else:
                    found = match or self._matcher.match(tag_list)
                if isinstance(found, CommandError):
                    if current is not None:
                        joined.append((current, entries, total, begins))
                    joined.append((found, [], count, place))
                    current = None
                    place += 1
                    continue
                match = found
                recipients = match.recipients or resolve(match)
            if recipients is not current:
                if current is not None:
                    joined.append((current, entries, total, begins))
                current, entries, total, begins = recipients, [], 0, place
            place += 1
            total += count
            if recipients is nobody:
                continue
            if match.written is not None:
                wire = match.rewrite(match.written, wire, count)
            entries.append((match, wire, count))
        if current is not None:
            joined.append((current, entries, total, begins))
        return place

    def _publish_targeted(
        self,
        audience: Audience,
        batch: Batch,
        skip: Outbox | None,
        on_error: OnError,
        first: int | None,
    ) -> Iterator[int | None]:
        """Deliver a batch run by run to those of its recipients whom an audience admits.

        Recipients are found for each run and not kept, so there is nothing to join by.
        """
        resolve, nobody = self._resolver.resolve_targeted, self._nobody
        accepted = 0
        for tag_list, wire, count in batch.runs:
            match = yield from self._matcher.prepare(tag_list, accepted)
            match = match or self._matches.get(tag_list) or self._matcher.match(tag_list)
            if isinstance(match, CommandError):
                self._reject(match, count, on_error)
                continue
            recipients = resolve(match, audience)
            if recipients is nobody:
                self._unmatched += count
            else:
                if match.written is not None:
                    wire = match.rewrite(match.written, wire, count)
                start = None if first is None else first + accepted
                left = self._fan_out.deliver(recipients, batch, [(match, wire, count)], skip, start)
                if left is not None:
                    yield from left
            accepted += count
            yield accepted

    def _reject(self, error: CommandError, count: int, on_error: OnError) -> None:
        self._rejected += count
        for _ in range(count):
            on_error(error)

    def validate(self, batch: Batch) -> Generator[Accepted | Rejected | None, None, None]:
        """Check a batch's tag lists before it is stored; see `Matcher.validate`."""
        for part in self._matcher.validate(batch):
            if isinstance(part, Rejected):
                self._rejected += part.count
            yield part

    def release(self, prepared: Iterable[Preparation]) -> None:
        """Let go of what was prepared for messages. Idempotent."""
        for each in prepared:
            self._preparations.release(each)

    # what happens beside publishing

    @property
    def flushes(self) -> int:
        """How often `flush` was called, or a burst came together."""
        return self._fan_out.flushes

    def flush(self) -> None:
        """Have every outbox with something queued write what it can without waiting."""
        self._fan_out.flush()

    def flush_in_steps(self, *, oldest_first: bool = False) -> Iterator[None]:
        """As `flush`, some outboxes at a time; see `FanOut.flush_in_steps`."""
        return self._fan_out.flush_in_steps(oldest_first=oldest_first)

    def note_replayed(self, outbox: Outbox, runs: Iterable[Replayed]) -> None:
        """Tell the observer what an outbox was sent from the history."""
        if self.observer is not None:
            self.observer.replayed(outbox, runs, self._matcher.of)

    def settle(self, outbox: Outbox) -> None:
        """Count what is gone of an outbox, and what it was replayed. At its end, and before."""
        self._fan_out.settle(outbox)
        if self.observer is not None:
            for queued in outbox.take_left():
                self.observer.gone(outbox, queued)

    def queued(self, outbox: Outbox, run: Replayed) -> int:
        """The count under which messages from the history are queued.

        Args:
            run: those messages.
        """
        entries, firsts, count = run
        if self.observer is None or not count:
            return count
        sent, _ = carried(outbox.form, entries, firsts, count)
        matches = {tag_list: self._matcher.of(tag_list) for tag_list, _, _ in sent}
        return Queued.of([(matches[tag_list], wire, n) for tag_list, wire, n in sent])

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


def _ending_with(accepted: int, steps: Iterator[None]) -> Iterator[int | None]:
    """Steps of one message's fan-out, and what they come to."""
    yield from steps
    yield accepted
