"""The contract of a delivery observer: who wants to know what became of which message.

Usage accounting (`mist.broker.usage`) is one. A broker has one observer or none, and none costs
nothing: `mist.broker.fanout` asks once for each delivery whether there is one.

Nothing is told of each outbox that takes what it is given, for that would cost as much as the
fan-out. `published` says who is to get some messages; what then goes another way is told of each
subscriber that is concerned:

    published   to all of these recipients, but a publisher without echo, and but queue groups
      dropped   this one of them lost some
      missed    this one didn't get some, which are not lost: it reads them from the history
      held      this one gets them later, or never
      withdrawn this one unsubscribed before it got them
      gone      this one had them queued, and its session ended before they were sent
    delivered   this member of a queue group got one; or `dropped`, where none could take it

Subscribers are told of, too: `joined`, `left`, `changing`, and `moving`. All calls come in the
order in which things happen, and from nowhere but `mist.broker`.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence

from mist.broker.groups import Group
from mist.broker.matches import Match, Matched, Recipients
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.queued import Queued
from mist.wire import Entry, Run, TagList

__all__ = ["DeliveryObserver", "Receiver", "Replayed"]

Receiver = Outbox | NamedSubscription
"""What deliveries are put into."""

Replayed = tuple[Sequence[Entry], Sequence[int] | None, int]
"""Entries and ids as they were given to a form's `join`, and how many messages came of it."""


class DeliveryObserver(abc.ABC):
    """See the module. An observer must not raise, nor change the broker."""

    # subscribers

    @abc.abstractmethod
    def joined(self, group: Group, owner: str) -> None:
        """A subscriber of this owner joins a group; called before the group has it."""

    @abc.abstractmethod
    def left(self, group: Group, owner: str) -> None:
        """A subscriber of this owner leaves a group; called while the group has it still."""

    @abc.abstractmethod
    def moved(self, groups: Sequence[Group], before: str, after: str) -> None:
        """A subscriber of these groups is about to be another owner's."""

    @abc.abstractmethod
    def changing(self, group: Group) -> None:
        """Other subscribers than now will get a group's messages, though none joins or leaves."""

    # messages

    @abc.abstractmethod
    def published(
        self, recipients: Recipients, entries: Sequence[Matched], skip: Outbox | None
    ) -> None:
        """These are for these recipients, all of each entry's match unless they are `targeted`.

        Args:
            skip: the publisher's outbox, which gets none of it, nor do its named subscriptions.
        """

    @abc.abstractmethod
    def published_whole(
        self,
        recipients: Recipients,
        runs: Sequence[Run],
        matches: Mapping[bytes, Match],
        skip: Outbox | None,
    ) -> None:
        """As `published`, for a whole batch whose records are canonical.

        Nobody else needs `entries` then, and making them costs as much as counting them.

        Args:
            matches: of each run's tag list.
        """

    @abc.abstractmethod
    def delivered(self, member: NamedSubscription, entries: Sequence[Matched]) -> None:
        """A member of a queue group took these."""

    @abc.abstractmethod
    def dropped(
        self,
        receiver: Receiver,
        entries: Sequence[Matched],
        queued: Sequence[bool] | None = None,
    ) -> None:
        """A receiver lost these, or some of them.

        Args:
            queued: of each message in turn whether it was queued after all. Shorter where
                deliveries ended: what is behind was neither queued nor dropped. None: none was
                queued, all are dropped.
        """

    @abc.abstractmethod
    def missed(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        """A receiver didn't get these now. They are not lost: a replay may bring them."""

    @abc.abstractmethod
    def held(self, receiver: Receiver, entries: Sequence[Matched]) -> Callable[[], None]:
        """A receiver didn't get these now; returned is what to call if it does later."""

    @abc.abstractmethod
    def withdrawn(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        """A receiver was to get these, and has unsubscribed meanwhile: it gets none of them."""

    @abc.abstractmethod
    def moving(self, outbox: Outbox) -> None:
        """Other groups, or another owner, will be the outbox's; called before they are."""

    @abc.abstractmethod
    def gone(self, outbox: Outbox, queued: Queued) -> None:
        """These were queued, as was told of before, and not sent when the session ended."""

    @abc.abstractmethod
    def replayed(
        self, outbox: Outbox, runs: Iterable[Replayed], match: Callable[[TagList], Match]
    ) -> None:
        """An outbox was sent these from the history.

        Args:
            match: what a tag list matches now.
        """
