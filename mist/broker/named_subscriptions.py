"""Named subscriptions, and the queue groups whose members share messages.

A session usually gets a message once, however many of its subscriptions match. Where its
dialect gives each subscription a name that deliveries carry (a subject's `sid`), each gets
its own copy in a form of its own. Such a subscription is a `NamedSubscription`: to the broker it
looks like an outbox, and what is put into it goes to the session's.

A `QueueGroup` is many named subscriptions of which one gets each message: the members of a queue
group, over all sessions. It is a subscriber like any other; the fan-out draws the member that gets
a message.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mist.attributes import Attributes
from mist.broker.failures import Failures
from mist.broker.groups import Group
from mist.broker.outbox import ONES, Outbox
from mist.broker.queue_shares import QueueShare
from mist.broker.queued import Queued
from mist.wire import WireForm

__all__ = ["NamedSubscription", "QueueGroup"]


def _nothing() -> None:
    pass


class NamedSubscription:
    """One named subscription of a session.

    Args:
        outbox: the session's.
        form: how its deliveries are written.
        name: as the peer calls it.

    Attributes:
        group: of the broker's, that it is in.
        queue: that it is a member of; None where it gets everything.
        withdrawn: whether it is about to leave that, and other nodes know already.
        taken: messages so far.
        failures: where an `on_done` that raises is noted; None has it raise.
    """

    __slots__ = (
        "_most",
        "_on_done",
        "failures",
        "form",
        "group",
        "name",
        "outbox",
        "queue",
        "taken",
        "withdrawn",
    )

    def __init__(self, outbox: Outbox, form: WireForm, name: bytes) -> None:
        self.outbox = outbox
        self.form = form
        self.name = name
        self.group: Group | None = None
        self.queue: QueueGroup | None = None
        self.withdrawn = False
        self.taken = 0
        self.failures: Failures | None = None
        self._most = -1
        self._on_done: Callable[[], None] = _nothing

    def put(self, wire: bytes, count: int) -> bool:
        """As `Outbox.put`. Refuses a delivery that only in part it may still take."""
        if 0 <= self._most < self.taken + count:
            return False  # not all of these: one by one, then
        if type(count) is Queued:
            count = count.copy(self)
        if not self.outbox.put(wire, count):
            return False
        self.taken += count
        if self.taken == self._most:
            self._finish()
        return True

    def due(self, count: int) -> int:
        """How many of `count` messages it is still to get."""
        return count if self._most < 0 else min(count, max(self._most - self.taken, 0))

    def end_after(self, most: int, on_done: Callable[[], None]) -> None:
        """Take no more than so many messages, those before this call counted.

        Args:
            on_done: called when it has taken that many. It may have already: then it isn't called.
        """
        self._most = most
        self._on_done = on_done

    def put_each(self, pieces: Iterable[bytes], counts: Iterable[int] = ONES) -> list[bool]:
        """As `Outbox.put_each`; what comes behind the last message it takes isn't dropped."""
        wanted = list(pieces)
        wanted = wanted[: self.due(len(wanted))]
        own = (count.copy(self) if type(count) is Queued else count for count in counts)
        taken = self.outbox.put_each(wanted, own)
        self.taken += sum(taken)
        if wanted and self.taken == self._most:
            self._finish()
        return taken

    def release(self) -> None:
        """Let go of what this calls, which holds it. It has ended."""
        self._on_done = _nothing

    def _finish(self) -> None:
        try:
            self._on_done()
        except Exception as error:  # its last message is queued all the same
            if self.failures is None:
                raise
            self.failures.note("callback", error)

    # What else the fan-out asks of a receiver is the session's.

    @property
    def attributes(self) -> Attributes:
        return self.outbox.attributes

    @property
    def owner(self) -> str:
        return self.outbox.owner

    @property
    def muted(self) -> bool:
        return self.outbox.muted

    @property
    def holding(self) -> bool:
        return self.outbox.holding

    @property
    def on_behind(self) -> Callable[[int], None] | None:
        return self.outbox.on_behind

    def pause(self) -> None:
        self.outbox.pause()

    def keep(self, wire: bytes, count: int, *rest: Any) -> bool:
        return self.outbox.keep(wire, count, *rest)

    @property
    def dropped_full(self) -> int:
        return self.outbox.dropped_full

    @property
    def dropped_unframable(self) -> int:
        return self.outbox.dropped_unframable

    @dropped_unframable.setter
    def dropped_unframable(self, value: int) -> None:
        self.outbox.dropped_unframable = value


class QueueGroup:
    """A queue group: each message goes to one of its members, chosen at random.

    A member whose outbox is full is passed over for one that has room; where none has, the
    message counts as dropped by the first that was chosen.

    Attributes:
        name: as given.
        group: of the broker's, that it is in.
        members: in no particular order.
        share: which messages are for the members here, where others are at other nodes; None
            where all are.
    """

    __slots__ = ("_places", "group", "members", "name", "share")

    owner = ""

    def __init__(self, name: str, share: QueueShare | None = None) -> None:
        self.name = name
        self.group: Group | None = None
        self.share = share
        self.members: list[NamedSubscription] = []
        self._places: dict[NamedSubscription, int] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __bool__(self) -> bool:
        return True

    def add(self, named: NamedSubscription) -> None:
        """Add a member."""
        self._places[named] = len(self.members)
        self.members.append(named)
        named.queue = self

    def discard(self, named: NamedSubscription) -> None:
        """Remove a member. O(1)."""
        place = self._places.pop(named)
        last = self.members.pop()
        if last is not named:
            self.members[place] = last
            self._places[last] = place
        named.queue = None

    def draw(
        self, admits: Callable[[NamedSubscription], bool] | None = None
    ) -> Sequence[NamedSubscription]:
        """The members in the order in which to offer them a message: O(1) where all are asked.

        Args:
            admits: which of them may have it; None is all.
        """
        members = self.members if admits is None else [*filter(admits, self.members)]
        if len(members) < 2:
            return tuple(members)
        start = random.randrange(len(members))  # noqa: S311  # fairness, nothing to guess
        return _Turned(members, start)


class _Turned(Sequence[NamedSubscription]):
    """A list that begins somewhere else."""

    __slots__ = ("_members", "_start")

    def __init__(self, members: list[NamedSubscription], start: int) -> None:
        self._members = members
        self._start = start

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < len(self._members):
            raise IndexError(place)
        return self._members[(self._start + place) % len(self._members)]
