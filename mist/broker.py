"""Who gets a message: subscriptions, matching, fan-out.

Three steps, each cheaper because of the one before:

1. *Index* (`mist.index`): a message's tag set → the groups whose tag set it contains. A
   `Group` is all subscribers of one tag set.
2. *Memo*: a tag list as written → its `Route`. A publisher uses few tag lists, so nearly
   every message is one dict lookup. A route knows its groups; a new tag set forgets exactly
   the routes it matches, a further subscriber of a known tag set forgets none.
3. *Targets*: the distinct outboxes behind a route's groups, by wire form. Routes with the
   same outboxes share one `Targets` object, so that "same destination" is an identity check,
   and consecutive messages with the same destination are joined and appended once.

What a publish costs is therefore a dict lookup a message, and an append for each run of
messages and subscriber. Nothing here waits, locks, or allocates for a delivery.

A message reaches an outbox once, however many of its subscriptions match, and messages reach
an outbox in the order published.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final
from weakref import WeakValueDictionary

import attrs

from mist.errors import CommandError
from mist.index import Index, Memo
from mist.index.intern import Tag
from mist.message import (
    Batch,
    Entry,
    Limits,
    Run,
    TagList,
    TagSet,
    format_tags,
    parse_tag_list,
)
from mist.meters import Meters
from mist.outbox import BURST, Outbox
from mist.protocols import WireForm
from mist.routes import Group, Route, Targets

__all__ = ["Accepted", "Broker", "BrokerStatistics", "Group", "Rejected"]

# Up to here, two sets of outboxes are told to be equal by comparing them; above, only by the
# groups they come from. Comparing costs a set of that size for each distinct destination.
_SMALL: Final = 64

# Outboxes in all the targets kept, repeats counted: 8 to 80 bytes each. Without a bound, ten
# thousand tag lists that each reach ten thousand subscribers would keep a hundred million.
_MAX_AIMED: Final = 1_000_000


def _ignore(error: CommandError) -> None:
    pass


@attrs.frozen
class Accepted:
    """What can be published: a batch whose tag lists keep the rules, and its entries."""

    batch: Batch
    entries: Sequence[Entry]


@attrs.frozen
class Rejected:
    """What can't: the error, and the number of messages that it concerns."""

    error: CommandError
    count: int


@attrs.frozen
class BrokerStatistics:
    """Counts of a broker since it was made.

    Attributes:
        published: messages accepted.
        published_by_peers: those of them that came over a session.
        rejected: messages refused for their tags.
        unmatched: messages that nobody was subscribed to.
        tag_sets: distinct tag sets subscribed to now.
        tags: distinct tags in these.
        dropped: messages not delivered, by reason, over all outboxes, gone ones included.
    """

    published: int
    published_by_peers: int
    rejected: int
    unmatched: int
    tag_sets: int
    tags: int
    dropped: dict[str, int]


