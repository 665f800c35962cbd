"""Who got how much for which subscription: what an archive's companion tables are made of.

A *delivery* is a message queued for a session; the account it goes to is a pair: the *owner*
(the registry id of the session's token, or "" for services without one) and the subscription
that brought it. Where several subscriptions of a session match, the message comes once and
counts once, for that one of them whose canonical tag list is the first in byte order. So the
accounts of an owner sum up to what was queued for its sessions, no more.

Nothing is counted for each delivery. Three steps:

1. *Tally.* Each match counts the messages and the bytes that went along it.
2. *Settle.* A match's tally is added to the *ledger* of each of its groups. That has to come
   before the next change of any of these groups, and at the end of a period.
3. *Close.* A ledger's sums are multiplied by the number of subscribers that each owner has in
   the group.

Whoever joins a group gets what its ledger says so far deducted, and whoever leaves gets it
credited; so a ledger can be multiplied by those who are there at the end, and a join costs
O(1) whatever the size of the group. What doesn't follow from who is in which group is put
right where it happens, in paths that are slow anyway, and exactly: the publisher who wants no
echo, a subscriber in two groups of one match (found when a match is aimed), what is dropped,
what a session that is behind doesn't get now, and what is brought to it from the history.

*Bytes* are bytes of data, as published: without tags, escapes, ids and frames, so that a
subscriber's dialect changes nothing. *Sent* is what was put into a session's outbox, or was
held for it and came there. A peer that goes away before it has read that has had it sent.

Refused: a count for each outbox and subscription (a step for each delivery), and one for each
group by owner that is brought up to date whenever somebody joins (O(owners) a join).

Memory is bounded by periods: `on_full` asks for this one to be closed early.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from mist.broker.matches import Group, Match, Matched
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.wire import Run

__all__ = ["Changed", "Delivered", "UsageAccounting"]

_owner_of = attrgetter("owner")


class Delivered(NamedTuple):
    """What went to one account in a period; an account may have several of these.

    Attributes:
        owner: a token's registry id, or "".
        subscription: its canonical tag list.
        sent: messages queued.
        dropped: messages lost to a full outbox, or that the peer's dialect can't carry.
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


class _UsageLog:
    """One group's sums in a period, for each of its subscribers, and what to add to them.

    Attributes:
        group: whose.
        messages, bytes: that every subscriber got.
        matches: through the group, which may have a tally.
        corrections: by owner: sent, dropped, bytes.
    """

    __slots__ = ("bytes", "corrections", "group", "matches", "messages")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.messages = 0
        self.bytes = 0
        self.matches: set[Match] = set()
        self.corrections: dict[str, list[int]] = {}

    def correct(self, owner: str, sent: int, dropped: int, size: int) -> None:
        row = self.corrections.get(owner)
        if row is None:
            self.corrections[owner] = [sent, dropped, size]
        else:
            row[0] += sent
            row[1] += dropped
            row[2] += size

    def close(self) -> Iterator[Delivered]:
        if self.messages:
            for owner, number in Counter(map(_owner_of, self.group.members)).items():
                self.correct(owner, number * self.messages, 0, number * self.bytes)
        subscription = self.group.tag_list
        for owner, (sent, dropped, size) in self.corrections.items():
            if sent or dropped:
                yield Delivered(owner, subscription, sent, dropped, size)


def _account(outbox: Outbox | NamedSubscription, match: Match) -> Group | None:
    """To whose account an outbox's deliveries along a match go."""
    for group in match.groups:
        if outbox in group:
            return group
    return None


