"""The broker: publish and subscribe. Who gets a message, decided in three cached steps.

1. *Index* (`mist.index`, through `directory`): a message's tag set → the groups whose tag set it
   contains. A `Group` is all subscribers of one tag set.
2. *Memo*: a tag list as written → its `Match`. Many publishers use few tag lists, so many
   messages are one dict lookup. Of lists that never come again, what anybody asks for comes
   again (`projection`): those are found by that. A new tag set forgets exactly the matches it
   matches, a further subscriber of a known tag set forgets none.
3. *Recipients* (`matches`): the distinct outboxes behind a match's groups, by wire form. Matches
   with the same outboxes share one `Recipients` object, so that "same destination" is an identity
   check, and consecutive messages with the same destination are joined and queued once (`fanout`).

So a publish is: match each tag list (memo, projection, else index), take its recipients (kept, else
resolved), deliver. `walks` has the ways to do that.

Nothing here waits, locks, or allocates for a delivery.

A message reaches an outbox once, however many of its subscriptions match, and messages reach
an outbox in the order published.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import attrs

from mist.broker.contained_observer import ContainedObserver
from mist.broker.fanout import FanOut
from mist.broker.groups import Group
from mist.broker.joining import Joiner
from mist.broker.matching import Matcher
from mist.broker.meters import Meters
from mist.broker.observer import DeliveryObserver, Replayed
from mist.broker.outbox import Outbox
from mist.broker.preparation import Preparation
from mist.broker.projection import Slice
from mist.broker.queued import Queued
from mist.broker.subscriptions import Subscriptions
from mist.broker.tag_rates import TagRates
from mist.broker.tag_set_rates import TagSetRates
from mist.broker.validation import Accepted, Rejected
from mist.broker.walks import OnError, Walks, ignore
from mist.message import Limits
from mist.wire import Batch, carried

__all__ = ["Accepted", "Broker", "BrokerStatistics", "Group", "Rejected"]


@attrs.frozen
class BrokerStatistics:
    """Counts of a broker since it was made.

    Attributes:
        published: messages accepted.
        published_by_peers: those of them that came over a session.
        relayed: messages that other servers have accepted, see `mist.engine`.
        rejected: messages refused for their tags.
        unmatched: messages accepted here that nobody was subscribed to here.
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
    relayed: int
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
        freed: the groups of matches that nobody has any more.
    """

    def __init__(self, limits: Limits | None = None, meters: Meters | None = None) -> None:
        super().__init__(Limits() if limits is None else limits)
        self.meters = meters
        matches = self._directory.matches
        self._matcher = Matcher(
            self._directory, self._resolver, self._preparations, self.limits, meters
        )
        self._fan_out = FanOut(matches, self._resolver, self._attribute_index, self.failures)
        most_tags = self.limits.message_tags
        self._tag_rates: TagRates | None = None
        self._tag_set_rates: TagSetRates | None = None
        if meters is not None:
            self._tag_rates = TagRates(meters.clock, matches, most_tags)
            self._tag_set_rates = TagSetRates(
                meters.clock, self._directory, self._tag_rates, most_tags
            )
        parts = self._resolver, self._preparations, self._matcher
        joiner = Joiner(self._directory, *parts, most_tags)
        self._walks = Walks(matches, *parts, joiner, self._fan_out, self._tag_rates)
        self.ready = self._fan_out.ready
        self.freed = self._preparations.freed
        self.dropped = self._fan_out.dropped

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
        on_error: OnError = ignore,
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
        on_error: OnError = ignore,
        *,
        first: int | None = None,
        slices: Sequence[Slice] = (),
        relayed: bool = False,
    ) -> Iterable[int | None]:
        """As `publish`, in steps; all of it is done when there is none left.

        A step is some hundred messages that are cached, one that isn't and takes long, or some
        thousand recipients. Between two steps other batches may be published, and subscriptions
        may come and go; of the rest of this batch they are then told from there on.

        Args:
            slices: what was found when it was validated.
            relayed: whether another server has accepted it, and counts it.

        Returns:
            The steps. Each is the number of messages that everyone has been given by then, the
            last one of all that were accepted; or None where some have been given a message and
            others have not. Nearly always there is but one, and it has been done.
        """
        return self._walks.walk(batch, source, on_error, first, slices, relayed=relayed)

    def validate(self, batch: Batch) -> Generator[Accepted | Rejected | None, None, None]:
        """Check a batch's tag lists before it is stored; see `Matcher.validate`."""
        for part in self._matcher.validate(batch):
            if isinstance(part, Rejected):
                self._walks.rejected += part.count
            yield part

    def note_interest(self) -> None:
        """Have `asks_for` tell more than nothing, from now on. O(tags asked for)."""
        self._directory.note_interest()

    def asks_for(self, hashes: Iterable[int]) -> bool:
        """Whether anybody may be subscribed to one of many messages; see `mist.broker.interest`.

        Args:
            hashes: CRC-32 of the UTF-8 of all of their tags, and of all that is derived of them.
        """
        return self._directory.asks_for(hashes)

    def pass_over(self, count: int, tag_lists: Callable[[], Mapping[bytes, int]]) -> None:
        """Count messages that other servers have accepted, and that nobody asks for here.

        Args:
            tag_lists: how many have each canonical tag list; called only where somebody is to know.
        """
        self._walks.pass_over(count, tag_lists)

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

    def top_tag_sets(self, most: int) -> tuple[float, list[tuple[Group, float]]]:
        """The tag sets of most deliveries, and deliveries a second; see `TagSetRates.top`."""
        return (0.0, []) if self._tag_set_rates is None else self._tag_set_rates.top(most)

    def statistics(self) -> BrokerStatistics:
        """A frozen copy of the counts."""
        walks = self._walks
        return BrokerStatistics(
            published=walks.own.published,
            published_by_peers=walks.own.published - walks.published_inside,
            relayed=walks.relayed.published,
            rejected=walks.rejected,
            unmatched=walks.own.unmatched,
            matched=self._fan_out.matched,
            replayed=self._fan_out.replayed,
            tag_sets=len(self._directory),
            tags=self._directory.distinct_tags,
            dropped=dict(self.dropped),
            failures=dict(self.failures.counts),
        )
