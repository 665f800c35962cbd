"""Reading a block: which of its messages are selected, and their wires as published."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Final

import attrs

from mist.attributes import Attributes
from mist.history.layout import DIFFERS, MICROSECONDS, Row, checksum, decode_body, decode_index
from mist.history.numbering import Numbers, has_channels, raised, unpack_numbers
from mist.history.part import Columns, Part, pick
from mist.history.pieces import AnyRow, Pieces
from mist.history.postings import pack_postings, same_hashes
from mist.history.record import MAX_ID, Beside, Loose, Packed, Stored, cut
from mist.history.run_data import RunData
from mist.history.run_index import RunIndex
from mist.history.selection import Selection
from mist.history.tag_lists import TagLists
from mist.history.visibility import may_get
from mist.wire import Entry

__all__ = ["Block"]

# Unpacked at a time: a fifth of a millisecond, and as much again to write them for a peer, unless
# its form takes longer for each message.
_STEP_RUNS: Final = 256
_STEP_MESSAGES: Final = 1_024


class Block:
    """A block that is read.

    Args:
        row: as stored.
        tag_lists: where tag lists come from.

    Attributes:
        head: see `Head`.
        columns: see `Columns`.
        data: the messages' data.
        runs: which it has.

    Raises:
        HistoryDamaged: it isn't what was written.
    """

    __slots__ = ("_hashes", "_tag_lists", "columns", "data", "head", "runs")

    def __init__(self, row: AnyRow, tag_lists: TagLists) -> None:
        self.head = row.head
        self._tag_lists = tag_lists
        self._hashes: bytes | None = None  # known only of a whole row
        pieces: Pieces | None = None
        if isinstance(row, Row) and checksum(row.hashes, row.body) != row.checksum:
            raise self.head.damaged(DIFFERS)
        try:
            if isinstance(row, Row):
                self._hashes = row.hashes
                self.columns = Columns(decode_body(row.body))
                self.columns.check()
            else:
                index = decode_index(row.index)
                self.columns = Columns(index)
                pieces = Pieces(row.head, index.checks, row.read)
        except ValueError as error:
            raise self.head.undecoded(error) from error
        self.data = RunData(row.head, self.columns, pieces)
        self.runs = RunIndex(row.head, self.columns, self.data, self._hashes)

    @property
    def size_read(self) -> int:
        """Bytes of it that have been read, roughly."""
        return self.head.size if self.data.is_whole else len(self.columns.text)

    def count(
        self,
        selection: Selection | None,
        after: int,
        upto: int,
        attributes: Attributes | None = None,
    ) -> list[tuple[int, int]]:
        """First id and number of messages of each run, or part of one, in `(after, upto]`.

        Args:
            attributes: of a reader, who may get them; None for one who gets all.
        """
        firsts, counts = self.runs.firsts, self.columns.counts
        runs = self.runs.choose(selection, after, upto)
        if attributes is not None:
            runs = self._visible(runs, attributes)
        found = []
        for run in runs:
            first = max(firsts[run], after + 1)
            found.append((first, min(firsts[run] + counts[run] - 1, upto) - first + 1))
        return found

    def _visible(self, runs: Sequence[int], attributes: Attributes) -> Sequence[int]:
        """Those of some runs that a session with these attributes may get."""
        columns = self.columns
        if not attributes.site and all(audience is None for audience, _ in columns.extras):
            return runs
        lists = columns.lists_of(pick(columns.run_lists, runs))

        @cache
        def may(audience: str | None, number: int) -> bool:
            return may_get(audience, self._tag_lists.get(lists[number]).tags, attributes)

        extras = [columns.extras[number][0] for number in columns.section_extras]
        ends, numbers = columns.section_ends, columns.run_lists
        return [run for run in runs if may(extras[bisect_right(ends, run)], numbers[run])]

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
            raise self.head.damaged(str(error)) from error

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
        runs = self.runs.choose(selection, after, upto)
        if not runs:
            return None
        firsts, counts = self.runs.firsts, self.columns.counts
        skip = max(after + 1 - firsts[runs[0]], 0)
        skipped = _length_of_first(skip, self.data.of(runs[0])) if skip else 0
        # The first run counts with what is selected of it: one that is said to reach the bound,
        # and doesn't, would end the part and not the page, and what follows would be left out.
        ahead = skipped + skip * self.runs.wire_beside_data(runs[0])
        runs = self.runs.fit(runs, skip + limit, max_bytes + ahead)
        self.data.read_ahead(runs)
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
            skipped,
            _length_of_last(beyond, self.data.of(runs[-1])) if beyond else 0,
        )

    def loose(self, runs: Sequence[int]) -> dict[int, Loose]:
        """Some of its runs by their numbers, for those who put pages together of them."""
        self.data.add_up()
        count = sum(pick(self.columns.counts, runs))
        part = Part(self.head, self.columns, runs, count, self.head.last)
        ends = self.columns.section_ends
        sections = [bisect_right(ends, run) for run in runs]
        known = {section: self._section(section) for section in set(sections)}
        entries = self._entries(part, keep=True)
        return {
            run: (entry, first, *known[section])
            for run, entry, first, section in zip(
                runs, entries, pick(self.runs.firsts, runs), sections, strict=True
            )
        }

    def single(self, selection: Selection | None, ids: Sequence[int]) -> list[Stored]:
        """Those of some messages that are there and selected, each an entry by itself.

        Args:
            ids: ascending, at least one.
        """
        chosen = self.runs.choose(selection, ids[0] - 1, ids[-1])
        wanted = chosen if isinstance(chosen, range) else set(chosen)
        # Of a run, at most one is asked for.
        of_run = {
            run: id_ for id_ in ids if (run := self.runs.of_id(id_)) is not None and run in wanted
        }
        if not of_run:
            return []
        runs = list(of_run)
        self.data.read_ahead(runs)
        count = sum(pick(self.columns.counts, runs))
        stored = self.stored(Part(self.head, self.columns, runs, count, ids[-1]))
        if count == len(runs):
            return stored
        asked = iter(of_run.values())
        return [
            attrs.evolve(
                each,
                entries=[
                    cut(entry, id_ - first, 1)
                    for first, entry, id_ in zip(each.firsts, each.entries, own, strict=True)
                ],
                firsts=own,
            )
            for each in stored
            for own in [list(islice(asked, len(each.entries)))]
        ]

    def packed(self, part: Part) -> Packed:
        """A part of this block to be unpacked later. What has been read in parts is so little
        that it is unpacked now, and the block is not kept.
        """
        if part.count > _STEP_MESSAGES:
            self.data.complete()
        return PackedPart(self, part) if self.data.is_whole else FewStored(self.stored(part))

    def stored(self, part: Part, numbers: Sequence[Numbers] | None = None) -> list[Stored]:
        """A part of this block as publications. O(runs).

        Args:
            numbers: of each run of the block, to be returned with it.
        """
        firsts = list(pick(self.runs.firsts, part.runs))
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

    def _entries(self, part: Part, *, keep: bool = False) -> list[Entry]:
        """The runs of a part with their wires as published; `keep` as for `TagLists.of_runs`."""
        runs, columns = part.runs, self.columns
        numbers = pick(columns.run_lists, runs)
        counts = pick(columns.counts, runs)
        starts, ends = self.data.bounds(runs)
        if part.skip or part.beyond:
            counts = list(counts)
            counts[0] -= part.skip
            counts[-1] -= part.beyond
            starts[0] += part.skipped
            ends[-1] -= part.unreached
        tag_lists = self._tag_lists.of_runs(columns.lists_of(numbers), numbers, keep=keep)
        data = self.data.source
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
        ends = self.columns.section_ends
        result = []
        place = 0
        while place < len(chosen):
            section = bisect_right(ends, chosen[place])
            stop = bisect_left(chosen, ends[section], place)
            time, beside = self._section(section)
            result.append(Stored(entries[place:stop], time, *beside, firsts=firsts[place:stop]))
            place = stop
        return result

    def _section(self, number: int) -> tuple[float, Beside]:
        """When the messages of a section were published, and what they have beside."""
        columns = self.columns
        audience, meta = columns.extras[columns.section_extras[number]]
        return (self.head.oldest + columns.section_times[number]) / MICROSECONDS, Beside(
            columns.publishers[columns.section_publishers[number]],
            bool(columns.section_framable[number]),
            audience,
            None if meta is None else dict(meta),
        )

    def has_publisher(self, publisher: str | None) -> bool:
        """Whether it holds messages of that publisher; None is any."""
        return publisher is None or publisher in self.columns.publishers

    def check(self) -> str | None:
        """What is inconsistent in a block that can be read; None if nothing is."""
        hashes, _, _ = pack_postings(self.columns.text)
        stored = self.select()
        head = self.head
        times = [round(each.time * MICROSECONDS) for each in stored]
        if not same_hashes(hashes, self._hashes or b""):
            return "its tags differ from those it is indexed by"
        if times != sorted(times) or (times[0], times[-1]) != (head.oldest, head.newest):
            return "its times are out of order"
        if not head.first <= stored[0].firsts[0] == head.start:
            return "its ids differ from those it is indexed by"
        return None


@attrs.frozen
class FewStored(Packed):
    """A part of a block so small that it was unpacked at once, and the block is not kept."""

    _stored: Sequence[Stored]

    @property
    def count(self) -> int:
        return sum([each.count for each in self._stored])

    def unpack(self) -> Iterator[Sequence[Stored]]:
        yield self._stored


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
