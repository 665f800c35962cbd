"""The runs of a block: which of them have some ids, and which of those are selected."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add, mul
from typing import Final

from mist.history.columns import is_one, is_zero, places
from mist.history.layout import Head
from mist.history.part import HEAD_LENGTH, Columns, pick
from mist.history.postings import Postings
from mist.history.run_data import RunData
from mist.history.selection import Selection

__all__ = ["RunIndex"]

_FEW_LISTS: Final = 16  # up to here, lists are compared instead of looked up
_FEW_RUNS: Final = 64  # up to here, their sizes are added up without estimating them first
_FEW_SCANS: Final = 4  # up to here, the runs of each tag list are searched separately


class RunIndex:
    """See the module. Of one block.

    Args:
        head, columns, data: of the block.
        hashes: of its tags, as stored; None where only some of it was read.

    Attributes:
        firsts: the first id of each run.

    Raises:
        HistoryDamaged: the columns aren't of this block.
    """

    __slots__ = ("_columns", "_data", "_has_few_lists", "_hashes", "_head", "_postings", "firsts")

    def __init__(self, head: Head, columns: Columns, data: RunData, hashes: bytes | None) -> None:
        self._head = head
        self._columns = columns
        self._data = data
        self._hashes = hashes
        self._postings: Postings | None = None  # once somebody searches
        self.firsts = self._first_ids()
        self._has_few_lists = columns.has_few_lists(_FEW_LISTS)

    def _first_ids(self) -> Sequence[int]:
        start, counts, gaps = self._head.start, self._columns.counts, self._columns.gaps
        firsts: Sequence[int]
        if not is_zero(gaps):
            messages = sum(counts)
            *firsts, end = accumulate(map(add, counts, [*gaps[1:], 0]), initial=start)
        elif is_one(counts):
            messages = len(counts)
            end = start + messages
            firsts = range(start, end)
        else:
            *firsts, end = accumulate(counts, initial=start)
            messages = end - start
        if messages != self._head.messages:
            raise self._head.damaged("its columns disagree")
        if end - 1 > self._head.last:
            raise self._head.damaged("it holds ids of the next block")
        return firsts

    def of_id(self, id_: int) -> int | None:
        """The number of the run that has an id; None where none has."""
        run = bisect_right(self.firsts, id_) - 1
        return run if run >= 0 and id_ < self.firsts[run] + self._columns.counts[run] else None

    def choose(self, selection: Selection | None, after: int, upto: int) -> Sequence[int]:
        """Numbers of the runs that are selected and have ids in `(after, upto]`."""
        if after >= upto:
            return ()
        low = max(bisect_right(self.firsts, after + 1) - 1, 0)
        if self.firsts[low] + self._columns.counts[low] <= after + 1:
            low += 1
        high = bisect_right(self.firsts, upto)
        if selection is None or low >= high:
            return range(low, high)
        few = self._has_few_lists
        wanted = self._find(selection, few)
        column = self._columns.run_lists
        many = len(wanted) > _FEW_SCANS
        if (few or many) and len(wanted) == len(self._columns.lists):
            self._data.complete()  # which checks that there are lists with the numbers of all runs
            return range(low, high)
        if many:
            return [run for run in range(low, high) if column[run] in wanted]
        found = [run for number in wanted for run in places(column, number) if low <= run < high]
        return sorted(found)

    def fit(self, chosen: Sequence[int], limit: int, max_bytes: int) -> Sequence[int]:
        """The runs up to the one that reaches a bound; the first in any case."""
        if len(chosen) == 1:
            return chosen
        body = self._columns
        if limit < self._head.messages:
            reached = accumulate([body.counts[run] for run in chosen])
            chosen = chosen[: bisect_left(list(reached), limit) + 1]
        if len(chosen) > _FEW_RUNS:
            longest = max(map(len, body.lists)) + HEAD_LENGTH
            if max_bytes >= self._head.size + self._head.messages * longest:
                return chosen
        numbers = pick(body.run_lists, chosen)
        lists = body.lists_of(numbers)
        lengths = [len(each) + HEAD_LENGTH for each in map(lists.__getitem__, numbers)]
        wires = map(add, pick(body.sizes, chosen), map(mul, lengths, pick(body.counts, chosen)))
        return chosen[: bisect_left(list(accumulate(wires)), max_bytes) + 1]

    def wire_beside_data(self, run: int) -> int:
        """Bytes of the wire of a run's message, without its data and the LF."""
        number = self._columns.run_lists[run]
        return len(self._columns.lists_of([number])[number]) + HEAD_LENGTH

    def _find(self, selection: Selection, few: bool) -> set[int]:
        """Numbers of the tag lists that are selected. Where there are few, all are compared."""
        columns, lookups = self._columns, selection.lookups
        if lookups is None or few:
            return {number for number, each in enumerate(columns.lists) if selection.matches(each)}
        if self._postings is None:
            self._postings = Postings(self._hashes, columns.posted, columns.postings, columns.text)
        postings = self._postings
        found: set[int] = set()
        for wanted in lookups:
            numbers, unsure = postings.find(wanted)
            if unsure:
                lists = columns.lists
                numbers = [number for number in numbers if selection.matches(lists[number])]
            found.update(numbers)
        columns.note_lists(postings.found)
        postings.found.clear()
        return found
