"""What usage accounting counts in: tallies of matches, logs of groups, and rows of a period.

How they work together is said in `mist.broker.usage`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import attrs

from mist.broker.groups import Group
from mist.broker.matches import Match, Recipients
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox

__all__ = ["Changed", "Delivered", "Move", "Tally", "UsageLog", "account", "data_size"]

_owner_of = attrgetter("owner")
_tag_list_of = attrgetter("tag_list")


class Delivered(NamedTuple):
    """What went to one account in a period; an account may have several of these.

    Attributes:
        owner: a token's registry id, or "".
        subscription: its canonical tag list.
        sent: messages delivered or queued, without those queued in an earlier period that were
            left in the queue when the session ended: so it may be negative, and so may `bytes`.
        dropped: messages lost to a full outbox, that the peer's dialect can't carry, that were
            left in the queue, or that came when the session had ended.
        bytes: of the data of those sent.
    """

    owner: str
    subscription: bytes
    sent: int
    dropped: int
    bytes: int


class Changed(NamedTuple):
    """Subscriptions made and ended in a period; attributes as in `Delivered`."""

    owner: str
    subscription: bytes
    opened: int
    closed: int


class Tally:
    """What went to a match's recipients since it began; settled, it is done with.

    Attributes:
        match: whose; it has this as `observed` meanwhile.
        messages, bytes: of records.
        repeats: a group, an owner, and how many subscribers this owner has in it who don't get
            the messages through it: their account is that of another group, or they are bound to
            a site and get nothing.
    """

    __slots__ = ("bytes", "match", "messages", "repeats")

    def __init__(self, match: Match, recipients: Recipients) -> None:
        self.match = match
        self.messages = 0
        self.bytes = 0
        self.repeats = _repeats(match.groups, recipients)


class UsageLog:
    """One group's sums in a period, for each of its subscribers, and what to add to them.

    Attributes:
        group: whose.
        messages, bytes: that every subscriber got.
        tallies: of matches through the group, to be settled.
        corrections: by owner: sent, dropped, bytes.
    """

    __slots__ = ("bytes", "corrections", "group", "messages", "tallies")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.messages = 0
        self.bytes = 0
        self.tallies: set[Tally] = set()
        self.corrections: dict[str, list[int]] = {}

    def correct(self, owner: str, sent: int, dropped: int, size: int) -> None:
        """Add to an owner's account; `size` is bytes of data, of what was sent."""
        row = self.corrections.get(owner)
        if row is None:
            self.corrections[owner] = [sent, dropped, size]
        else:
            row[0] += sent
            row[1] += dropped
            row[2] += size

    def close(self) -> Iterator[Delivered]:
        """What each owner got. Once, at the end: the sums are added to the corrections."""
        if self.messages:
            for owner, number in Counter(map(_owner_of, self.group.members)).items():
                self.correct(owner, number * self.messages, 0, number * self.bytes)
        subscription = self.group.tag_list
        for owner, (sent, dropped, size) in self.corrections.items():
            if sent or dropped or size:  # of a subscriber that moved, others stand in its `Move`
                yield Delivered(owner, subscription, sent, dropped, size)


@attrs.define(eq=False)
class Move:
    """A subscriber whose account has become another's, with all of its groups.

    There may be tens of thousands of these, each both left and joined; at once no more is done than
    to note how far their logs are. What that comes to is told when the period is closed.

    Attributes:
        before, after: whose it was, and is.
        groups: of which nothing has been told; from the end on they are taken out.
        logs: of each, messages and bytes that its log had, which are for the owner before.
        changes: whether subscriptions have ended and begun by it in the period.
    """

    before: str
    after: str
    groups: list[Group]
    logs: list[tuple[int, int]]
    changes: bool = True

    def take(self, most: int) -> tuple[list[Delivered], list[Changed]]:
        """Take out so many groups, and tell of them."""
        before, after = self.before, self.after
        delivered: list[Delivered] = []
        changed: list[Changed] = []
        for group, (messages, size) in zip(self.groups[-most:], self.logs[-most:], strict=True):
            tag_list = group.tag_list
            if messages:
                delivered.append(Delivered(before, tag_list, messages, 0, size))
                delivered.append(Delivered(after, tag_list, -messages, 0, -size))
            if self.changes:
                changed.append(Changed(before, tag_list, 0, 1))
                changed.append(Changed(after, tag_list, 1, 0))
        del self.groups[-most:], self.logs[-most:]
        return delivered, changed


def account(receiver: Outbox | NamedSubscription, match: Match) -> Group | None:
    """The group of a match to whose account a receiver's deliveries go.

    It is the first that has it, in the order of their tag lists; None where none has it.
    """
    if isinstance(receiver, NamedSubscription) and receiver.queue is not None:
        return receiver.group
    groups = [group for group in match.groups if receiver in group]
    if len(groups) > 1:
        return min(groups, key=_tag_list_of)
    return groups[0] if groups else None


def data_size(match: Match, wire: bytes, count: int) -> int:
    """Bytes of the data in so many of a match's records."""
    return len(wire) - count * (len(match.head) + 1)


def _repeats(groups: Sequence[Group], recipients: Recipients) -> Sequence[tuple[Group, str, int]]:
    """See `Tally`. O(groups), or O(subscribers) where subscriptions overlap."""
    if recipients.size == sum([group.subscribers for group in groups]):
        return ()
    due = set(recipients)
    found: Counter[tuple[Group, str]] = Counter()
    for group in sorted(groups, key=_tag_list_of):
        for member in group.members:
            if member in due:
                due.discard(member)
            else:
                found[group, member.owner] += 1
    return [(group, owner, times) for (group, owner), times in found.items()]
