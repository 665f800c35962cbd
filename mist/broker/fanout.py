"""From a match to the outboxes behind it, and what is published into them.

`resolve` finds a match's `Recipients`, the distinct outboxes behind its groups. Routes with the
same outboxes share one `Recipients` object, so that "same destination" is an identity check, and
consecutive messages with the same destination are joined and appended once (`deliver`). What was
queued is written when somebody says so (`flush`): at the end of a chunk of work, or here, once a
burst of it has come together.

Nothing here waits, locks, or allocates for a delivery. What is published where, and what stands
in the way of publishing it, is `mist.broker.broker`'s.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from mist.audience import Audience
from mist.broker.attribute_index import AttributeIndex, reaches
from mist.broker.failures import Failures
from mist.broker.matches import Group, Match, Matched, Recipients, Subscriber
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.outbox import BURST, Outbox
from mist.broker.usage import UsageAccounting
from mist.message import Envelope
from mist.wire import Batch, Entry, WireForm

__all__ = ["FanOut", "carried"]

E = TypeVar("E", bound=Entry)

# Up to here, two sets of outboxes are told to be equal by comparing them; above, only by the
# groups they come from. Comparing costs a set of that size for each distinct destination.
_SMALL: Final = 64

# Outboxes in all the recipients kept, repeats counted: 8 to 80 bytes each. Without a bound, ten
# thousand tag lists that each reach ten thousand subscribers would keep a hundred million.
_MAX_AIMED: Final = 1_000_000


class FanOut:
    """See the module.

    Args:
        matches: those that are remembered, by the tag list as written. Looked at, never changed.

    Attributes:
        attribute_index: whom audiences choose among.
        queues: of each group that has any, by name.
        ready: outboxes with something to flush.
        flushes: how often `flush` was called.
        dropped: messages not delivered, by reason.
        failures: exceptions of forms and callbacks. Each costs one delivery or one session.
        nobody: the recipients of what nobody is subscribed to.
        accounts: where what goes another way than published is noted; None where there are none.
    """

    def __init__(self, matches: Mapping[bytes, Match]) -> None:
        self.ready: list[Outbox] = []
        self.flushes = 0
        self.dropped: Counter[str] = Counter()
        self.failures = Failures()
        self.nobody = Recipients(())
        self.accounts: UsageAccounting | None = None
        self.attribute_index = AttributeIndex()
        self.queues: dict[Group, dict[str, QueueGroup]] = {}
        self._matches = matches
        self._unflushed = 0  # bytes, each once however many get them
        self._targets: WeakValueDictionary[frozenset[Subscriber] | frozenset[Group], Recipients] = (
            WeakValueDictionary()
        )
        self._aimed = 0

    def resolve(self, match: Match) -> Recipients:
        """Find a match's recipients anew, and have it keep them until a group of it changes."""
        groups = match.groups
        outboxes = dict.fromkeys(outbox for group in groups for outbox in group.members)
        elsewhere: list[Subscriber] = []
        if self.attribute_index.bound and not match.everywhere:
            elsewhere = [each for each in outboxes if _is_bound(each)]
            for each in elsewhere:
                del outboxes[each]
        if outboxes:
            key: frozenset[Subscriber] | frozenset[Group] = (
                frozenset(outboxes) if elsewhere or len(outboxes) <= _SMALL else frozenset(groups)
            )
            found = self._targets.get(key)
            if found is None or found.stale:
                found = self._targets[key] = self._make_targets(outboxes)
            recipients = found
        else:
            recipients = self.nobody
        for group in groups:
            group.watch(match)
        if self.accounts is not None:
            match.repeats = _repeats(groups, len(outboxes), elsewhere)
        match.recipients = recipients
        return recipients

    def aim_at(self, match: Match, audience: Audience) -> Recipients:
        """The recipients of a match for some of those behind it. Nothing is kept.

        O(those whom the audience names · groups), or O(subscribers of the groups).
        """
        groups, everywhere = match.groups, match.everywhere
        named, among = self.attribute_index.named(audience, everywhere)
        matching = sum(group.subscribers for group in groups)
        found: Iterable[Subscriber]
        if 0 <= named * len(groups) < matching:
            # A queue has no attributes, so it isn't among them.
            queues = (self.queues[group].values() for group in groups if group in self.queues)
            named_ones = (each for each in among() if any(each in group for group in groups))
            found = chain(named_ones, *queues)
        else:
            found = dict.fromkeys(each for group in groups for each in group.members)
        return Recipients(
            each
            for each in found
            if isinstance(each, QueueGroup) or reaches(audience, each.attributes, everywhere)
        )

    def _make_targets(self, outboxes: Iterable[Subscriber]) -> Recipients:
        recipients = Recipients(outboxes)
        self._aimed += sum(len(members) for _, members in recipients.by_form)
        if self._aimed > _MAX_AIMED:
            self._aimed = 0
            for match in self._matches.values():
                match.recipients = None
        return recipients

    def deliver(
        self,
        recipients: Recipients,
        batch: Batch,
        entries: list[Matched] | None,
        skip: Outbox | None,
        first: int | None,
    ) -> None:
        """Queue `entries`, which are of `batch`, or with None the whole batch as it came.

        Args:
            recipients: those of all the entries.
            skip: an outbox that gets none of it.
            first: the id of the first message among them; they are consecutive.
        """
        for form, outboxes in recipients.by_form:
            firsts: list[int] | None = None
            if entries is None and form.passes_lines and batch.whole is not None:
                wire, count = batch.whole
            else:
                entries = entries or self.entries_of(batch)
                if form.numbered and first is not None:
                    firsts = list(accumulate([entry[2] for entry in entries[:-1]], initial=first))
                try:
                    wire, count = form.join(
                        entries, framable=batch.framable, firsts=firsts, envelope=batch.envelope
                    )
                    if not batch.framable:
                        self._withhold(form, outboxes, skip, entries, firsts, count)
                except Exception as error:
                    self._form_failed(error, outboxes, skip, entries)
                    continue
                if not count:
                    continue
            # However many publishers share a flush, together they can't fill the outbox of a
            # subscriber that is not slow.
            self._unflushed += len(wire)
            if self._unflushed > BURST:
                self.flush()
            if skip is not None:
                outboxes = tuple([each for each in outboxes if each.outbox is not skip])
            for outbox in outboxes:
                if not outbox.put(wire, count):
                    if self.accounts is None and outbox.keep(wire, count):
                        continue
                    entries = entries or self.entries_of(batch)
                    self._refused(outbox, form, wire, count, entries, firsts, first, batch.envelope)
        for queue in recipients.queues:
            self._deal(queue, batch, entries or self.entries_of(batch), skip, first)

    def _deal(
        self,
        queue: QueueGroup,
        batch: Batch,
        entries: list[Matched],
        skip: Outbox | None,
        first: int | None,
    ) -> None:
        """Give each message to one member of a queue."""
        accounts = self.accounts
        if accounts is not None and queue.group is not None:
            for match, wire, count in entries:  # which was noted for the queue as for others
                size = len(wire) - count * match.overhead
                accounts.credit(queue.group, queue.owner, -count, 0, -size)
        audience = None if batch.envelope is None else batch.envelope.audience
        asks = audience is not None or skip is not None or self.attribute_index.bound
        place = 0
        for match, wire, count in entries:
            everywhere = match.everywhere

            def admits(named: NamedSubscription, everywhere: bool = everywhere) -> bool:
                return named.outbox is not skip and reaches(audience, named.attributes, everywhere)

            for data in match.split(wire, count):
                entry = match, b"%b%b\n" % (match.head, data), 1
                ids = None if first is None else [first + place]
                place += 1
                drawn = queue.draw(admits if asks else None)
                try:
                    self._offer(queue, drawn, entry, ids, batch)
                except Exception as error:
                    self.failures.note("delivery", error)
                    self.dropped["error"] += 1

    def _offer(
        self,
        queue: QueueGroup,
        drawn: Sequence[NamedSubscription],
        entry: Matched,
        ids: list[int] | None,
        batch: Batch,
    ) -> None:
        """Have the first that can take a message; the first of all drops it where none can."""
        accounts, match = self.accounts, entry[0]
        size = len(entry[1]) - match.overhead
        pieces: list[bytes] = []
        for named in drawn:
            pieces = named.form.pieces([entry], firsts=ids, envelope=batch.envelope)
            if not pieces:  # for none of them, since they speak one dialect
                named.dropped_unframable += 1
                self.dropped["unframable"] += 1
                return
            if named.put(pieces[0], 1):
                if accounts is not None and queue.group is not None:
                    accounts.credit(queue.group, named.owner, 1, 0, size)
                return
        if drawn:
            before = drawn[0].dropped_full
            drawn[0].put_each(pieces)
            lost = drawn[0].dropped_full - before
            self.dropped["full"] += lost
            if accounts is not None and queue.group is not None:
                accounts.credit(queue.group, drawn[0].owner, 0, lost, 0)

    def entries_of(self, batch: Batch) -> list[Matched]:
        """A whole batch's runs with their matches, all of which are known."""
        matches = self._matches
        found: list[Matched] = []
        for tag_list, wire, count in batch.runs:
            match = matches[tag_list]
            if match.written is not None:
                wire = match.rewrite(match.written, wire, count)
            found.append((match, wire, count))
        return found

    def flush(self) -> None:
        """Have every outbox with something queued write what it can without waiting."""
        self.flushes += 1
        self._unflushed = 0
        ready = self.ready
        while ready:
            outbox = ready.pop()
            outbox.is_ready = False
            try:
                outbox.flush()
            except Exception as error:
                # Nobody can say what the peer has got of it.
                self.failures.note("flush", error)
                self._end_session(outbox)

    # The slow path

    def _refused(
        self,
        outbox: Outbox | NamedSubscription,
        form: WireForm,
        wire: bytes,
        count: int,
        entries: list[Matched],
        firsts: list[int] | None,
        first: int | None,
        envelope: Envelope | None,
    ) -> None:
        """An outbox did not take `entries`, which are `wire` in its form, all together."""
        accounts = self.accounts
        whole: Sequence[Matched] = ()
        if accounts is not None:
            whole, _ = carried(form, entries, firsts, count)
            if outbox.muted:
                accounts.missed(outbox, whole)
                if outbox.holding:
                    outbox.keep(wire, count, accounts.later(outbox, whole))
                return
        if outbox.on_behind is not None and first is not None:
            outbox.pause()
            try:
                outbox.on_behind(first - 1)
            except Exception as error:
                # Nobody will replay what the session misses from here on.
                self.failures.note("callback", error)
                self._end_session(outbox)
            if accounts is not None:
                accounts.missed(outbox, whole)
            return
        dropped, queued = outbox.dropped_full, outbox.outbox.queued
        taken: list[bool] = []
        try:
            taken = outbox.put_each(form.pieces(entries, firsts=firsts, envelope=envelope))
        except Exception as error:  # of the form, or of a callback half-way
            self.failures.note("delivery", error)
            full, fits = outbox.dropped_full - dropped, outbox.outbox.queued - queued
            self.dropped["error"] += count - full - fits
            taken = [True] * fits + [False] * (count - fits)
        self.dropped["full"] += outbox.dropped_full - dropped
        if accounts is not None:
            _note_drops(accounts, outbox, whole, taken)

    def _form_failed(
        self,
        error: Exception,
        outboxes: Iterable[Outbox | NamedSubscription],
        skip: Outbox | None,
        entries: list[Matched],
    ) -> None:
        """A form could not write `entries`: none of these outboxes gets them."""
        self.failures.note("delivery", error)
        lost = sum(entry[2] for entry in entries)
        for outbox in outboxes:
            if outbox.outbox is skip:
                continue
            withheld = outbox.muted and not outbox.holding
            if not withheld:
                self.dropped["error"] += lost
            if self.accounts is not None:
                (self.accounts.missed if withheld else self.accounts.dropped)(outbox, entries)

    def _end_session(self, outbox: Outbox | NamedSubscription) -> None:
        try:
            outbox.outbox.fail()
        except Exception as error:
            self.failures.note("callback", error)

    def _withhold(
        self,
        form: WireForm,
        outboxes: Iterable[Outbox | NamedSubscription],
        skip: Outbox | None,
        entries: list[Matched],
        firsts: list[int] | None,
        count: int,
    ) -> None:
        """Count those of `entries` that a form can't carry; it can `count` of their messages."""
        missing = sum(entry[2] for entry in entries) - count
        if not missing:
            return
        accounts = self.accounts
        lost: Sequence[Matched] = (
            () if accounts is None else carried(form, entries, firsts, count)[1]
        )
        for outbox in outboxes:
            if outbox.outbox is skip:
                continue
            if outbox.muted and not outbox.holding:
                # Counted when it is brought, if ever.
                if accounts is not None:
                    accounts.missed(outbox, lost)
                continue
            outbox.dropped_unframable += missing
            self.dropped["unframable"] += missing
            if accounts is not None:
                accounts.dropped(outbox, lost)