class Broker:
    """Subscriptions and fan-out. Knows outboxes and wire forms; no session, socket or task.

    Args:
        limits: rules for what is published and subscribed.
        meters: what is measured now and then; None measures nothing.

    Attributes:
        ready: outboxes with something to flush. Pass it to each `Outbox`; call `flush` when
            a chunk of work is done.
        flushes: how often `flush` was called.
        meters: as given.
    """

    def __init__(self, limits: Limits | None = None, meters: Meters | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self.meters = meters
        # The message whose tags are looked at next. Infinity is never reached.
        self._sample_at: float = math.inf if meters is None else 1
        self.ready: list[Outbox] = []
        self.flushes = 0
        self._unflushed = 0
        self._index: Index[Group] = Index()
        self._memo: Memo[Route] = Memo()
        self._targets: WeakValueDictionary[frozenset[Outbox] | frozenset[Group], Targets] = (
            WeakValueDictionary()
        )
        self._aimed = 0
        self._nobody = Targets(())
        self._published = 0
        self._published_inside = 0
        self._rejected = 0
        self._unmatched = 0
        self.dropped: Counter[str] = Counter()

    # subscriptions

    def subscribe(self, outbox: Outbox, tags: TagSet) -> Group:
        """Deliver messages that carry all of `tags` to `outbox`. Idempotent.

        Returns:
            the group, which `unsubscribe` takes.
        """
        group = self._index.get(tags)
        if group is None:
            group = Group(format_tags(tags).encode())
            self._index.add(tags, group)
            self._memo.invalidate(tags)
        group.add(outbox)
        return group

    def unsubscribe(self, outbox: Outbox, group: Group) -> None:
        """Undo `subscribe`. Nothing happens where the outbox isn't in the group."""
        if outbox not in group:
            return
        group.discard(outbox)
        if not group:
            tags = group.tags
            self._index.remove(tags)
            self._memo.invalidate(tags)

    def find(self, tags: TagSet) -> Group | None:
        """The group of exactly this tag set, if anyone is subscribed to it."""
        return self._index.get(tags)

    def tag_sets(self) -> int:
        """How many distinct tag sets are subscribed to. O(1)."""
        return len(self._index)

    def tags(self) -> TagSet:
        """Every distinct tag that anyone is subscribed to. O(tags)."""
        return frozenset(self._index.tags())

    def groups(self) -> Iterator[list[Group]]:
        """All groups, some at a time; see `Index.slices`."""
        return self._index.slices()

    def tag_uses(self) -> Iterator[list[Tag[Group]]]:
        """Distinct tags and how many tag sets have them, some at a time; see there, too."""
        return self._index.tag_slices()

    # publishing

    def publish(
        self,
        batch: Batch,
        source: Outbox | None = None,
        on_error: Callable[[CommandError], None] = _ignore,
        *,
        first: int | None = None,
    ) -> int:
        """Queue a batch's messages for everyone they match. Call `flush` some time after.

        More than `BURST` bytes queued since the last flush are flushed here.

        Args:
            batch: tag lists in it need no check before.
            source: the publisher's own outbox, left out where it doesn't want its echo.
            on_error: called for a tag list that breaks the rules, after what stands before
                it was queued and before what stands behind it.
            first: the id of the first message, where there is a history. Then every tag list
                has been checked (`screen`), and the others' ids follow it.

        Returns:
            messages accepted.
        """
        skip = None if source is None or source.echo else source
        accepted = self._publish_whole(batch, skip, first)
        if accepted is None:
            accepted = self._publish_each(batch, skip, on_error, first)
        self._published += accepted
        if source is None:
            self._published_inside += accepted
        if self._published >= self._sample_at:
            self._sample(batch, accepted)
        return accepted

    def screen(self, batch: Batch) -> Iterator["Accepted | Rejected"]:
        """Check a batch's tag lists without delivering anything; its parts, in order."""
        known: dict[bytes, TagList | CommandError] = {}
        flawless = True
        for tag_list in set(batch.tag_lists):
            found = self._memo.entries.get(tag_list)
            if found is not None:
                known[tag_list] = found
                continue
            try:
                known[tag_list] = TagList(parse_tag_list(tag_list, self.limits.message_tags))
            except CommandError as error:
                known[tag_list] = error
                flawless = False
        entries: list[Entry] = []
        runs: list[Run] = []
        for tag_list, wire, count in batch.runs:
            checked = known[tag_list]
            if isinstance(checked, TagList):
                if tag_list != checked.canonical:
                    wire = checked.rewrite(b"publish %b " % tag_list, wire, count)
                entries.append((checked, wire, count))
                runs.append((checked.canonical, wire, count))
                continue
            if runs:
                yield Accepted(Batch.of_runs(runs, framable=batch.framable), entries)
                runs, entries = [], []
            self._rejected += count
            yield Rejected(checked, count)
        if flawless:
            yield Accepted(batch, entries)
        elif runs:
            yield Accepted(Batch.of_runs(runs, framable=batch.framable), entries)

    def _publish_whole(self, batch: Batch, skip: Outbox | None, first: int | None) -> int | None:
        """Deliver a batch that has one destination; else do nothing and return None.

        Whatever the number of messages, what is looked up is distinct tag lists, and where
        these are canonical, what is queued is the bytes that the publisher sent.
        """
        if batch.whole is None:
            return None
        find = self._memo.entries.get
        common: Targets | None = None
        canonical = True
        for tag_list in set(batch.tag_lists):
            route = find(tag_list)
            if route is None:
                return None
            canonical = canonical and route.written is None
            targets = route.targets or self._aim(route)
            if targets is not common:
                if common is not None:
                    return None
                common = targets
        count = batch.whole[1]
        if common is self._nobody:
            self._unmatched += count
        elif common is not None:
            entries = None if canonical else self._entries(batch)
            self._deliver(common, batch, entries, skip, first)
        return count

    def _publish_each(
        self,
        batch: Batch,
        skip: Outbox | None,
        on_error: Callable[[CommandError], None],
        first: int | None,
    ) -> int:
        """Deliver a batch run by run, those that follow each other to one destination joined."""
        find = self._memo.entries.get
        entries: list[Entry] = []
        current: Targets | None = None
        start = first  # the id of the first of `entries`
        accepted = 0
        for tag_list, wire, count in batch.runs:
            route = find(tag_list)
            if route is None:
                try:
                    route = self._resolve(tag_list)
                except CommandError as error:
                    if entries and current is not None:
                        self._deliver(current, batch, entries, skip, start)
                        entries = []
                    self._rejected += count
                    for _ in range(count):
                        on_error(error)
                    continue
            targets = route.targets or self._aim(route)
            if targets is not current:
                if entries and current is not None:
                    self._deliver(current, batch, entries, skip, start)
                    entries = []
                current = targets
                start = None if first is None else first + accepted
            accepted += count
            if targets is self._nobody:
                self._unmatched += count
                continue
            if route.written is not None:
                wire = route.rewrite(route.written, wire, count)
            entries.append((route, wire, count))
        if entries and current is not None:
            self._deliver(current, batch, entries, skip, start)
        return accepted

    def flush(self) -> None:
        """Have every outbox with something queued write what it can without waiting."""
        self.flushes += 1
        self._unflushed = 0
        ready = self.ready
        while ready:
            outbox = ready.pop()
            outbox.is_ready = False
            outbox.flush()

    def reshape(self, outbox: Outbox, form: WireForm, groups: Iterable[Group]) -> None:
        """Give an outbox another wire form; `groups` are those it is in."""
        outbox.form = form
        for group in groups:
            group.changed()

    def statistics(self) -> BrokerStatistics:
        """A frozen copy of the counts."""
        return BrokerStatistics(
            published=self._published,
            published_by_peers=self._published - self._published_inside,
            rejected=self._rejected,
            unmatched=self._unmatched,
            tag_sets=len(self._index),
            tags=self._index.statistics().tags,
            dropped=dict(self.dropped),
        )

    def sample_soon(self) -> None:
        """Have the next message's tags looked at, however long it would have been until then."""
        if self.meters is not None:
            self._sample_at = self._published + 1

    def _sample(self, batch: Batch, accepted: int) -> None:
        assert self.meters is not None
        before = self._published - accepted
        # Tag lists stand for one message each, or for about as many; see `Batch`.
        place = (int(self._sample_at) - before - 1) * len(batch.tag_lists) // accepted
        later = self.meters.tags.sample(batch.tag_lists[place], self._published)
        self._sample_at = self._published + later

    def _resolve(self, tag_list: bytes) -> Route:
        tags = parse_tag_list(tag_list, self.limits.message_tags)
        meters = self.meters
        began = 0.0 if meters is None else meters.match.begin()
        route = Route(tag_list, tags, self._index.match(tags))
        if began and meters is not None:
            meters.match.end(began)
        self._memo.admit(tag_list, tags, route)
        return route

    def _aim(self, route: Route) -> Targets:
        groups = route.groups
        outboxes = dict.fromkeys(outbox for group in groups for outbox in group.members)
        if outboxes:
            key: frozenset[Outbox] | frozenset[Group] = (
                frozenset(outboxes) if len(outboxes) <= _SMALL else frozenset(groups)
            )
            found = self._targets.get(key)
            if found is None or found.stale:
                found = self._targets[key] = self._make_targets(outboxes)
            targets = found
        else:
            targets = self._nobody
        for group in groups:
            group.watch(route)
        route.targets = targets
        return targets

    def _make_targets(self, outboxes: Iterable[Outbox]) -> Targets:
        targets = Targets(outboxes)
        self._aimed += sum(len(members) for _, members in targets.by_form)
        if self._aimed > _MAX_AIMED:
            self._aimed = 0
            for route in self._memo.entries.values():
                route.targets = None
        return targets

    def _deliver(
        self,
        targets: Targets,
        batch: Batch,
        entries: list[Entry] | None,
        skip: Outbox | None,
        first: int | None,
    ) -> None:
        """Queue `entries`, which are of `batch`, or with None the whole batch as it came.

        Args:
            first: the id of the first message among them; they are consecutive.
        """
        for form, outboxes in targets.by_form:
            firsts: list[int] | None = None
            if entries is None and form.passes_lines and batch.whole is not None:
                wire, count = batch.whole
            else:
                entries = entries or self._entries(batch)
                if form.numbered and first is not None:
                    firsts = list(accumulate([entry[2] for entry in entries[:-1]], initial=first))
                wire, count = form.join(entries, framable=batch.framable, firsts=firsts)
                if not batch.framable:
                    self._withhold(form, outboxes, sum(entry[2] for entry in entries) - count)
                if not count:
                    continue
            # However many publishers share a flush, together they can't fill the outbox of a
            # subscriber that is not slow.
            self._unflushed += len(wire)
            if self._unflushed > BURST:
                self.flush()
            for outbox in outboxes:
                if outbox is not skip and not outbox.put(wire, count):
                    if outbox.keep(wire, count):
                        continue
                    if outbox.on_behind is not None and first is not None:
                        outbox.withhold()
                        outbox.on_behind(first - 1)
                        continue
                    before = outbox.dropped_full
                    outbox.put_each(form.pieces(entries or self._entries(batch), firsts=firsts))
                    self.dropped["full"] += outbox.dropped_full - before

    def _entries(self, batch: Batch) -> list[Entry]:
        """A whole batch's runs with their routes, all of which are known."""
        routes = self._memo.entries
        found: list[Entry] = []
        for tag_list, wire, count in batch.runs:
            route = routes[tag_list]
            if route.written is not None:
                wire = route.rewrite(route.written, wire, count)
            found.append((route, wire, count))
        return found

    def _withhold(self, form: WireForm, outboxes: Iterable[Outbox], count: int) -> None:
        for outbox in outboxes if count else ():
            if outbox.withheld and not outbox.holding:
                continue  # counted when it is brought
            outbox.dropped_unframable += count
            self.dropped["unframable"] += count
