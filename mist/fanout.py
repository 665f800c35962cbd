"""From a route to the outboxes behind it, and what is published into them.

`aim` finds a route's `Targets`, the distinct outboxes behind its groups. Routes with the same
outboxes share one `Targets` object, so that "same destination" is an identity check, and
consecutive messages with the same destination are joined and appended once (`deliver`). What
was queued is written when somebody says so (`flush`): at the end of a chunk of work, or here,
once a burst of it has come together.

Nothing here waits, locks, or allocates for a delivery. What is published where, and what stands
in the way of publishing it, is `mist.broker`'s.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final
from weakref import WeakValueDictionary

from mist.message import Batch, Entry
from mist.outbox import BURST, Outbox
from mist.protocols import WireForm
from mist.routes import Group, Route, Targets

__all__ = ["FanOut"]

# Up to here, two sets of outboxes are told to be equal by comparing them; above, only by the
# groups they come from. Comparing costs a set of that size for each distinct destination.
_SMALL: Final = 64

# Outboxes in all the targets kept, repeats counted: 8 to 80 bytes each. Without a bound, ten
# thousand tag lists that each reach ten thousand subscribers would keep a hundred million.
_MAX_AIMED: Final = 1_000_000


class FanOut:
    """See the module.

    Args:
        routes: those that are remembered, by the tag list as written. Looked at, never changed.

    Attributes:
        ready: outboxes with something to flush.
        flushes: how often `flush` was called.
        dropped: messages not delivered, by reason.
        nobody: the targets of what nobody is subscribed to.
    """

    def __init__(self, routes: Mapping[bytes, Route]) -> None:
        self.ready: list[Outbox] = []
        self.flushes = 0
        self.dropped: Counter[str] = Counter()
        self.nobody = Targets(())
        self._routes = routes
        self._unflushed = 0  # bytes, each once however many get them
        self._targets: WeakValueDictionary[frozenset[Outbox] | frozenset[Group], Targets] = (
            WeakValueDictionary()
        )
        self._aimed = 0

    def aim(self, route: Route) -> Targets:
        """Find a route's targets anew, and have it keep them until a group of it changes."""
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
            targets = self.nobody
        for group in groups:
            group.watch(route)
        route.targets = targets
        return targets

    def _make_targets(self, outboxes: Iterable[Outbox]) -> Targets:
        targets = Targets(outboxes)
        self._aimed += sum(len(members) for _, members in targets.by_form)
        if self._aimed > _MAX_AIMED:
            self._aimed = 0
            for route in self._routes.values():
                route.targets = None
        return targets

    def deliver(
        self,
        targets: Targets,
        batch: Batch,
        entries: list[Entry] | None,
        skip: Outbox | None,
        first: int | None,
    ) -> None:
        """Queue `entries`, which are of `batch`, or with None the whole batch as it came.

        Args:
            skip: an outbox that gets none of it.
            first: the id of the first message among them; they are consecutive.
        """
        for form, outboxes in targets.by_form:
            firsts: list[int] | None = None
            if entries is None and form.passes_lines and batch.whole is not None:
                wire, count = batch.whole
            else:
                entries = entries or self.entries_of(batch)
                if form.numbered and first is not None:
                    firsts = list(accumulate([entry[2] for entry in entries[:-1]], initial=first))
                wire, count = form.join(entries, framable=batch.framable, firsts=firsts)
                if not batch.framable:
                    self._withhold(outboxes, sum(entry[2] for entry in entries) - count)
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
                    entries = entries or self.entries_of(batch)
                    self._put_each(outbox, form, entries, firsts)

    def entries_of(self, batch: Batch) -> list[Entry]:
        """A whole batch's runs with their routes, all of which are known."""
        routes = self._routes
        found: list[Entry] = []
        for tag_list, wire, count in batch.runs:
            route = routes[tag_list]
            if route.written is not None:
                wire = route.rewrite(route.written, wire, count)
            found.append((route, wire, count))
        return found

    def flush(self) -> None:
        """Have every outbox with something queued write what it can without waiting."""
        self.flushes += 1
        self._unflushed = 0
        ready = self.ready
        while ready:
            outbox = ready.pop()
            outbox.is_ready = False
            outbox.flush()

    # The slow path

    def _put_each(
        self, outbox: Outbox, form: WireForm, entries: list[Entry], firsts: list[int] | None
    ) -> None:
        """Queue message by message what together doesn't fit."""
        before = outbox.dropped_full
        outbox.put_each(form.pieces(entries, firsts=firsts))
        self.dropped["full"] += outbox.dropped_full - before

    def _withhold(self, outboxes: Iterable[Outbox], count: int) -> None:
        """Count messages that a form can't carry."""
        for outbox in outboxes if count else ():
            if outbox.withheld and not outbox.holding:
                continue  # counted when it is brought
            outbox.dropped_unframable += count
            self.dropped["unframable"] += count
