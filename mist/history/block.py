"""Reading a block: which of its messages are selected, and their wires as published."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from operator import add, mul
from typing import Final

import attrs
import msgspec

from mist.errors import HistoryDamaged
from mist.history.layout import MICROSECONDS, Row, checksum, decode_body
from mist.history.numbering import Numbers, has_channels, raised, unpack_numbers
from mist.history.part import HEAD_LENGTH, Columns, Part, pick
from mist.history.postings import Postings, pack_postings, same_hashes
from mist.history.recent import Recent
from mist.history.record import MAX_ID, Packed, Stored
from mist.history.selection import Selection
from mist.wire import Entry, TagList

__all__ = ["Block", "PackedPart", "TagLists"]

_FEW_LISTS: Final = 16  # up to here, lists are compared instead of looked up
_FEW_RUNS: Final = 64  # up to here, their sizes are added up without estimating them first
_FEW_SCANS: Final = 4  # up to here, the runs of each tag list are searched separately
_MAX_BYTES: Final = 16 * 1024 * 1024  # of tag lists that are cached, some 14,000
# Unpacked at a time: a fifth of a millisecond, and as much again to write them for a peer, unless
# its form takes longer for each message.
_STEP_RUNS: Final = 256
_STEP_MESSAGES: Final = 1_024
_LIST_COST: Final = 1_000  # bytes of a tag list beside its text, which it holds four times


class TagLists(Recent[bytes, TagList]):
    """A cache of tag lists by their canonical bytes, shared by blocks and by threads."""

    __slots__ = ()

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__(max_bytes)

    def cost(self, key: bytes, value: TagList) -> int:
        """See `Recent`."""
        return _LIST_COST + 4 * len(key)

    def get(self, canonical: bytes) -> TagList:
        """The tag list."""
        found = self.find(canonical)
        if found is None:
            found = self.add(canonical, TagList(None, canonical))
        return found

    def of_runs(self, lists: Sequence[bytes], numbers: Sequence[int]) -> list[TagList]:
        """The tag list of each of some runs. Those that come once aren't kept: so the others are.

        Args:
            lists: of a block.
            numbers: of each run's list.
        """
        distinct = set(numbers)
        if len(distinct) > _FEW_LISTS and len(distinct) * 2 > len(numbers):
            return [TagList.passing(lists[number]) for number in numbers]
        known = {number: self.get(lists[number]) for number in distinct}
        return [known[number] for number in numbers]


class Block:
    """A block that is read.

    Args:
        row: as stored.
        tag_lists: where tag lists come from.

    Attributes:
        head: see `Head`.
        columns: see `Columns`.

    Raises:
        HistoryDamaged: it isn't what was written.
    """

    __slots__ = (
        "_firsts",
        "_hashes",
        "_lists",
        "_offsets",
        "_tag_lists",
        "columns",
        "head",
    )

    def __init__(self, row: Row, tag_lists: TagLists) -> None:
        self.head = row.head
        self._hashes = row.hashes
        self._tag_lists = tag_lists
        if checksum(row.hashes, row.body) != row.checksum:
            raise HistoryDamaged(row.head.first, "its checksum differs", row.head.last)
        try:
            self.columns = body = Columns(decode_body(row.body))
        except (msgspec.MsgspecError, ValueError) as error:
            raise HistoryDamaged(
                row.head.first, f"it can't be decoded: {error}", row.head.last
            ) from error
        self._lists = body.lists
        steps: Iterable[int] = body.counts
        if any(body.gaps):
            steps = map(add, body.counts, [*body.gaps[1:], 0])
        self._firsts = list(accumulate(steps, initial=row.head.start))
        self._offsets = list(accumulate(body.sizes, initial=0))
        if self._offsets[-1] != len(body.data) or sum(body.counts) != row.head.messages:
            raise HistoryDamaged(row.head.first, "its columns disagree", row.head.last)
        if self._firsts.pop() - 1 > row.head.last:
            raise HistoryDamaged(row.head.first, "it holds ids of the next block", row.head.last)

    def count(self, selection: Selection | None, after: int, upto: int) -> list[tuple[int, int]]:
        """First id and number of messages of each run, or part of one, in `(after, upto]`."""
        firsts, counts = self._firsts, self.columns.counts
        found = []
        for run in self._choose(selection, after, upto):
            first = max(firsts[run], after + 1)
            found.append((first, min(firsts[run] + counts[run] - 1, upto) - first + 1))
        return found

    def select(
        self,
        selection: Selection | None = None,
        after: int = 0,
        upto: int = MAX_ID,
        limit: int = MAX_ID,
        max_bytes: int = MAX_ID,
        *,
        numbers: Sequence[Numbers] | None = None,
    ) -> list[Stored]:
        """The messages of a `part`, by ascending ids, with their wires as published."""
        part = self.part(selection, after, upto, limit, max_bytes)
        return [] if part is None else self.stored(part, numbers)

    @property
    def has_channels(self) -> bool:
        """Whether some of its messages carry a channel, and so have numbers."""
        return has_channels(self.columns.text)

    def numbers(self, packed: bytes) -> list[Numbers]:
        """Unpack the channel numbers of each run. O(runs).

        Raises:
            HistoryDamaged: they aren't what was written.
        """
        columns = self.columns
        try:
            return unpack_numbers(packed, columns.lists, columns.run_lists, columns.counts)
        except ValueError as error:
            raise HistoryDamaged(self.head.first, str(error), self.head.last) from error

    def part(
        self,
        selection: Selection | None = None,
        after: int = 0,
        upto: int = MAX_ID,
        limit: int = MAX_ID,
        max_bytes: int = MAX_ID,
    ) -> Part | None:
        """The selected part of the messages in `(after, upto]`; None where nothing is selected.

        O(runs) where few are selected, in C for one or two tag lists.

        Args:
            selection: None selects all.
            limit: most messages, at least 1.
            max_bytes: of wires; the run that reaches it is the last, and is included whole.
        """
        runs = self._choose(selection, after, upto)
        if not runs:
            return None
        firsts, counts = self._firsts, self.columns.counts
        skip = max(after + 1 - firsts[runs[0]], 0)
        runs = self._fit(runs, skip + limit, max_bytes)
        messages = sum(pick(counts, runs)) - skip
        end = firsts[runs[-1]] + counts[runs[-1]] - 1
        # Only the first and the last run can be cut.
        beyond = max(end - upto, messages - limit, 0)
        return Part(
            self.head,
            self.columns,
            runs,
            messages - beyond,
            end - beyond,
            skip,
            beyond,
            _length_of_first(skip, self._data(runs[0])) if skip else 0,
            _length_of_last(beyond, self._data(runs[-1])) if beyond else 0,
        )

    def stored(self, part: Part, numbers: Sequence[Numbers] | None = None) -> list[Stored]:
        """A part of this block as publications. O(runs).

        Args:
            numbers: of each run of the block, to be returned with it.
        """
        firsts = list(pick(self._firsts, part.runs))
        firsts[0] += part.skip
        sections = self._sections(part.runs, firsts, self._entries(part))
        if numbers is None:
            return sections
        chosen = iter([numbers[run] for run in part.runs])
        found = [
            attrs.evolve(each, numbers=list(islice(chosen, len(each.entries)))) for each in sections
        ]
        if part.skip and found[0].numbers:
            own = [raised(found[0].numbers[0], part.skip), *found[0].numbers[1:]]
            found[0] = attrs.evolve(found[0], numbers=own)
        return found

    def _data(self, run: int) -> bytes:
        return self.columns.data[self._offsets[run] : self._offsets[run + 1]]

    def _fit(self, chosen: Sequence[int], limit: int, max_bytes: int) -> Sequence[int]:
        """The runs up to the one that reaches a bound."""
        body = self.columns
        if limit < self.head.messages:
            reached = accumulate([body.counts[run] for run in chosen])
            chosen = chosen[: bisect_left(list(reached), limit) + 1]
        if len(chosen) > _FEW_RUNS:
            longest = max(map(len, self._lists)) + HEAD_LENGTH
            if max_bytes >= len(body.data) + self.head.messages * longest:
                return chosen
        lists, numbers = self._lists, pick(body.run_lists, chosen)
        lengths = [len(each) + HEAD_LENGTH for each in map(lists.__getitem__, numbers)]
        wires = map(add, pick(body.sizes, chosen), map(mul, lengths, pick(body.counts, chosen)))
        return chosen[: bisect_left(list(accumulate(wires)), max_bytes) + 1]

    def _entries(self, part: Part) -> list[Entry]:
        """The runs of a part with their wires as published."""
        runs, columns = part.runs, self.columns
        numbers = pick(columns.run_lists, runs)
        counts = pick(columns.counts, runs)
        starts = pick(self._offsets, runs)
        if isinstance(runs, range):
            ends = self._offsets[runs.start + 1 : runs.stop + 1]
        else:
            ends = [self._offsets[run + 1] for run in runs]
        if part.skip or part.beyond:
            counts, starts, ends = list(counts), list(starts), list(ends)
            counts[0] -= part.skip
            counts[-1] -= part.beyond
            starts[0] += part.skipped
            ends[-1] -= part.unreached
        tag_lists = self._tag_lists.of_runs(self._lists, numbers)
        data = columns.data
        # Special-cased for runs of one: most of a replay is spent in this line.
        if max(counts) == 1:
            return [
                (tag_list, tag_list.head + data[start:end], 1)
                for tag_list, start, end in zip(tag_lists, starts, ends, strict=True)
            ]
        return [
            (
                tag_list,
                tag_list.head + data[start:end].replace(b"\n", b"\n" + tag_list.head, count - 1),
                count,
            )
            for tag_list, start, end, count in zip(tag_lists, starts, ends, counts, strict=True)
        ]

    def _sections(
        self, chosen: Sequence[int], firsts: list[int], entries: list[Entry]
    ) -> list[Stored]:
        body = self.columns
        ends = body.section_ends
        result = []
        place = 0
        while place < len(chosen):
            section = bisect_right(ends, chosen[place])
            stop = bisect_left(chosen, ends[section], place)
            audience, meta = body.extras[body.section_extras[section]]
            result.append(
                Stored(
                    entries[place:stop],
                    (self.head.oldest + body.section_times[section]) / MICROSECONDS,
                    body.publishers[body.section_publishers[section]],
                    bool(body.section_framable[section]),
                    audience,
                    None if meta is None else dict(meta),
                    firsts=firsts[place:stop],
                )
            )
            place = stop
        return result

    def has_publisher(self, publisher: str | None) -> bool:
        """Whether it holds messages of that publisher; None is any."""
        return publisher is None or publisher in self.columns.publishers

    def check(self) -> str | None:
        """What is inconsistent in a block that can be read; None if nothing is."""
        hashes, _, _ = pack_postings(self.columns.text)
        stored = self.select()
        head = self.head
        times = [round(each.time * MICROSECONDS) for each in stored]
        if not same_hashes(hashes, self._hashes):
            return "its tags differ from those it is indexed by"
        if times != sorted(times) or (times[0], times[-1]) != (head.oldest, head.newest):
            return "its times are out of order"
        if not head.first <= stored[0].firsts[0] == head.start:
            return "its ids differ from those it is indexed by"
        return None

    def _choose(self, selection: Selection | None, after: int, upto: int) -> Sequence[int]:
        """Numbers of the runs that are selected and have ids in `(after, upto]`."""
        if after >= upto:
            return ()
        low = max(bisect_right(self._firsts, after + 1) - 1, 0)
        if self._firsts[low] + self.columns.counts[low] <= after + 1:
            low += 1
        high = bisect_right(self._firsts, upto)
        if selection is None or low >= high:
            return range(low, high)
        wanted = self._find(selection)
        if len(wanted) == len(self._lists):
            return range(low, high)
        column = self.columns.run_lists
        if len(wanted) > _FEW_SCANS:
            return [run for run in range(low, high) if column[run] in wanted]
        found = []
        for number in wanted:
            run = low - 1
            with suppress(ValueError):  # not found in the rest
                while True:
                    run = column.index(number, run + 1, high)
                    found.append(run)
        return sorted(found)

    def _find(self, selection: Selection) -> set[int]:
        """Numbers of the tag lists that are selected."""
        lists, lookups = self._lists, selection.lookups
        if lookups is None or len(lists) <= _FEW_LISTS:
            return {number for number, each in enumerate(lists) if selection.matches(each)}
        columns = self.columns
        postings = Postings(self._hashes, columns.posted, columns.postings, columns.text)
        found: set[int] = set()
        for wanted in lookups:
            numbers, unsure = postings.find(wanted)
            if unsure:
                numbers = [number for number in numbers if selection.matches(lists[number])]
            found.update(numbers)
        return found


@attrs.frozen
class PackedPart(Packed):
    """A part of a block that has been read; its columns stay as they are until it is unpacked."""

    _block: Block
    _part: Part

    @property
    def count(self) -> int:
        return self._part.count

    def unpack(self) -> Iterator[list[Stored]]:
        for each in self._part.divided(_STEP_RUNS, _STEP_MESSAGES):
            yield self._block.stored(each)


def _length_of_first(count: int, data: bytes) -> int:
    """Bytes of the first `count` messages of a run, which has more."""
    return len(data) - len(data.split(b"\n", count)[-1])


def _length_of_last(count: int, data: bytes) -> int:
    """Bytes of the last `count` messages of a run, which has more."""
    return len(data) - len(data[:-1].rsplit(b"\n", count)[0]) - 1
