"""Readers that wait, each for its page, and what was found for each of them by now."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Final

import attrs

from mist.history.asked_runs import AskedRuns
from mist.history.block import Block, PackedPart
from mist.history.columns import INDEXES, unpack_all
from mist.history.layout import Row
from mist.history.page_cache import KeptPage, PageKey, Sums
from mist.history.part import pick
from mist.history.record import Beside, Loose, Stored
from mist.history.selection import Selection
from mist.wire import Entry

__all__ = ["PAGE_BYTES", "PAGE_MESSAGES", "Found", "Keep", "Readers", "Wanted"]

# Of a page. The one that reaches either is the last in it.
PAGE_MESSAGES: Final = 1_024
PAGE_BYTES: Final = 64 * 1024
_STEP: Final = 256  # messages that are taken at a time, unless a run has more


@attrs.frozen
class Wanted:
    """What a reader asks for: what is selected behind an id, up to another."""

    selection: Selection
    after: int
    upto: int

    @property
    def key(self) -> PageKey:
        """Of the page."""
        return self.selection.alternatives, self.after


Keep = Callable[[Wanted, KeptPage], None]
"""Keeps a page that was found for a reader."""


@attrs.define(eq=False)
class Found:
    """What was found of what a reader asks for.

    Attributes:
        wanted: by whom.
        sums: of that.
        reached: up to this id nothing is missing.
        is_full: whether nothing more is taken.
    """

    wanted: Wanted
    sums: Sums = attrs.field(factory=Sums)
    reached: int = 0
    is_full: bool = False
    _parts: list["_Alike"] = attrs.field(factory=list)

    @property
    def lookups(self) -> Sequence[Mapping[int, bytes]]:
        """See `Selection`."""
        return self.wanted.selection.lookups or ()

    def choose(self, block: Block, runs: AskedRuns, place: int) -> Sequence[int] | None:
        """The runs of a block that are selected, where all of these can be taken; else None."""
        wanted, head = self.wanted, block.head
        if max(wanted.after, place) >= head.start or head.last > wanted.upto:
            return None
        chosen = runs.of(self.lookups)
        return None if chosen is None or not self._has_room(block, chosen) else chosen

    def take(self, block: Block, place: int) -> int:
        """Take what is selected of a block, as far as there is room. Returns what it costs.

        Args:
            place: up to this id all has been taken. Where blocks were joined meanwhile, more of
                this one than its beginning may have been.
        """
        wanted = self.wanted
        part = block.part(
            *(wanted.selection, max(wanted.after, place), wanted.upto),
            *(PAGE_MESSAGES - self.sums.count, PAGE_BYTES - self.sums.size),
        )
        if part is None:
            return 0
        found: list[Loose] = []
        for step in PackedPart(block, part).unpack():
            for each in step:
                beside_it = repeat(each.time), repeat(each.beside)
                found += zip(each.entries, each.firsts, *beside_it, strict=False)
        return self.add(found, part.last)

    def add(self, runs: Sequence[Loose], last: int) -> int:
        """Take runs of a block. Returns what they cost.

        Args:
            last: the highest id of the block, or of what was looked at.
        """
        parts = self._parts
        before = len(parts)
        for entry, first, time, beside in runs:
            if not parts or parts[-1].beside != beside:
                parts.append(_Alike(beside))
            alike = parts[-1]
            alike.entries.append(entry)
            alike.firsts.append(first)
            alike.times.append(time)
        cost = self.sums.add([run[0] for run in runs], len(parts) - before)
        if self.sums.count >= PAGE_MESSAGES or self.sums.size >= PAGE_BYTES:
            self.end(last)
        return cost

    def end(self, place: int) -> None:
        """Take nothing behind an id."""
        self.reached = min(place, self.wanted.upto)
        self.is_full = True

    def _has_room(self, block: Block, runs: Sequence[int]) -> bool:
        """Whether runs fit a page, and are few enough for a step."""
        columns, sums = block.columns, self.sums
        return (
            len(runs) <= _STEP
            and sum(pick(columns.counts, runs)) <= min(PAGE_MESSAGES - sums.count, _STEP)
            and sum(pick(columns.sizes, runs)) <= PAGE_BYTES - sums.size
        )

    def page(self) -> KeptPage | None:
        """The page; None where nothing is known of it."""
        wanted = self.wanted
        if self.reached <= wanted.after:
            return None
        complete = self.reached == wanted.upto
        steps = list(self._steps())
        return KeptPage.of(wanted.key, steps, self.sums, self.reached, complete=complete)

    def _steps(self) -> Iterator[Sequence[Stored]]:
        """The messages, as many at a time as are unpacked in a step."""
        step: list[Stored] = []
        room = _STEP
        for stored in chain.from_iterable(map(_Alike.stored, self._parts)):
            count = stored.count
            if step and count > room:
                yield step
                step, room = [], _STEP
            step.append(stored)
            room -= count
        if step:
            yield step


@attrs.define(eq=False)
class _Alike:
    """Runs that follow each other on a page, and differ in tags, data, ids and times."""

    beside: Beside
    entries: list[Entry] = attrs.field(factory=list)
    firsts: list[int] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)

    def stored(self) -> Iterator[Stored]:
        """As publications of so many messages as a step has."""
        start = count = 0
        for place, (_, _, messages) in enumerate(self.entries):
            if count and count + messages > _STEP:
                yield self._cut(start, place)
                start, count = place, 0
            count += messages
        yield self._cut(start, len(self.entries))

    def _cut(self, start: int, stop: int) -> Stored:
        times = self.times[start:stop]
        return Stored(
            self.entries[start:stop],
            times[0],
            *self.beside,
            firsts=self.firsts[start:stop],
            times=None if times.count(times[0]) == len(times) else times,
        )


class Readers:
    """Readers by what they look for.

    Attributes:
        tags: all that any of them does.
    """

    def __init__(self, found: Iterable[Found]) -> None:
        every = [(each, lookup) for each in found for lookup in each.lookups]
        shared = Counter(hash_ for _, lookup in every for hash_ in lookup)
        # Each alternative under the tag that the fewest look for: what all do, most blocks have.
        self._by_hash: dict[int, list[tuple[Found, Mapping[int, bytes]]]] = {
            hash_: [] for hash_ in shared
        }
        for each, lookup in every:
            self._by_hash[min(lookup, key=shared.__getitem__)].append((each, lookup))
        self.tags = {tag for _, lookup in every for tag in lookup.values()}

    def asking(self, row: Row) -> Collection[Found]:
        """Those whose pages aren't full, and for whom something may be in a block."""
        there = self._by_hash.keys() & unpack_all(INDEXES, row.hashes)
        first, last = row.head.first, row.head.last
        return dict.fromkeys(
            [
                each
                for hash_ in there
                for each, lookup in self._by_hash[hash_]
                if not each.is_full
                and each.wanted.after < last
                and first <= each.wanted.upto
                and (len(lookup) == 1 or there.issuperset(lookup))
            ]
        )
