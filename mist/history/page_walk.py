"""One walk over the blocks for many readers that wait, each for its page.

Thousands of clients that come back at once, each to a room of its own, would each have all blocks
searched that were written meanwhile, and each block would be read as often. Here each is read once,
and its tags are looked up among those that anybody waits for:

    wanted      {room:7} behind 40   {room:9} behind 52   {room:9, urgent} behind 45
    block       41 to 60: room:3, room:9, urgent, ...     those two that want room:9 are asked
    block       61 to 80: room:3, room:4, ...             nobody is

A page that ends before all was read is a page as any other: its reader asks for the next one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import Block, PackedPart
from mist.history.block_cache import Blocks
from mist.history.block_store import BlockStore
from mist.history.columns import INDEXES, unpack_all
from mist.history.layout import Row
from mist.history.page_cache import KeptPage, PageKey, Sums
from mist.history.part import pick
from mist.history.record import Stored
from mist.history.selection import Selection
from mist.wire import Entry

__all__ = ["PAGE_BYTES", "PAGE_MESSAGES", "PageWalk", "Wanted"]

# Read in one walk at most, and in a step of it: those who read alone wait so long for the thread.
_MAX_BLOCKS: Final = 128
_MAX_BYTES: Final = 8 * 1024 * 1024
_STEP_BLOCKS: Final = 16
_KEPT_BLOCKS: Final = 32  # of one, for the next one: some 4 MiB

_FEW: Final = 8  # readers, up to which each searches a block by itself

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


@attrs.define(eq=False)
class _Found:
    """What was found of what a reader asks for.

    Attributes:
        wanted: by whom.
        stored: the messages, by ascending ids.
        sums: of them.
        reached: up to this id nothing is missing.
        is_full: whether nothing more is taken.
    """

    wanted: Wanted
    stored: list[Stored] = attrs.field(factory=list)
    sums: Sums = attrs.field(factory=Sums)
    reached: int = 0
    is_full: bool = False

    @property
    def lookups(self) -> Sequence[Mapping[int, bytes]]:
        """See `Selection`."""
        return self.wanted.selection.lookups or ()

    def choose(self, block: Block, runs: "_Runs", place: int) -> Sequence[int] | None:
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
        stored = [each for step in PackedPart(block, part).unpack() for each in step]
        return self.add(stored, part.last)

    def add(self, stored: Sequence[Stored], last: int) -> int:
        """Take publications of a block. Returns what they cost.

        Args:
            last: the highest id of the block, or of what was looked at.
        """
        self.stored += stored
        cost = self.sums.add(stored)
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
        for each in self.stored:
            if step and each.count > room:
                yield step
                step, room = [], _STEP
            step.append(each)
            room -= each.count
        if step:
            yield step


class PageWalk:
    """A walk that finds pages for some readers, in steps: what else is to be read comes between.

    Damage ends all pages before it: who reads on alone is told of it.

    Args:
        wanted: at least one; of each, `selection.lookups` is there.
        max_cost: of all pages together, with which the walk ends; see `Sums`.

    Attributes:
        pages: for each reader, once the walk has ended; None where it ended before that began.
    """

    def __init__(self, wanted: Sequence[Wanted], max_cost: int) -> None:
        self.pages: list[KeptPage | None] = []
        self._found = [_Found(each) for each in wanted]
        self._readers = _Readers(self._found)
        self._place = min(each.after for each in wanted)
        self._upto = max(each.upto for each in wanted)
        self._cost_left = max_cost
        self._bytes_left = _MAX_BYTES
        self._blocks_left = _MAX_BLOCKS

    def step(self, store: BlockStore, blocks: Blocks) -> bool:
        """Walk a bit further. Returns whether that was the end."""
        try:
            ended = self._step(store, blocks)
        except HistoryDamaged:
            ended = True
        if ended:
            for each in self._found:
                if not each.is_full:
                    each.end(self._place)
            self.pages = [each.page() for each in self._found]
        return ended

    def _step(self, store: BlockStore, blocks: Blocks) -> bool:
        with store.snapshot(), closing(store.ascend(self._place, self._upto, None)) as rows:
            for looked_at, row in enumerate(rows, 1):
                self._take(row, blocks)
                self._place = min(row.head.last, self._upto)
                self._bytes_left -= row.head.size
                self._blocks_left -= 1
                left = min(self._cost_left, self._bytes_left, self._blocks_left)
                if left <= 0 or all(each.is_full for each in self._found):
                    return True
                if looked_at == _STEP_BLOCKS:
                    return False
        self._place = self._upto
        return True

    def _take(self, row: Row, blocks: Blocks) -> None:
        asking = self._readers.asking(row)
        if not asking:
            return
        block = blocks.decode(row, keep=self._blocks_left > _MAX_BLOCKS - _KEPT_BLOCKS)
        chosen: Mapping[_Found, Sequence[int] | None] = {}
        entries: Mapping[int, Entry] = {}
        if len(asking) > _FEW:
            runs = _Runs(block, self._readers.tags)
            chosen = {each: each.choose(block, runs, self._place) for each in asking}
            entries = block.entries(sorted({run for own in chosen.values() for run in own or ()}))
        for each in asking:
            own = chosen.get(each)
            if self._cost_left <= 0:
                each.end(self._place)
            elif own is None:
                self._cost_left -= each.take(block, self._place)
            elif own:
                self._cost_left -= each.add(block.gathered(own, entries), block.head.last)


class _Runs:
    """The runs of a block by the tags that somebody looks for: all of them found in one go.

    Args:
        tags: those.
    """

    def __init__(self, block: Block, tags: set[bytes]) -> None:
        columns = block.columns
        self._runs: defaultdict[bytes, list[int]] = defaultdict(list)
        self._sets: dict[bytes, set[int]] = {}
        # What is derived of tags stands in no list.
        self._usable = not columns.posted and columns.posted is not None
        if not self._usable:
            return
        found: dict[int, Collection[bytes]]
        if b"," in columns.text:
            found = {
                number: common
                for number, canonical in enumerate(columns.lists)
                if (common := tags.intersection(canonical.split(b",")))
            }
        else:
            found = {number: (tag,) for number, tag in enumerate(columns.lists) if tag in tags}
        for run, number in enumerate(columns.run_lists):
            for tag in found.get(number, ()):
                self._runs[tag].append(run)

    def of(self, lookups: Sequence[Mapping[int, bytes]]) -> Sequence[int] | None:
        """Those with all tags of one of some, by their numbers; None where that can't be told."""
        if not self._usable:
            return None
        if len(lookups) == 1:
            return self._with(lookups[0].values())
        return sorted({run for lookup in lookups for run in self._with(lookup.values())})

    def _with(self, tags: Collection[bytes]) -> Sequence[int]:
        rarest, *others = sorted(tags, key=lambda tag: len(self._runs.get(tag, ())))
        runs = self._runs.get(rarest, ())
        for tag in others:
            having = self._sets.get(tag)
            if having is None:
                having = self._sets[tag] = set(self._runs.get(tag, ()))
            runs = [run for run in runs if run in having]
        return runs


class _Readers:
    """Readers by what they look for.

    Attributes:
        tags: all that any of them does.
    """

    def __init__(self, found: Iterable[_Found]) -> None:
        every = [(each, lookup) for each in found for lookup in each.lookups]
        shared = Counter(hash_ for _, lookup in every for hash_ in lookup)
        # Each alternative under the tag that the fewest look for: what all do, most blocks have.
        self._by_hash: dict[int, list[tuple[_Found, Mapping[int, bytes]]]] = {
            hash_: [] for hash_ in shared
        }
        for each, lookup in every:
            self._by_hash[min(lookup, key=shared.__getitem__)].append((each, lookup))
        self.tags = {tag for _, lookup in every for tag in lookup.values()}

    def asking(self, row: Row) -> Collection[_Found]:
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
