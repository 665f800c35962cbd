"""Refusals: what an outbox doesn't take or a form can't carry, and what became of each delivery.

The slow path of the fan-out, which is derived from this. Peers that are slow consumers or are
replayed the history refuse deliveries, as do those whose sessions have ended; what each of them is
due ends up delivered, dropped for a reason, or gone.

What raises here is contained: it costs one delivery or one session (`mist.broker.failures`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from mist.broker.failures import Failures
from mist.broker.matches import Matched
from mist.broker.observer import DeliveryObserver, Receiver
from mist.broker.outbox import Outbox
from mist.broker.queued import Queued
from mist.wire import Batch, WireForm, carried

__all__ = ["Refusals"]


def _nothing() -> None:
    pass


def _singly(entries: Sequence[Matched]) -> Iterator[Queued]:
    for match, wire, count in entries:
        for data in match.split(wire, count):
            yield Queued.of([(match, b"%b%b\n" % (match.head, data), 1)])


class Refusals:
    """See the module.

    Args:
        failures: where exceptions of forms and callbacks are noted.

    Attributes:
        matched: deliveries that were due: messages, times those who were to get each.
        replayed: messages given to sessions from the history, beside those that were due.
        dropped: messages not delivered, by reason.
        failures: as given. Each cost one delivery or one session.
        observer: who is told what became of each message; None costs nothing.
    """

    def __init__(self, failures: Failures) -> None:
        self.matched = 0
        self.replayed = 0
        self.dropped: Counter[str] = Counter()
        self.failures = failures
        self.observer: DeliveryObserver | None = None

    def _refused(
        self,
        outbox: Receiver,
        form: WireForm,
        refused: tuple[bytes, int],
        pieces: list[bytes],
        batch: Batch,
        entries: Sequence[Matched],
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
                missed = outbox.outbox.paused or not form.delivers
                (observer.missed if missed else observer.dropped)(outbox, framed)
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
            if observer is None:
                taken = outbox.put_each(pieces)
            else:
                taken = outbox.put_each(pieces, _singly(framed))
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
        entries: Sequence[Matched],
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
        entries: Sequence[Matched],
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
