"""The columns of a block, and parts of it that a read selects.

A `Part` is the numbers of the selected runs and where the first and last of them are cut.
`block` makes wires of it; a reader of columns needs nothing more.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Final

import attrs

from mist.history.columns import unpack
from mist.history.layout import Body, Head
from mist.wire import record_head

__all__ = ["HEAD_LENGTH", "ColumnPage", "Columns", "Part", "pick"]

HEAD_LENGTH: Final = len(record_head(b""))  # bytes of a message's wire beside tags and data


class Columns:
    """The unpacked columns of a body: one for each property of its runs and its sections.

    Numbers are arrays of the width they are stored in, or bytes where all of them are 0.

    Attributes:
        text: the tag lists, canonical, LF between them.
        publishers, extras: see `layout.Extra`; named by number.
        postings, posted: see `layout`.
        data: the messages' data end to end, LF behind each.
        section_runs: how many runs each section has; `section_ends` is their sum so far.
        section_times: microseconds after the head's oldest.
        section_publishers, section_extras, section_framable: of each section.
        run_lists: number of each run's tag list.
        counts: messages of each run; several only where no data of them holds LF.
        sizes: bytes of each run's data, with the LF.
        gaps: ids left out before each run; the first doesn't count.

    Raises:
        ValueError: its parts don't fit together.
    """

    __slots__ = (
        "_lists",
        "_lists_read",
        "counts",
        "data",
        "extras",
        "gaps",
        "posted",
        "postings",
        "publishers",
        "run_lists",
        "section_ends",
        "section_extras",
        "section_framable",
        "section_publishers",
        "section_runs",
        "section_times",
        "sizes",
        "text",
    )

    def __init__(self, body: Body) -> None:
        self.text = body.lists
        self._lists: list[bytes] | None = None
        self._lists_read: dict[int, bytes] = {}
        self.publishers = body.publishers
        self.extras = body.extras
        self.postings = body.postings
        self.posted = body.posted
        self.data = body.data
        sections, runs = body.sections, body.runs
        self.section_runs = unpack(*body.section_runs, sections)
        self.section_ends = list(accumulate(self.section_runs))
        self.section_times = unpack(*body.section_times, sections)
        self.section_publishers = unpack(*body.section_publishers, sections)
        self.section_extras = unpack(*body.section_extras, sections)
        self.section_framable = unpack(*body.section_framable, sections)
        self.run_lists = unpack(*body.run_lists, runs)
        self.counts = unpack(*body.run_counts, runs)
        self.sizes = unpack(*body.run_sizes, runs)
        self.gaps = unpack(*body.run_gaps, runs)
        if (
            not sections
            or not runs
            or self.section_ends[-1] != runs
            or max(self.section_publishers) >= len(self.publishers)
            or max(self.section_extras) >= len(self.extras)
        ):
            raise ValueError("numbers out of range")

    @property
    def lists(self) -> list[bytes]:
        """The tag lists, canonical. Made when first asked for, which takes O(lists)."""
        if self._lists is None:
            self._lists = self.text.split(b"\n")
        return self._lists

    def has_few_lists(self, few: int) -> bool:
        """Whether there are no more than `few` lists. O(few), and a copy of their bytes."""
        return len(self.text.split(b"\n", few)) <= few

    def check(self) -> None:
        """Check what takes O(runs), and what a search for few messages does without.

        Raises:
            ValueError: its parts don't fit together.
        """
        if max(self.run_lists) >= len(self.lists) or sum(self.sizes) != len(self.data):
            raise ValueError("numbers out of range")

    def note_lists(self, lists: Mapping[int, bytes]) -> None:
        """Have some lists returned by `lists_of` without the work that `lists` takes."""
        if self._lists is None:
            self._lists_read.update(lists)

    def lists_of(self, numbers: Iterable[int]) -> Mapping[int, bytes] | Sequence[bytes]:
        """What has the lists with these numbers, by them."""
        known = self._lists_read
        if self._lists is None and known and all(number in known for number in numbers):
            return known
        return self.lists


@attrs.frozen
class Part:
    """The selected part of a block: some of its runs, the first and last perhaps cut.

    Attributes:
        head, columns: of the whole block.
        runs: the numbers of the runs, ascending; at least one.
        count: messages.
        last: the highest id.
        skip, beyond: messages of the first run, and of the last, that are not selected.
        skipped, unreached: bytes of their data, with the LF.
    """

    head: Head
    columns: Columns
    runs: Sequence[int]
    count: int
    last: int
    skip: int = 0
    beyond: int = 0
    skipped: int = 0
    unreached: int = 0

    def divided(self, runs: int, messages: int) -> Iterator["Part"]:
        """The same in parts that have no more than so much, but at least a run. O(runs).

        Their `last` stays that of the whole.
        """
        counts = pick(self.columns.counts, self.runs)
        sums = list(accumulate(counts, initial=0))
        start, end = 0, len(counts)
        while start < end:
            stop = min(start + runs, bisect_right(sums, sums[start] + messages) - 1)
            stop = max(stop, start + 1)
            skip, skipped = (0, 0) if start else (self.skip, self.skipped)
            beyond, unreached = (0, 0) if stop < end else (self.beyond, self.unreached)
            yield attrs.evolve(
                self,
                runs=self.runs[start:stop],
                count=sums[stop] - sums[start] - skip - beyond,
                skip=skip,
                skipped=skipped,
                beyond=beyond,
                unreached=unreached,
            )
            start = stop

    @property
    def size(self) -> int:
        """Bytes of the messages' wires. O(runs)."""
        columns, runs = self.columns, self.runs
        numbers = pick(columns.run_lists, runs)
        lists = columns.lists_of(numbers)
        tags = map(len, map(lists.__getitem__, numbers))
        size: int = sum(map(mul, tags, pick(columns.counts, runs)))
        size -= self.skip * len(lists[numbers[0]]) + self.beyond * len(lists[numbers[-1]])
        data = sum(pick(columns.sizes, runs)) - self.skipped - self.unreached
        return size + data + self.count * HEAD_LENGTH


@attrs.frozen
class ColumnPage:
    """A page of a replay, as columns.

    Attributes:
        parts: what matched, by ascending ids. May be empty, as with `Page`.
        after, complete: see `Page`.
        size: bytes of the messages as wires.
    """

    parts: Sequence[Part]
    after: int
    complete: bool
    size: int = 0

    @property
    def count(self) -> int:
        """Number of messages. O(parts)."""
        return sum([part.count for part in self.parts])


def pick(column: Sequence[int], runs: Sequence[int]) -> Sequence[int]:
    """The values of some runs, as a copy."""
    if isinstance(runs, range):
        return column[runs.start : runs.stop]
    return [column[run] for run in runs]
