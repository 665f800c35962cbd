"""A delivery observer whose failures cost what it observes, and no delivery."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from mist.broker.failures import Failures
from mist.broker.groups import Group
from mist.broker.matches import Match, Matched, Recipients
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.observer import DeliveryObserver, Receiver, Replayed
from mist.broker.outbox import Outbox
from mist.broker.queued import Queued
from mist.wire import Run, TagList

__all__ = ["ContainedObserver"]


def _nothing() -> None:
    pass


class ContainedObserver(DeliveryObserver):
    """Passes everything on to an observer, and notes what it raises.

    Written out, since a wrapper around any method would cost each delivery twice as much.

    Args:
        observer: that is told.
        failures: where what it raises is noted, as `observer`.
    """

    def __init__(self, observer: DeliveryObserver, failures: Failures) -> None:
        self._observer = observer
        self._failures = failures

    def joined(self, group: Group, owner: str) -> None:
        try:
            self._observer.joined(group, owner)
        except Exception as error:
            self._failures.note("observer", error)

    def left(self, group: Group, owner: str) -> None:
        try:
            self._observer.left(group, owner)
        except Exception as error:
            self._failures.note("observer", error)

    def moved(self, groups: Sequence[Group], before: str, after: str) -> None:
        try:
            self._observer.moved(groups, before, after)
        except Exception as error:
            self._failures.note("observer", error)

    def changing(self, group: Group) -> None:
        try:
            self._observer.changing(group)
        except Exception as error:
            self._failures.note("observer", error)

    def published(
        self, recipients: Recipients, entries: Sequence[Matched], skip: Outbox | None
    ) -> None:
        try:
            self._observer.published(recipients, entries, skip)
        except Exception as error:
            self._failures.note("observer", error)

    def published_whole(
        self,
        recipients: Recipients,
        runs: Sequence[Run],
        matches: Mapping[bytes, Match],
        skip: Outbox | None,
    ) -> None:
        try:
            self._observer.published_whole(recipients, runs, matches, skip)
        except Exception as error:
            self._failures.note("observer", error)

    def delivered(self, member: NamedSubscription, entries: Sequence[Matched]) -> None:
        try:
            self._observer.delivered(member, entries)
        except Exception as error:
            self._failures.note("observer", error)

    def dropped(
        self,
        receiver: Receiver,
        entries: Sequence[Matched],
        queued: Sequence[bool] | None = None,
    ) -> None:
        try:
            self._observer.dropped(receiver, entries, queued)
        except Exception as error:
            self._failures.note("observer", error)

    def missed(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        try:
            self._observer.missed(receiver, entries)
        except Exception as error:
            self._failures.note("observer", error)

    def held(self, receiver: Receiver, entries: Sequence[Matched]) -> Callable[[], None]:
        try:
            on_delivered = self._observer.held(receiver, entries)
        except Exception as error:
            self._failures.note("observer", error)
            return _nothing

        def contained() -> None:
            try:
                on_delivered()
            except Exception as error:
                self._failures.note("observer", error)

        return contained

    def withdrawn(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        try:
            self._observer.withdrawn(receiver, entries)
        except Exception as error:
            self._failures.note("observer", error)

    def moving(self, outbox: Outbox) -> None:
        try:
            self._observer.moving(outbox)
        except Exception as error:
            self._failures.note("observer", error)

    def gone(self, outbox: Outbox, queued: Queued) -> None:
        try:
            self._observer.gone(outbox, queued)
        except Exception as error:
            self._failures.note("observer", error)

    def replayed(
        self, outbox: Outbox, runs: Iterable[Replayed], match: Callable[[TagList], Match]
    ) -> None:
        try:
            self._observer.replayed(outbox, runs, match)
        except Exception as error:
            self._failures.note("observer", error)
