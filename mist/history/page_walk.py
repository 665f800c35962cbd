"""One walk over the blocks for many readers that wait, each for its page.

Thousands of clients that come back at once, each to a room of its own, would each have all blocks
searched that were written meanwhile, and each block would be read as often. Here each is read once,
and its tags are looked up among those that anybody waits for:

    wanted      {room:7} behind 40   {room:9} behind 52   {room:9, urgent} behind 45
    block       41 to 60: room:3, room:9, urgent, ...     those two that want room:9 are asked
    block       61 to 80: room:3, room:4, ...             nobody is

A page that ends before all was read is a page as any other: its reader asks for the next one.

A thread reads the blocks, and all else is done by the event loop, in short steps. In a thread, it
had others wait twice as long, and took half as much time again: the loop waits for the thread
after each of its system calls.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from mist.errors import HistoryDamaged
from mist.history.asked_runs import AskedRuns
from mist.history.block_cache import Blocks
from mist.history.block_store import BlockStore
from mist.history.layout import Row
from mist.history.page_readers import Found, Keep, Readers, Wanted

__all__ = ["PageWalk"]

# Read in one walk at most. Each time that readers ask for another page costs as much again as to
# find it, and a log that is written slowly has many small blocks, in which they find nothing.
_MAX_BLOCKS: Final = 512
_MAX_BYTES: Final = 32 * 1024 * 1024
# Read at a time: those who read alone wait so long for the thread.
_STEP_BLOCKS: Final = 16
_STEP_BYTES: Final = 512 * 1024
_KEPT_BLOCKS: Final = 32  # of one, for the next one: some 4 MiB

_FEW: Final = 8  # readers, up to which each searches a block by itself


class PageWalk:
    """A walk that finds pages for some readers. Damage ends all pages before it: who reads on alone
    is told of it.

    Args:
        wanted: at least one; of each, `selection.lookups` is there.
        max_cost: of all pages together, with which the walk ends; see `Sums`.
        keep: given each page, but of readers where it ended before theirs began.

    Attributes:
        ended: whether all pages were given.
    """

    def __init__(self, wanted: Sequence[Wanted], max_cost: int, keep: Keep) -> None:
        self.ended = False
        self._keep = keep
        self._found = [Found(each) for each in wanted]
        self._readers = Readers(self._found)
        self._place = min(each.after for each in wanted)
        self._upto = max(each.upto for each in wanted)
        self._cost_left = max_cost
        self._bytes_left = _MAX_BYTES
        self._blocks_left = _MAX_BLOCKS
        self._is_all_read = False
        self._is_damaged = False

    def read(self, store: BlockStore) -> Sequence[Row]:
        """Read the next blocks, which are then to be taken."""
        rows: list[Row] = []
        size = 0
        try:
            with store.snapshot(), closing(store.ascend(self._place, self._upto, None)) as found:
                for row in found:
                    rows.append(row)
                    size += row.head.size
                    if len(rows) == _STEP_BLOCKS or size >= _STEP_BYTES:
                        return rows
            self._is_all_read = True
        except HistoryDamaged:
            self._is_damaged = True
        return rows

    def take(self, rows: Sequence[Row], blocks: Blocks) -> Iterator[None]:
        """Take what was read, in steps. Mostly below 0.3 ms; to decode a block may take 1.5."""
        try:
            for row in rows:
                yield from self._take(row, blocks)
                self._place = min(row.head.last, self._upto)
                self._bytes_left -= row.head.size
                self._blocks_left -= 1
                left = min(self._cost_left, self._bytes_left, self._blocks_left)
                if left <= 0 or all(each.is_full for each in self._found):
                    yield from self._end()
                    return
        except HistoryDamaged:
            self._is_damaged = True
        if self._is_damaged:
            yield from self._end()
        elif self._is_all_read:
            self._place = self._upto
            yield from self._end()

    def _end(self) -> Iterator[None]:
        for each in self._found:
            if not each.is_full:
                each.end(self._place)
            page = each.page()
            if page is not None:
                self._keep(each.wanted, page)
            yield
        self.ended = True

    def _take(self, row: Row, blocks: Blocks) -> Iterator[None]:
        asking = self._readers.asking(row)
        if not asking:
            return
        yield
        block = blocks.decode(row, keep=self._blocks_left > _MAX_BLOCKS - _KEPT_BLOCKS)
        yield
        runs: AskedRuns | None = None
        chosen: dict[Found, Sequence[int] | None] = {}
        if len(asking) > _FEW:
            runs = AskedRuns(block, self._readers.tags)
            yield from runs.find()
            every: set[int] = set()
            for each in asking:
                own = chosen[each] = each.choose(block, runs, self._place)
                every.update(own or ())
                yield
            yield from runs.unpack(every)
        for each in asking:
            own = chosen.get(each)
            if self._cost_left <= 0:
                each.end(self._place)
            elif runs is None or own is None:
                self._cost_left -= each.take(block, self._place)
            else:
                self._cost_left -= each.add(runs.unpacked(own), block.head.last)
            yield
