"""The fan-out: a batch's messages into the send queues of their recipients.

`deliver` writes a run of messages once for each wire form that a recipient wants, and puts the same
bytes into each outbox (`Outbox.put`, which never waits). `flush` has what was queued written: it is
called at the end of a chunk of work, or here, once a burst has come together.

What an outbox refuses, since its peer is a slow consumer or is replayed the history, takes the
slow path (`mist.broker.refusals`); so does what a wire form can't carry.

Nothing here waits, locks, or allocates for a delivery. Who the recipients are is up to
`mist.broker.matches`.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from mist.broker.attribute_index import AttributeIndex, reaches, site_of
from mist.broker.failures import Failures
from mist.broker.matches import Match, Matched, Recipients, Resolver, Subscriber
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.observer import Receiver
from mist.broker.outbox import BURST, Outbox
from mist.broker.portion import Portion
from mist.broker.queued import Queued
from mist.broker.refusals import Refusals
from mist.broker.staying import LOOKED, looked_for, some_at_a_time, subscribes
from mist.wire import Batch, WireForm, carried

__all__ = ["FanOut"]

# Messages that are written in some forms without a pause, 0.2 to 1 µs each. In one form, all are
# that a publisher's chunk has.
_WRITTEN: Final = 8_192

# Messages offered one by one in a step, 0.5 µs each.
_PIECES: Final = 1_024

# Writes, offers to queue groups, or deliveries to slow consumers in a step: some 6 µs each.
_STEP: Final = 32

_Late = tuple[WireForm, bytes, int, list[int] | None, list[Receiver]]
"""Of one form: a delivery, its messages, their ids, and those who did not take it at once."""


class FanOut(Refusals):
    """See the module.

    Args:
        matches: those that are cached, by the tag list as written. Looked at, never changed.
        resolver: whether recipients may have left since they were found.
        attribute_index: whether anybody in it is bound to a site.
        failures: where exceptions of forms and callbacks are noted.

    Attributes:
        ready: outboxes with something to flush.
        flushes: how often `flush` was called.
        offers: how often an outbox was offered something; set to 0 by who makes steps of that.
    """

    def __init__(
        self,
        matches: Mapping[bytes, Match],
        resolver: Resolver,
        attribute_index: AttributeIndex,
        failures: Failures,
    ) -> None:
        super().__init__(failures)
        self.ready: deque[Outbox] = deque()
        self.flushes = 0
        self.offers = 0
        self._matches = matches
        self._resolver = resolver
        self._attribute_index = attribute_index
        self._unflushed = 0  # bytes, each once however many get them
        self._effort = 0  # offers to queue groups since the last step

    def deliver(
        self,
        recipients: Recipients,
        portion: Portion,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None] | None:
        """Queue messages for their recipients.

        Args:
            skip: an outbox that gets none of it.
            first: the id of the first message among them; they are consecutive.

        Returns:
            What is left to be done where that is much, in steps; some recipients have the messages
            then, and others have not. Nearly always None: all is done.
        """
        if self.observer is not None:
            if portion.is_whole:
                self.observer.published_whole(recipients, portion.batch.runs, self._matches, skip)
            else:
                self.observer.published(recipients, portion.entries, skip)
        if recipients.wide or _takes_long(recipients, portion):
            return self._deliver_parts(recipients, portion, skip, first)
        return self._deliver(recipients, portion, skip, first)

    def _deliver_parts(
        self,
        recipients: Recipients,
        portion: Portion,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """As `deliver`, where that takes long."""
        version = self._resolver.version
        for part in _parts(recipients, portion):
            if self._resolver.version == version:
                left = self._deliver(part, portion, skip, first)
                yield
            else:
                left = self._deliver_to_those_left(part, portion, skip, first)
            if left is not None:
                yield from left

    def _deliver_to_those_left(
        self,
        recipients: Recipients,
        portion: Portion,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """As `_deliver`, where some recipients may have unsubscribed since they were found."""
        for entry in portion.entries:
            one = Portion(portion.batch, entry[2], [entry])
            for some in some_at_a_time(recipients, [entry]):
                staying: list[Subscriber] = []
                for each in some:
                    if subscribes(each, [entry]):
                        staying.append(each)
                    elif not isinstance(each, QueueGroup) and each.outbox is not skip:
                        self._withdrawn(each, [entry])
                left = self._deliver(Recipients(staying), one, skip, first)
                yield
                if left is not None:
                    yield from left
            first = None if first is None else first + entry[2]

    def _deliver(
        self,
        recipients: Recipients,
        portion: Portion,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None] | None:
        batch, total = portion.batch, portion.count
        observer = self.observer
        late: list[_Late] | None = None
        for form, outboxes in recipients.by_form:
            firsts: list[int] | None = None
            if skip is not None:
                outboxes = tuple([each for each in outboxes if each.outbox is not skip])
            if form.delivers:
                self.matched += total * len(outboxes)
            wire = portion.wire if form.passes_lines else None
            count = total
            if wire is None:
                try:
                    wire = _from_columns(form, portion, ids=first is not None)
                    if wire is None:
                        entries = portion.entries
                        firsts = _ids(form, entries, first)
                        wire, count = form.join(
                            entries, framable=batch.framable, firsts=firsts, envelope=batch.envelope
                        )
                        if count < total:
                            self._drop_unframable(form, outboxes, entries, firsts, count, total)
                except Exception as error:
                    self._form_failed(error, outboxes, portion.entries, total)
                    continue
                if not count:
                    continue
            self._unflushed += len(wire)
            self.offers += len(outboxes)
            if observer is not None:
                count = Queued.of(carried(form, portion.entries, firsts, count)[0])
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
                late = late or []
                late.append((form, wire, count, firsts, refusing))
        if late is not None or recipients.queues:
            late = late or []
            return _unless_short(self._deliver_late(late, recipients, portion, skip, first))
        # However many publishers share a flush, together they can't fill the outbox of a
        # subscriber that is not slow.
        return self.flush_in_steps() if self._unflushed > BURST else None

    def _deliver_late(
        self,
        late: list[_Late],
        recipients: Recipients,
        portion: Portion,
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """What takes longer than a `put`: outboxes that refused, and queue groups."""
        version = self._resolver.version
        batch, entries = portion.batch, portion.entries
        for form, wire, count, firsts, refusing in late:
            pieces: list[bytes] = []
            left = _PIECES
            for outbox in refusing:
                left -= _PIECES // _STEP + count
                if self._resolver.version != version:
                    left -= _PIECES * looked_for(outbox, entries) // LOOKED
                if self._resolver.version == version or subscribes(outbox, entries):
                    about = entries, firsts, first
                    self._refused(outbox, form, (wire, count), pieces, batch, *about)
                else:
                    if form.delivers:
                        self.matched -= count  # it has unsubscribed since, and is due nothing
                    self._withdrawn(outbox, carried(form, entries, firsts, count)[0])
                if left <= 0:
                    left = _PIECES
                    yield
        for queue in recipients.queues:
            yield from self._share(queue, batch, entries, skip, first)
        if self._unflushed > BURST:
            yield from self.flush_in_steps()

    def _withdrawn(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        if self.observer is not None:
            self.observer.withdrawn(receiver, entries)

    def flush(self) -> None:
        """Have every outbox with something queued write what it can without waiting."""
        for _ in self.flush_in_steps():
            pass

    def flush_in_steps(self, *, oldest_first: bool = False) -> Iterator[None]:
        """As `flush`, in steps. What is queued meanwhile is written, too.

        Args:
            oldest_first: whether to begin with what was queued first. Else the latest is: where
                some other work's outboxes are many, one's own few are written before them.
        """
        self.flushes += 1
        ready = self.ready
        take = ready.popleft if oldest_first else ready.pop
        while ready:
            for _ in range(min(len(ready), _STEP)):
                outbox = take()
                outbox.is_ready = False
                try:
                    outbox.flush()
                except Exception as error:
                    # Nobody can say what the peer has got of it.
                    self.failures.note("flush", error)
                    self._end_session(outbox)
            if ready:
                yield
        # Not before: of what stays here, no outbox has more than a `BURST`.
        self._unflushed = 0

    # Queue groups

    def _share(
        self,
        queue: QueueGroup,
        batch: Batch,
        entries: Sequence[Matched],
        skip: Outbox | None,
        first: int | None,
    ) -> Iterator[None]:
        """Give each message to one member of a queue group, in steps."""
        audience = None if batch.envelope is None else batch.envelope.audience
        asks = audience is not None or skip is not None or self._attribute_index.bound
        effort = 1 + (len(queue.members) // _STEP if asks else 0)
        share, site_of_audience = queue.share, site_of(audience)
        place = 0
        for match, wire, count in entries:
            everywhere = match.everywhere
            site = None if everywhere else site_of_audience

            def admits(named: NamedSubscription, everywhere: bool = everywhere) -> bool:
                return named.outbox is not skip and reaches(audience, named.attributes, everywhere)

            for data in match.split(wire, count):
                entry = match, b"%b%b\n" % (match.head, data), 1
                ids = None if first is None else [first + place]
                place += 1
                if share is not None and ids is not None and not share.is_here(ids[0], site):
                    continue
                members = queue.draw(admits if asks else None)
                if not members:
                    if not queue.members:  # they have left, and other nodes don't know yet
                        self.matched += 1
                        self.dropped["gone"] += 1
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
            if named.put(pieces[0], 1 if observer is None else Queued.of([entry])):
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


def _from_columns(form: WireForm, portion: Portion, *, ids: bool) -> bytes | None:
    """A portion in a form, where that takes no entries; else None."""
    if not form.has_columns or portion.batch.envelope is not None or (ids and form.numbered):
        return None
    columns = portion.columns
    return None if columns is None else form.join_columns(*columns)


def _ids(form: WireForm, entries: Sequence[Matched], first: int | None) -> list[int] | None:
    """The id of each entry's first message, where there are any and a form shows them."""
    if first is None or not form.numbered:
        return None
    return list(accumulate([entry[2] for entry in entries[:-1]], initial=first))


def _takes_long(recipients: Recipients, portion: Portion) -> bool:
    """Whether there is too much to be written in a step."""
    forms = len(recipients.by_form)
    return forms > 1 and portion.count * forms > _WRITTEN


def _parts(recipients: Recipients, portion: Portion) -> Iterator[Recipients]:
    """Recipients by as many as get a portion in a step."""
    for part in recipients.parts() if recipients.wide else (recipients,):
        if _takes_long(part, portion):
            yield from part.of_each_form()
        else:
            yield part


def _unless_short(steps: Iterator[None]) -> Iterator[None] | None:
    """Do the first step, and return the others, if there are any."""
    try:
        next(steps)
    except StopIteration:
        return None
    return steps