class UsageAccounting:
    """See the module. Of one broker, which calls everything but `close`.

    Args:
        full: accounts of one period before it is closed early. One takes about 1 KB with what
            it refers to.
        most_places: groups of matches with a tally before all are settled: 0.15 µs each, at
            once.

    Attributes:
        on_full: called when this period should be closed early.
    """

    def __init__(self, *, full: int = 50_000, most_places: int = 32_768) -> None:
        self._full = full
        self._most_places = most_places
        self.on_full: Callable[[], None] = lambda: None
        self._ledgers: dict[Group, _UsageLog] = {}
        self._closing: dict[Group, _UsageLog] = {}
        self._changes: dict[tuple[str, bytes], list[int]] = {}  # opened, closed
        self._changed: dict[tuple[str, bytes], list[int]] = {}  # likewise, being closed
        self._begun: list[Match] = []  # since the last time that all were settled
        self._places = 0  # groups of those

    # subscriptions

    def joined(self, group: Group, owner: str) -> None:
        """Somebody subscribes; call this before the group has it."""
        self._move(group, owner, -1)
        self._change(group, owner)[0] += 1

    def left(self, group: Group, owner: str) -> None:
        """Somebody unsubscribes; call this while the group has it still."""
        self._move(group, owner, 1)
        self._change(group, owner)[1] += 1

    def _move(self, group: Group, owner: str, sign: int) -> None:
        ledger = self._ledgers.get(group)
        if ledger is not None:
            for match in ledger.matches:
                self._settle(match)
            ledger.matches.clear()
            if ledger.messages:
                ledger.correct(owner, sign * ledger.messages, 0, sign * ledger.bytes)
        closing = self._closing.get(group)
        if closing is not None and closing.messages:
            closing.correct(owner, sign * closing.messages, 0, sign * closing.bytes)

    def _change(self, group: Group, owner: str) -> list[int]:
        key = owner, group.tag_list
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = [0, 0]
            if not len(self._changes) % self._full:
                self.on_full()
        return change

    # messages

    def published(self, entries: Sequence[Matched]) -> None:
        """These go to everybody whom their matches lead to."""
        for match, wire, count in entries:
            if not match.messages:
                self._begin(match)
            match.messages += count
            match.bytes += len(wire)

    def published_lines(self, runs: Sequence[Run], matches: Mapping[bytes, Match]) -> None:
        """As `published`, for lines that are canonical as written."""
        for tag_list, wire, count in runs:
            match = matches[tag_list]
            if not match.messages:
                self._begin(match)
            match.messages += count
            match.bytes += len(wire)

    def missed(self, outbox: Outbox | NamedSubscription, entries: Sequence[Matched]) -> None:
        """An outbox didn't get these, of what was `published`, and didn't drop them either."""
        for match, wire, count in entries:
            self.correct(outbox, match, -count, 0, count * match.overhead - len(wire))

    def dropped(self, outbox: Outbox | NamedSubscription, entries: Sequence[Matched]) -> None:
        """An outbox didn't get these, of what was `published`: they are dropped."""
        for match, wire, count in entries:
            self.correct(outbox, match, -count, count, count * match.overhead - len(wire))

    def later(
        self, outbox: Outbox | NamedSubscription, entries: Sequence[Matched]
    ) -> Callable[[], None]:
        """What to call if an outbox gets these after all, of what it `missed`."""
        rows = [
            (group, count, len(wire) - count * match.overhead)
            for match, wire, count in entries
            if (group := _account(outbox, match)) is not None
        ]

        def got() -> None:
            for group, count, size in rows:
                self._ledger(group).correct(outbox.owner, count, 0, size)

        return got

    def correct(
        self, outbox: Outbox | NamedSubscription, match: Match, sent: int, dropped: int, size: int
    ) -> None:
        """Add to an outbox's account; nothing happens where it isn't in the match's groups.

        Args:
            size: bytes of data, of what was sent.
        """
        group = _account(outbox, match)
        if group is not None:
            self._ledger(group).correct(outbox.owner, sent, dropped, size)

    def credit(self, group: Group, owner: str, sent: int, dropped: int, size: int) -> None:
        """Add to an owner's account for one subscription; see `correct`."""
        self._ledger(group).correct(owner, sent, dropped, size)

    def _begin(self, match: Match) -> None:
        """Have a match's tally settled in time."""
        groups = match.groups
        if self._places > self._most_places:
            self._settle_all()
        self._places += len(groups)
        self._begun.append(match)
        for group in groups:
            self._ledger(group).matches.add(match)

    def _ledger(self, group: Group) -> _UsageLog:
        ledger = self._ledgers.get(group)
        if ledger is None:
            ledger = self._ledgers[group] = _UsageLog(group)
            if not len(self._ledgers) % self._full:
                self.on_full()
        return ledger

    def _settle(self, match: Match) -> None:
        messages = match.messages
        if not messages:
            return
        size = match.bytes - messages * match.overhead
        match.messages = match.bytes = 0
        ledgers = self._ledgers
        for group in match.groups:
            ledger = ledgers[group]
            ledger.messages += messages
            ledger.bytes += size
        for group, owner, number in match.repeats:
            ledgers[group].correct(owner, -number * messages, 0, -number * size)

    def _settle_all(self) -> None:
        for match in self._begun:
            self._settle(match)
        self._begun.clear()
        self._places = 0
        for ledger in self._ledgers.values():
            ledger.matches.clear()

    # periods

    def close(self, most: int = 500) -> Iterator[tuple[list[Delivered], list[Changed]]]:
        """End the period: what its accounts come to, some at a time, and begin the next.

        Messages may be published, and groups may change, between two slices: all that comes
        after the call of the first is of the next period. One that was given up is finished
        by the next call.

        Args:
            most: ledgers, or changes, in a slice: 1 or 2 µs each, and 50 ns for each
                subscriber.
        """
        self._settle_all()
        leftover, self._closing = self._closing, self._ledgers
        self._ledgers = {}
        forgotten, self._changed = self._changed, self._changes
        self._changes = {}
        if leftover or forgotten:  # of a closing that was given up; at once, since that is rare
            yield (
                [row for ledger in leftover.values() for row in ledger.close()],
                [Changed(*key, *counts) for key, counts in forgotten.items()],
            )
        changed = self._changed
        while changed:
            keys = list(islice(changed, most))
            yield [], [Changed(*key, *changed.pop(key)) for key in keys]
        closing = self._closing
        while closing:
            delivered: list[Delivered] = []
            for group in list(islice(closing, most)):
                delivered += closing.pop(group).close()
            yield delivered, []