def _is_bound(subscriber: Subscriber) -> bool:
    return not isinstance(subscriber, QueueGroup) and bool(subscriber.attributes.site)


def _repeats(
    groups: Sequence[Group], outboxes: int, elsewhere: Iterable[Subscriber]
) -> Sequence[tuple[Group, str, int]]:
    """See `Match.repeats`; `outboxes` are distinct ones in the groups, without `elsewhere`."""
    if sum(group.subscribers for group in groups) == outboxes:
        return ()
    seen: set[Subscriber] = set(elsewhere)
    found: Counter[tuple[Group, str]] = Counter()
    for group in groups:
        found.update((group, each.owner) for each in group.members if each in seen)
        seen.update(group.members)
    return [(group, owner, number) for (group, owner), number in found.items()]


def carried(
    form: WireForm, entries: Sequence[E], firsts: Sequence[int] | None, count: int
) -> tuple[Sequence[E], Sequence[E]]:
    """Which of `entries` a form can carry, and which not; it can `count` of their messages."""
    if count == sum(entry[2] for entry in entries):
        return entries, ()
    parts: tuple[list[E], list[E]] = [], []
    for n, entry in enumerate(entries):
        # Where a message can't be carried, it is alone in its entry.
        pieces = form.pieces([entry], firsts=None if firsts is None else [firsts[n]])
        parts[not pieces].append(entry)
    return parts


def _note_drops(
    accounts: UsageAccounting,
    outbox: Outbox | NamedSubscription,
    entries: Sequence[Matched],
    taken: list[bool],
) -> None:
    """Tell the accounts what became of each message; see `Outbox.put_each`."""
    if not any(taken) and len(taken) == sum(entry[2] for entry in entries):
        accounts.dropped(outbox, entries)
        return
    place = 0
    for match, wire, count in entries:
        fates = taken[place : place + count]
        place += count
        if len(fates) == count and all(fates):
            continue
        sizes = map(len, match.split(wire, count))
        lost = sum(size for n, size in enumerate(sizes) if n >= len(fates) or not fates[n])
        accounts.correct(outbox, match, sum(fates) - count, fates.count(False), -lost)
