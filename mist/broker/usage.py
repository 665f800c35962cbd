"""Usage accounting: who got how much for which subscription, for an archive's side tables.

A *delivery* is a message queued for a session; the account it goes to is a pair: the *owner*
(the registry id of the session's token, or "" for services without one) and the subscription
that brought it. Where several subscriptions of a session match, the message comes once and
counts once, for that one of them whose canonical tag list is the first in byte order. So the
accounts of an owner sum up to what was queued for its sessions, no more.

It is an observer of the fan-out (`mist.broker.observer`), and counts nothing for each delivery.
Three steps:

1. *Tally.* For each match the messages that went to its recipients, and their bytes.
2. *Settle.* A match's tally is added to the *usage log* of each of its groups. That has to come
   before the next change of any of these groups, and at the end of a period.
3. *Close.* A log's sums are multiplied by the number of subscribers that each owner has in
   the group.

A subscriber that joins a group has what its log says so far deducted, and one that leaves has it
credited; so a log can be multiplied by those who are there at the end, and a join costs O(1)
whatever the size of the group. What doesn't follow from who is in which group is corrected where it
happens, in paths that are slow anyway, and exactly: the publisher who wants no echo, a subscriber
in two groups of one match (found when a tally begins), what is dropped, what a session that is
behind doesn't get now, what is replayed to it from the history, and which member of a queue group
got a message.

*Bytes* are bytes of data, as published: without tags, escapes, ids and frames, so that a
subscriber's dialect changes nothing. *Sent* is what was delivered, and what waits in a session's
queue. What a session leaves in its queue when it ends is taken back from where it was booked, and
counts as *dropped*: in the period in which the session ended, so a period's row may be negative.

Refused: a count for each outbox and subscription (a step for each delivery), and one for each
group by owner that is brought up to date with each join (O(owners) a join).

Memory is bounded by periods: `on_full` asks for this one to be closed early.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from mist.broker.groups import Group
from mist.broker.matches import Match, Matched, Recipients
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.observer import DeliveryObserver, Receiver, Replayed
from mist.broker.outbox import Outbox
from mist.broker.queued import Queued
from mist.broker.usage_logs import Changed, Delivered, Move, Tally, UsageLog, account, data_size
from mist.wire import Run, TagList, carried

__all__ = ["Changed", "Delivered", "UsageAccounting"]

_tag_list_of: Final = attrgetter("tag_list")


class UsageAccounting(DeliveryObserver):
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
        self._logs: dict[Group, UsageLog] = {}
        self._closing: dict[Group, UsageLog] = {}
        self._changes: dict[tuple[str, bytes], list[int]] = {}  # opened, closed
        self._changed: dict[tuple[str, bytes], list[int]] = {}  # likewise, being closed
        self._moves: list[Move] = []
        self._moved = 0  # groups of those
        self._moves_closing: list[Move] = []
        self._begun: list[Tally] = []  # since the last time that all were settled
        self._places = 0  # groups of those

    # subscribers

    def joined(self, group: Group, owner: str) -> None:
        self._move(group, owner, -1)
        self._change(group, owner)[0] += 1

    def left(self, group: Group, owner: str) -> None:
        self._move(group, owner, 1)
        self._change(group, owner)[1] += 1

    def moved(self, groups: Sequence[Group], before: str, after: str) -> None:
        if groups:
            self._settle_all()
            self._moves.append(Move(before, after, list(groups), _sums(self._logs, groups)))
            if self._closing:
                sums = _sums(self._closing, groups)
                self._moves_closing.append(Move(before, after, list(groups), sums, changes=False))
            full = self._moved // self._full
            self._moved += len(groups)
            if self._moved // self._full > full:
                self.on_full()

    def changing(self, group: Group) -> None:
        log = self._logs.get(group)
        if log is not None:
            for tally in log.tallies:
                self._settle(tally)
            log.tallies.clear()

    def _move(self, group: Group, owner: str, sign: int) -> None:
        self.changing(group)
        for logs in (self._logs, self._closing):
            log = logs.get(group)
            if log is not None and log.messages:
                log.correct(owner, sign * log.messages, 0, sign * log.bytes)

    def _change(self, group: Group, owner: str) -> list[int]:
        key = owner, group.tag_list
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = [0, 0]
            if not len(self._changes) % self._full:
                self.on_full()
        return change

    # messages

    def published(
        self, recipients: Recipients, entries: Sequence[Matched], skip: Outbox | None
    ) -> None:
        if recipients.targeted:
            for each in _members(recipients):
                if each.outbox is not skip:
                    self._correct(each, entries, 1, 0)
            return
        for match, wire, count in entries:
            tally = match.observed
            if tally is None:
                tally = self._begin(match, recipients)
            tally.messages += count
            tally.bytes += len(wire)
        if skip is not None or recipients.queues:
            self._except(recipients, entries, skip)

    def published_whole(
        self,
        recipients: Recipients,
        runs: Sequence[Run],
        matches: Mapping[bytes, Match],
        skip: Outbox | None,
    ) -> None:
        for tag_list, wire, count in runs:
            match = matches[tag_list]
            tally = match.observed
            if tally is None:
                tally = self._begin(match, recipients)
            tally.messages += count
            tally.bytes += len(wire)
        if skip is not None or recipients.queues:
            entries = [(matches[tag_list], wire, count) for tag_list, wire, count in runs]
            self._except(recipients, entries, skip)

    def _except(
        self, recipients: Recipients, entries: Sequence[Matched], skip: Outbox | None
    ) -> None:
        """Deduct what tallies say of a publisher without echo, and of queue groups."""
        if skip is not None:
            for each in [each for each in _members(recipients) if each.outbox is skip]:
                self._correct(each, entries, -1, 0)
        for queue in recipients.queues:  # of whose members `delivered` tells
            if queue.group is not None:
                log = self._log(queue.group)
                for match, wire, count in entries:
                    log.correct(queue.owner, -count, 0, -data_size(match, wire, count))

    def delivered(self, member: NamedSubscription, entries: Sequence[Matched]) -> None:
        self._correct(member, entries, 1, 0)

    def dropped(
        self,
        receiver: Receiver,
        entries: Sequence[Matched],
        queued: Sequence[bool] | None = None,
    ) -> None:
        if queued is None or (len(queued) == _number(entries) and not any(queued)):
            self._correct(receiver, entries, 0 if _is_queue_member(receiver) else -1, 1)
            return
        place = 0
        for match, wire, count in entries:
            fates = queued[place : place + count]
            place += count
            if len(fates) == count and all(fates):
                continue
            sizes = map(len, match.split(wire, count))
            lost = sum(size for n, size in enumerate(sizes) if n >= len(fates) or not fates[n])
            if (group := account(receiver, match)) is not None:
                row = sum(fates) - count, fates.count(False), -lost
                self._log(group).correct(receiver.owner, *row)

    def missed(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        self._correct(receiver, entries, -1, 0)

    def held(self, receiver: Receiver, entries: Sequence[Matched]) -> Callable[[], None]:
        self._correct(receiver, entries, -1, 0)
        # Its subscriptions may be others when it gets them.
        rows = [
            (group, count, data_size(match, wire, count))
            for match, wire, count in entries
            if (group := account(receiver, match)) is not None
        ]

        def got() -> None:
            for group, count, size in rows:
                self._log(group).correct(receiver.owner, count, 0, size)

        return got

    def withdrawn(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        # It is in none of the groups any more. Where several matched, it was mostly in all of them.
        for match, wire, count in entries:
            group = min(match.groups, key=_tag_list_of, default=None)
            if group is not None:
                size = data_size(match, wire, count)
                self._log(group).correct(receiver.owner, -count, 0, -size)

    def moving(self, outbox: Outbox) -> None:
        outbox.pin(lambda queued: _accounts(outbox, queued))

    def gone(self, outbox: Outbox, queued: Queued) -> None:
        accounts = queued.accounts or _accounts(outbox, queued)
        for (owner, group), (match, wire, count) in zip(accounts, queued.entries, strict=True):
            if group is not None:
                size = data_size(match, wire, count)
                self._log(group).correct(owner, -count, count, -size)

    def replayed(
        self, outbox: Outbox, runs: Iterable[Replayed], match: Callable[[TagList], Match]
    ) -> None:
        totals: dict[bytes, tuple[TagList, list[int]]] = {}  # sent, dropped, bytes
        for entries, firsts, count in runs:
            sent, lost = carried(outbox.form, entries, firsts, count)
            for tag_list, wire, number in sent:
                total = totals.setdefault(tag_list.canonical, (tag_list, [0, 0, 0]))[1]
                total[0] += number
                total[2] += len(wire) - number * (len(tag_list.head) + 1)
            for tag_list, _, number in lost:
                totals.setdefault(tag_list.canonical, (tag_list, [0, 0, 0]))[1][1] += number
        for tag_list, total in totals.values():
            if (group := account(outbox, match(tag_list))) is not None:
                self._log(group).correct(outbox.owner, *total)

    def _correct(
        self, receiver: Receiver, entries: Sequence[Matched], sent: int, dropped: int
    ) -> None:
        """Add messages so many times to a receiver's account, if it has one: -1, 0 or 1 times."""
        owner = receiver.owner
        for match, wire, count in entries:
            group = account(receiver, match)
            if group is not None:
                size = data_size(match, wire, count)
                self._log(group).correct(owner, sent * count, dropped * count, sent * size)

    def _begin(self, match: Match, recipients: Recipients) -> Tally:
        """Have a tally, which is settled in time."""
        if self._places > self._most_places:
            self._settle_all()
        tally = match.observed = Tally(match, recipients)
        self._places += len(match.groups)
        self._begun.append(tally)
        for group in match.groups:
            self._log(group).tallies.add(tally)
        return tally

    def _log(self, group: Group) -> UsageLog:
        log = self._logs.get(group)
        if log is None:
            log = self._logs[group] = UsageLog(group)
            if not len(self._logs) % self._full:
                self.on_full()
        return log

    def _settle(self, tally: Tally) -> None:
        match, messages = tally.match, tally.messages
        if match.observed is not tally:  # it was settled before, for another of its groups
            return
        match.observed = None
        size = tally.bytes - messages * (len(match.head) + 1)
        logs = self._logs
        for group in match.groups:
            log = logs[group]
            log.messages += messages
            log.bytes += size
        for group, owner, number in tally.repeats:
            logs[group].correct(owner, -number * messages, 0, -number * size)

    def _settle_all(self) -> None:
        for tally in self._begun:
            self._settle(tally)
        self._begun.clear()
        self._places = 0
        for log in self._logs.values():
            log.tallies.clear()

    # periods

    def close(self, most: int = 500) -> Iterator[tuple[list[Delivered], list[Changed]]]:
        """End the period: what its accounts come to, some at a time, and begin the next.

        Messages may be published, and groups may change, between two slices: all that comes
        after the call of the first is of the next period. One that was given up is finished
        by the next call.

        Args:
            most: logs, or changes, in a slice: 1 or 2 µs each, and 50 ns for each
                subscriber.
        """
        self._settle_all()
        leftover, self._closing = self._closing, self._logs
        self._logs = {}
        forgotten, self._changed = self._changed, self._changes
        self._changes = {}
        moves, self._moves_closing = self._moves_closing, self._moves
        self._moves, self._moved = [], 0
        if leftover or forgotten or moves:  # of a closing that was given up; at once: that is rare
            taken = [move.take(len(move.groups)) for move in moves]
            left = [row for log in leftover.values() for row in log.close()]
            ended = [Changed(*key, *counts) for key, counts in forgotten.items()]
            yield (
                [*left, *(row for rows, _ in taken for row in rows)],
                [*ended, *(row for _, rows in taken for row in rows)],
            )
        changed = self._changed
        while changed:
            keys = list(islice(changed, most))
            yield [], [Changed(*key, *changed.pop(key)) for key in keys]
        closing = self._closing
        while closing or self._moves_closing:
            if self._moves_closing:
                move = self._moves_closing[-1]
                rows = move.take(max(1, most // 2))
                if not move.groups:
                    self._moves_closing.remove(move)
                yield rows
                continue
            delivered: list[Delivered] = []
            for group in list(islice(closing, most)):
                delivered += closing.pop(group).close()
            yield delivered, []


def _sums(logs: Mapping[Group, UsageLog], groups: Sequence[Group]) -> list[tuple[int, int]]:
    """What the logs of some groups have; nothing where there is none."""
    find = logs.get
    return [
        (0, 0) if (log := find(group)) is None else (log.messages, log.bytes) for group in groups
    ]


def _accounts(outbox: Outbox, queued: Queued) -> list[tuple[str, Group | None]]:
    receiver: Receiver = queued.receiver or outbox
    return [(outbox.owner, account(receiver, match)) for match, _, _ in queued.entries]


def _is_queue_member(receiver: Receiver) -> bool:
    return isinstance(receiver, NamedSubscription) and receiver.queue is not None


def _members(recipients: Recipients) -> Iterator[Receiver]:
    return (each for each in recipients if not isinstance(each, QueueGroup))


def _number(entries: Sequence[Matched]) -> int:
    return sum(entry[2] for entry in entries)
