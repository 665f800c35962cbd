"""The fan-out: a batch's messages into the send queues of their recipients.

`deliver` writes a run of messages once for each wire form that a recipient wants, and puts the same
bytes into each outbox (`Outbox.put`, which never waits). `flush` has what was queued written: it is
called at the end of a chunk of work, or here, once a burst has come together.

What an outbox refuses, since its peer is a slow consumer or is replayed the history, takes the
slow path; so does what a wire form can't carry. What raises there is contained: it costs one
delivery or one session (`mist.broker.failures`).

Nothing here waits, locks, or allocates for a delivery. Who the recipients are is up to
`mist.broker.matches`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from mist.broker.attribute_index import AttributeIndex, reaches
from mist.broker.failures import Failures
from mist.broker.matches import Match, Matched, Recipients, Resolver
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.observer import DeliveryObserver, Receiver
from mist.broker.outbox import BURST, Outbox
from mist.wire import Batch, WireForm, carried

__all__ = ["FanOut"]

# Writes, offers to queue groups, or deliveries to slow consumers in a step: some 6 µs each.
_STEP: Final = 32

_Late = tuple[WireForm, bytes, int, list[int] | None, list[Receiver]]
"""Of one form: a delivery, its messages, their ids, and those who did not take it at once."""


def _nothing() -> None:
    pass


class FanOut:
    """See the module.

    Args:
        matches: those that are cached, by the tag list as written. Looked at, never changed.
        resolver: whether recipients may have left since they were found.
        attribute_index: whether anybody in it is bound to a site.
        failures: where exceptions of forms and callbacks are noted.

    Attributes:
        ready: outboxes with something to flush.
        flushes: how often `flush` was called.
        matched: deliveries that were due: messages, times those who were to get each.
        replayed: messages given to sessions from the history, beside those that were due.
        dropped: messages not delivered, by reason.
        failures: as given. Each cost one delivery or one session.
        observer: who is told what became of each message; None costs nothing.
    """

    def __init__(
        self,
        matches: Mapping[bytes, Match],
        resolver: Resolver,
        attribute_index: AttributeIndex,
        failures: Failures,
    ) -> None:
        self.ready: list[Outbox] = []
        self.flushes = 0
        self.matched = 0
        self.replayed = 0
        self.dropped: Counter[str] = Counter()
        self.failures = failures
        self.observer: DeliveryObserver | None = None
        self._matches = matches
        self._resolver = resolver
        self._attribute_index = attribute_index
        self._unflushed = 0  # bytes, each once however many get them
        self._effort = 0  # offers to queue groups since the last step

    def deliver(
        self,
        recipients: Recipients,
        batch: Batch,
        entries: list[Matched] | None,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None] | None:
        """Queue messages of a batch for their recipients, who are the same for all of them.

        Args:
            entries: the messages. None is the whole batch as it came, whose matches are all cached
                and whose records are canonical: then entries are made only for those who want
                another form than the records.
            skip: an outbox that gets none of it.
            first: the id of the first message among them; they are consecutive.

        Returns:
            What is left to be done where that is much, in steps; some recipients have the messages
            then, and others have not. Nearly always None: all is done.
        """
        if self.observer is not None:
            if entries is None:
                self.observer.published_whole(recipients, batch.runs, self._matches, skip)
            else:
                self.observer.published(recipients, entries, skip)
        if recipients.parts:
            return self._deliver_parts(recipients, batch, entries, skip, first)
        return self._deliver(recipients, batch, entries, skip, first)

    def _deliver_parts(
        self,
        recipients: Recipients,
        batch: Batch,
        entries: list[Matched] | None,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """As `deliver`, for very many recipients."""
        version = self._resolver.version
        for part in recipients.parts:
            if self._resolver.version == version:
                left = self._deliver(part, batch, entries, skip, first)
                yield
            else:
                left = self._deliver_to_those_left(part, batch, entries, skip, first)
            if left is not None:
                yield from left

    def _deliver_to_those_left(
        self,
        recipients: Recipients,
        batch: Batch,
        entries: list[Matched] | None,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """As `_deliver`, where some recipients may have unsubscribed since they were found."""
        for entry in entries or self.entries_of(batch):
            groups = entry[0].groups
            staying = [each for each in recipients if any(each in group for group in groups)]
            left = self._deliver(Recipients(staying), batch, [entry], skip, first)
            yield
            if left is not None:
                yield from left
            first = None if first is None else first + entry[2]

    def _deliver(
        self,
        recipients: Recipients,
        batch: Batch,
        entries: list[Matched] | None,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None] | None:
        whole = batch.whole if entries is None else None
        observer = self.observer
        late: list[_Late] | None = None
        if whole is not None:
            total = whole[1]
        elif entries is not None and len(entries) == 1:  # a list costs as much as the rest of it
            total = entries[0][2]
        else:
            total = sum([entry[2] for entry in entries or batch.runs])
        for form, outboxes in recipients.by_form:
            firsts: list[int] | None = None
            if skip is not None:
                outboxes = tuple([each for each in outboxes if each.outbox is not skip])
            if form.delivers:
                self.matched += total * len(outboxes)
            if whole is not None and form.passes_lines:
                wire, count = whole
            else:
                entries = entries or self.entries_of(batch)
                if form.numbered and first is not None:
                    firsts = list(accumulate([entry[2] for entry in entries[:-1]], initial=first))
                try:
                    wire, count = form.join(
                        entries, framable=batch.framable, firsts=firsts, envelope=batch.envelope
                    )
                    if count < total:
                        self._drop_unframable(form, outboxes, entries, firsts, count, total)
                except Exception as error:
                    self._form_failed(error, outboxes, entries, total)
                    continue
                if not count:
                    continue
            self._unflushed += len(wire)
            refusing: list[Receiver] | None = None
            for outbox in outboxes:
                if not outbox.put(wire, count):
                    if observer is None and outbox.muted:
                        self._defer(outbox, wire, count)
                        continue
                    if refusing is None:
                        refusing = []
                    refusing.append(outbox)
            if refusing is not None:
                entries = entries or self.entries_of(batch)
                late = late or []
                late.append((form, wire, count, firsts, refusing))
        if late is not None or recipients.queues:
            entries = entries or self.entries_of(batch)
            late = late or []
            return _unless_short(self._deliver_late(late, recipients, batch, entries, skip, first))
        # However many publishers share a flush, together they can't fill the outbox of a
        # subscriber that is not slow.
        return self.flush_in_steps() if self._unflushed > BURST else None

    def _deliver_late(
        self,
        late: list[_Late],
        recipients: Recipients,
        batch: Batch,
        entries: list[Matched],
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """What takes longer than a `put`: outboxes that refused, and queue groups."""
        for form, wire, count, firsts, refusing in late:
            pieces: list[bytes] = []
            for n, outbox in enumerate(refusing, 1):
                self._refused(outbox, form, (wire, count), pieces, batch, entries, firsts, first)
                if not n % _STEP:
                    yield
        for queue in recipients.queues:
            yield from self._share(queue, batch, entries, skip, first)
        if self._unflushed > BURST:
            yield from self.flush_in_steps()

    def entries_of(self, batch: Batch) -> list[Matched]:
        """A whole batch's runs with their matches, all of which are cached."""
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
        for _ in self.flush_in_steps():
            pass

    def flush_in_steps(self) -> Iterator[None]:
        """As `flush`, in steps. What is queued meanwhile is written, too."""
        self.flushes += 1
        self._unflushed = 0
        ready = self.ready
        while ready:
            # The latest first: when some other work's outboxes are many, the next one's few are
            # written before the rest of them.
            for _ in range(min(len(ready), _STEP)):
                outbox = ready.pop()
                outbox.is_ready = False
                try:
                    outbox.flush()
                except Exception as error:
                    # Nobody can say what the peer has got of it.
                    self.failures.note("flush", error)
                    self._end_session(outbox)
            if ready:
                yield

    # Queue groups

    def _share(
        self,
        queue: QueueGroup,
        batch: Batch,
        entries: list[Matched],
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """Give each message to one member of a queue group, in steps."""
        audience = None if batch.envelope is None else batch.envelope.audience
        asks = audience is not None or skip is not None or self._attribute_index.bound
        effort = 1 + (len(queue.members) // _STEP if asks else 0)
        place = 0
        for match, wire, count in entries:
            everywhere = match.everywhere

            def admits(named: NamedSubscription, everywhere: bool = everywhere) -> bool:
                return named.outbox is not skip and reaches(audience, named.attributes, everywhere)

            for data in match.split(wire, count):
                entry = match, b"%b%b\n" % (match.head, data), 1
                ids = None if first is None else [first + place]
                place += 1
                members = queue.draw(admits if asks else None)
                if not members:
                    continue
                self.matched += 1
                try:
                    self._offer(members, entry, ids, batch)
                except Exception as error:
                    self.failures.note("delivery", error)
                    self.dropped["error"] += 1
                self._effort += effort
                if self._effort >= _STEP:
                    self._effort = 0
                    yield

    def _offer(
        self,
        members: Sequence[NamedSubscription],
        entry: Matched,
        ids: list[int] | None,
        batch: Batch,
    ) -> None:
        """Have the first that can take a message; the first of all drops it where none can."""
        observer = self.observer
        pieces: list[bytes] = []
        for named in members:
            pieces = named.form.pieces([entry], firsts=ids, envelope=batch.envelope)
            if not pieces:  # for none of them, since they speak one dialect
                named.dropped_unframable += 1
                self.dropped["unframable"] += 1
                if observer is not None:
                    observer.dropped(named, [entry])
                return
            if named.put(pieces[0], 1):
                if observer is not None:
                    observer.delivered(named, [entry])
                return
        # Who lost it is a member that lives, if there is one.
        loser = next((named for named in members if not named.muted), members[0])
        full = loser.dropped_full
        if not loser.put_each(pieces):
            loser.outbox.defer(loser.due(1))
            self.matched -= 1 - loser.due(1)
            self.settle(loser.outbox)
        self.dropped["full"] += loser.dropped_full - full
        if observer is not None and not loser.outbox.paused:
            observer.dropped(loser, [entry])

    # The slow path: slow consumers, replays, and what a form can't carry

    def _refused(
        self,
        outbox: Receiver,
        form: WireForm,
        refused: tuple[bytes, int],
        pieces: list[bytes],
        batch: Batch,
        entries: list[Matched],
        firsts: list[int] | None,
        first: int | None,
    ) -> None:
        """An outbox did not take `entries`, which are `refused` in its form, all together.

        Args:
            pieces: they are in its form one by one; filled in where it is empty.
        """
        wire, count = refused
        observer = self.observer
        framed: Sequence[Matched] = ()
        if observer is not None:
            framed, _ = carried(form, entries, firsts, count)
        if outbox.muted:
            if observer is None:
                self._defer(outbox, wire, count)
            elif outbox.holding:
                self._defer(outbox, wire, count, observer.held(outbox, framed))
            else:
                self._defer(outbox, wire, count)
                (observer.missed if outbox.outbox.paused else observer.dropped)(outbox, framed)
            return
        due = outbox.due(count)
        self.matched -= count - due
        if outbox.on_behind is not None and first is not None:
            outbox.pause()
            outbox.outbox.defer(due)
            try:
                outbox.on_behind(first - 1)
            except Exception as error:
                # Nobody will replay what the session misses from here on.
                self.failures.note("callback", error)
                self._end_session(outbox)
            if observer is not None:
                observer.missed(outbox, framed)
            return
        dropped, queued = outbox.dropped_full, outbox.outbox.queued
        taken: list[bool] = []
        try:
            if not pieces:
                pieces += form.pieces(entries, firsts=firsts, envelope=batch.envelope)
            taken = outbox.put_each(pieces)
        except Exception as error:  # of the form, or of a callback half-way
            self.failures.note("delivery", error)
            full, fits = outbox.dropped_full - dropped, outbox.outbox.queued - queued
            self.dropped["error"] += due - full - fits
            taken = [True] * fits + [False] * (due - fits)
        self.dropped["full"] += outbox.dropped_full - dropped
        if len(taken) < due:  # its session has ended
            outbox.outbox.defer(due - len(taken))
            self.settle(outbox.outbox)
            taken += [False] * (due - len(taken))
        if observer is not None:
            observer.dropped(outbox, framed, taken)

    def _defer(
        self,
        outbox: Receiver,
        wire: bytes,
        count: int,
        on_resumed: Callable[[], None] = _nothing,
    ) -> None:
        """Deliveries to an outbox are paused, or have ended: see `Outbox.keep`."""
        due = outbox.due(count)
        self.matched -= count - due
        if due == count:
            outbox.keep(wire, count, on_resumed)
        else:
            outbox.outbox.defer(due)
        self.settle(outbox.outbox)

    def _drop_unframable(
        self,
        form: WireForm,
        outboxes: Iterable[Receiver],
        entries: list[Matched],
        firsts: list[int] | None,
        count: int,
        total: int,
    ) -> None:
        """Count those of `entries` that a form can't carry: it can `count` of `total` messages."""
        missing = total - count
        lost: Sequence[Matched] = ()
        if self.observer is not None:
            _, lost = carried(form, entries, firsts, count)
        for outbox in outboxes:
            if self._lose(outbox, lost, missing):
                outbox.dropped_unframable += missing
                self.dropped["unframable"] += missing

    def _form_failed(
        self,
        error: Exception,
        outboxes: Iterable[Receiver],
        entries: list[Matched],
        total: int,
    ) -> None:
        """A form could not write `entries`: none of these outboxes gets them."""
        self.failures.note("delivery", error)
        for outbox in outboxes:
            if self._lose(outbox, entries, total):
                self.dropped["error"] += total

    def _lose(self, outbox: Receiver, lost: Sequence[Matched], count: int) -> bool:
        """Whether `count` messages that can't be written are lost to an outbox for that reason.

        They are not where its session has ended, or is replayed them later, if ever.
        """
        deferred = outbox.muted and not outbox.holding
        if deferred:
            outbox.outbox.defer(count)
            self.settle(outbox.outbox)
        if self.observer is not None:
            missed = deferred and outbox.outbox.paused
            (self.observer.missed if missed else self.observer.dropped)(outbox, lost)
        return not deferred

    def settle(self, outbox: Outbox) -> None:
        """Add to the totals what is gone of an outbox, and what it was replayed. O(1)."""
        gone, replayed = outbox.settle()
        if gone:
            self.dropped["gone"] += gone
        self.replayed += replayed

    def _end_session(self, outbox: Receiver) -> None:
        try:
            outbox.outbox.fail()
        except Exception as error:
            self.failures.note("callback", error)


def _unless_short(steps: Iterator[None]) -> Iterator[None] | None:
    """Do the first step, and return the others, if there are any."""
    try:
        next(steps)
    except StopIteration:
        return None
    return steps
