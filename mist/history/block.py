"""A block: publications as one row of bytes, and back.

A statement a message would starve beside a busy event loop, since each waits for the
interpreter lock. So what is queued when the writer is free becomes one block, one row, one
statement. Inside it everything that repeats is written once:

    lists        the distinct tag lists, canonical; messages name them by number
    sections     what is common to a publication: time, publisher, audience, meta
    runs         tag list, number of messages, bytes, id
    postings     tag -> tag lists; see `postings`
    data         the messages' data end to end, LF behind each

A run's wire is stored without its heads, `publish a,b `, and gets them back with one `replace`
in C: a thousand messages with one tag list are a handful of operations in both directions.

Numbers stand in columns (see `columns`), the whole is one MessagePack array, which takes
further fields at its end. Its CRC stands in the row beside it: what a disk returns is not
always what it was given.

Ids in a block ascend. As appended they are consecutive; what retention leaves has gaps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from operator import add, sub
from typing import Final, TypeVar
from zlib import crc32

import attrs
import msgspec

from mist.history.columns import pack, unpack
from mist.history.errors import HistoryDamaged
from mist.history.postings import Packed, Postings, pack_postings
from mist.history.record import MAX_ID, Publication, Stored
from mist.history.selection import Selection
from mist.message import Entry, TagList

__all__ = [
    "MICROSECONDS",
    "Block",
    "Head",
    "Row",
    "TagLists",
    "assign",
    "checksum",
    "cut",
    "encode",
]

MICROSECONDS: Final = 1_000_000  # in a second

K = TypeVar("K", bound=Hashable)
_Column = tuple[str, bytes]
_Extra = tuple[str | None, tuple[tuple[str, bytes], ...] | None]

_HEAD_LENGTH: Final = len("publish  ")  # what a message's wire has beside tags and data
_FEW_LISTS: Final = 16  # compared one by one rather than looked up
_FEW_SCANS: Final = 4  # tag lists whose runs are searched one after the other
_MAX_LISTS: Final = 65_536  # tag lists kept for the next block


@attrs.frozen
class Head:
    """What is known of a block without reading it.

    Attributes:
        first: its key: no id in it is lower. Stays when retention takes messages out.
        last: no id in it is higher, and none of the next block's is lower or equal.
        start: the lowest id that is in it.
        messages: how many it holds.
        oldest, newest: times of the first and the last one, microseconds.
        size: bytes it takes, its hashes included.
    """

    first: int
    last: int
    start: int
    messages: int
    oldest: int
    newest: int
    size: int


@attrs.frozen
class Row:
    """A block as stored.

    Attributes:
        hashes: of every tag in it, sorted, 32 bits each; tells without reading `body`
            whether it can hold what somebody looks for.
        checksum: CRC-32 of hashes and body.
    """

    head: Head
    hashes: bytes
    checksum: int
    body: bytes

    def moved(self, by: int) -> "Row":
        """The same with every id higher by `by`."""
        head = attrs.evolve(
            self.head,
            first=self.head.first + by,
            last=self.head.last + by,
            start=self.head.start + by,
        )
        return attrs.evolve(self, head=head)


class _Body(msgspec.Struct, array_like=True, frozen=True):
    lists: bytes
    publishers: list[str]
    extras: list[_Extra]
    sections: int
    runs: int
    section_runs: _Column
    section_times: _Column  # microseconds after the head's oldest
    section_publishers: _Column
    section_extras: _Column
    section_framable: _Column
    run_lists: _Column
    run_counts: _Column
    run_sizes: _Column
    run_gaps: _Column  # ids left out before each run
    postings: Packed
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode


class TagLists:
    """Checked tag lists by their canonical bytes, so that blocks share them."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, TagList] = {}

    def get(self, canonical: bytes) -> TagList:
        """The tag list. One lookup where it was met before."""
        found = self._known.get(canonical)
        if found is None:
            if len(self._known) >= _MAX_LISTS:
                self._known.clear()
            found = TagList(frozenset(canonical.decode().split(",")))
            self._known[canonical] = found
        return found


def assign(publications: Iterable[Publication], first: int, latest: int) -> list[Stored]:
    """Give ids to publications from `first` on, and times that are never before `latest`.

    Args:
        latest: microseconds. A clock that was set back would otherwise make messages that
            are older than those before them, and retention by age would stop at them.
    """
    stored = []
    for each in publications:
        if not each.entries:
            continue
        latest = max(latest, round(each.time * MICROSECONDS))
        firsts = []
        if not each.framable and any(count > 1 for _, _, count in each.entries):
            raise ValueError("data that may hold LF can't stand in a run")
        for _, _, count in each.entries:
            firsts.append(first)
            first += count
        stored.append(
            Stored(
                each.entries,
                latest / MICROSECONDS,
                each.publisher,
                each.framable,
                each.audience,
                each.meta,
                firsts=firsts,
            )
        )
    return stored


class _Numbering(dict[K, int]):
    """Distinct things, numbered in the order met."""

    def __missing__(self, key: K) -> int:
        number = self[key] = len(self)
        return number


def encode(stored: Sequence[Stored], *, first: int | None = None, last: int | None = None) -> Row:
    """One block of publications with ids, ascending and at least one message.

    O(entries + tags of distinct tag lists), and bytes at the speed of memory.

    Args:
        first, last: the ids the block answers for, where retention took messages at its ends.
    """
    lists: _Numbering[bytes] = _Numbering()
    run_lists: list[int] = []
    counts: list[int] = []
    pieces: list[bytes] = []
    firsts: list[int] = []
    for publication in stored:
        firsts += publication.firsts
        for tag_list, wire, count in publication.entries:
            run_lists.append(lists[tag_list.canonical])
            counts.append(count)
            data = wire[len(tag_list.head) :]
            pieces.append(data if count == 1 else data.replace(b"\n" + tag_list.head, b"\n"))
    gaps = map(sub, firsts[1:], map(add, firsts, counts))
    times = [round(each.time * MICROSECONDS) for each in stored]
    publishers: _Numbering[str] = _Numbering()
    extras: _Numbering[_Extra] = _Numbering()
    section_publishers = pack([publishers[each.publisher] for each in stored])
    section_extras = pack([extras[_extra(each)] for each in stored])
    hashes, postings = pack_postings(lists, len(lists))
    body = _encode(
        _Body(
            lists=b"\n".join(lists),
            publishers=list(publishers),
            extras=list(extras),
            sections=len(stored),
            runs=len(counts),
            section_runs=pack([len(each.entries) for each in stored]),
            section_times=pack([time - times[0] for time in times]),
            section_publishers=section_publishers,
            section_extras=section_extras,
            section_framable=pack([each.framable for each in stored]),
            run_lists=pack(run_lists),
            run_counts=pack(counts),
            run_sizes=pack(list(map(len, pieces))),
            run_gaps=pack([0, *gaps]),
            postings=postings,
            data=b"".join(pieces),
        )
    )
    head = Head(
        first=firsts[0] if first is None else first,
        last=firsts[-1] + counts[-1] - 1 if last is None else last,
        start=firsts[0],
        messages=sum(counts),
        oldest=times[0],
        newest=times[-1],
        size=len(hashes) + len(body),
    )
    return Row(head, hashes, checksum(hashes, body), body)


def checksum(hashes: bytes, body: bytes) -> int:
    """What `Row.checksum` has to be."""
    return crc32(body, crc32(hashes))


def _extra(publication: Publication) -> _Extra:
    meta = publication.meta
    return publication.audience, None if meta is None else tuple(sorted(meta.items()))


class Block:
    """A block that is read.

    Args:
        row: as stored.
        tag_lists: where tag lists come from.

    Attributes:
        head: see `Head`.

    Raises:
        HistoryDamaged: it isn't what was written.
    """

    __slots__ = (
        "_body",
        "_firsts",
        "_hashes",
        "_lists",
        "_longest",
        "_offsets",
        "_tag_lists",
        "head",
    )

    def __init__(self, row: Row, tag_lists: TagLists) -> None:
        self.head = row.head
        self._hashes = row.hashes
        self._tag_lists = tag_lists
        if checksum(row.hashes, row.body) != row.checksum:
            raise HistoryDamaged(row.head.first, "its checksum is another")
        try:
            self._body = body = _Columns(_decode(row.body))
        except (msgspec.MsgspecError, ValueError) as error:
            raise HistoryDamaged(row.head.first, f"it can't be read: {error}") from error
        self._lists = body.lists
        self._longest = max(map(len, body.lists))
        steps: Iterable[int] = body.counts
        if any(body.gaps):
            steps = map(add, body.counts, [*body.gaps[1:], 0])
        self._firsts = list(accumulate(steps, initial=row.head.start))
        self._offsets = list(accumulate(body.sizes, initial=0))
        if self._offsets[-1] != len(body.data) or sum(body.counts) != row.head.messages:
            raise HistoryDamaged(row.head.first, "its columns disagree")
        if self._firsts.pop() - 1 > row.head.last:
            raise HistoryDamaged(row.head.first, "it holds ids of the next block")

    def count(self, selection: Selection | None, after: int, upto: int) -> list[tuple[int, int]]:
        """First id and number of messages of each run, or part of one, in `(after, upto]`."""
        firsts, counts = self._firsts, self._body.counts
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
    ) -> list[Stored]:
        """What is wanted of the messages in `(after, upto]`, by ascending ids.

        O(runs) where few are wanted, in C where it is one or two tag lists.

        Args:
            selection: None wants all.
            limit: most messages, at least 1.
            max_bytes: of wires; the run that reaches it is the last, and comes whole.
        """
        chosen = self._choose(selection, after, upto)
        if not chosen:
            return []
        skip = max(after + 1 - self._firsts[chosen[0]], 0)
        chosen = self._fit(chosen, skip + limit, max_bytes)
        firsts = [self._firsts[run] for run in chosen]
        entries = self._entries(chosen)
        # Only the runs at both ends can be there in part.
        messages = sum([count for _, _, count in entries]) - skip
        beyond = max(firsts[-1] + entries[-1][2] - 1 - upto, messages - limit)
        if beyond > 0:
            entries[-1] = cut(entries[-1], 0, entries[-1][2] - beyond)
        if skip:
            entries[0] = cut(entries[0], skip, entries[0][2] - skip)
            firsts[0] += skip
        return self._sections(chosen, firsts, entries)

    def _fit(self, chosen: Sequence[int], limit: int, max_bytes: int) -> Sequence[int]:
        """As many of the runs as it takes to reach one of the bounds."""
        body = self._body
        if limit < self.head.messages:
            reached = accumulate([body.counts[run] for run in chosen])
            chosen = chosen[: bisect_left(list(reached), limit) + 1]
        if max_bytes < len(body.data) + self.head.messages * (self._longest + _HEAD_LENGTH):
            lengths = [len(each) + _HEAD_LENGTH for each in self._lists]
            sizes = [
                body.sizes[run] + lengths[body.run_lists[run]] * body.counts[run] for run in chosen
            ]
            chosen = chosen[: bisect_left(list(accumulate(sizes)), max_bytes) + 1]
        return chosen

    def _entries(self, chosen: Sequence[int]) -> list[Entry]:
        """Runs with the wires they came with."""
        numbers: Sequence[int] = self._body.run_lists
        counts: Sequence[int] = self._body.counts
        starts, ends = self._offsets, self._offsets[1:]
        if isinstance(chosen, range):
            part = slice(chosen.start, chosen.stop)
            numbers, counts, starts, ends = numbers[part], counts[part], starts[part], ends[part]
        else:
            numbers = [numbers[run] for run in chosen]
            counts = [counts[run] for run in chosen]
            starts = [starts[run] for run in chosen]
            ends = [ends[run] for run in chosen]
        known = {number: self._tag_lists.get(self._lists[number]) for number in set(numbers)}
        tag_lists = [known[number] for number in numbers]
        data = self._body.data
        # Written out for runs of one: most of a replay is spent in this line.
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
        body = self._body
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

    def check(self) -> str | None:
        """What is wrong with it beyond what would keep it from being read; None if nothing is."""
        hashes, _ = pack_postings(self._lists, len(self._lists))
        stored = self.select()
        head = self.head
        times = [round(each.time * MICROSECONDS) for each in stored]
        if hashes != self._hashes:
            return "its tags are not those that it is found by"
        if times != sorted(times) or (times[0], times[-1]) != (head.oldest, head.newest):
            return "its times are out of order"
        if not head.first <= stored[0].firsts[0] == head.start:
            return "its ids are not those that it is found by"
        return None

    def _choose(self, selection: Selection | None, after: int, upto: int) -> Sequence[int]:
        """Numbers of the runs that are wanted and have ids in `(after, upto]`."""
        low = max(bisect_right(self._firsts, after + 1) - 1, 0)
        if self._firsts[low] + self._body.counts[low] <= after + 1:
            low += 1
        high = bisect_right(self._firsts, upto)
        if selection is None or low >= high:
            return range(low, high)
        wanted = self._find(selection)
        if len(wanted) == len(self._lists):
            return range(low, high)
        column = self._body.run_lists
        if len(wanted) > _FEW_SCANS:
            return [run for run in range(low, high) if column[run] in wanted]
        found = []
        for number in wanted:
            run = low - 1
            with suppress(ValueError):  # that it is not in the rest
                while True:
                    run = column.index(number, run + 1, high)
                    found.append(run)
        return sorted(found)

    def _find(self, selection: Selection) -> set[int]:
        """Numbers of the tag lists that are wanted."""
        lists, lookups = self._lists, selection.lookups
        candidates: Iterable[int] = range(len(lists))
        if lookups is not None and len(lists) > _FEW_LISTS:
            postings = Postings(self._hashes, self._body.postings, len(lists))
            candidates = {number for wanted in lookups for number in postings.find(wanted)}
        return {number for number in candidates if selection.matches(lists[number])}


def cut(entry: Entry, skip: int, take: int) -> Entry:
    """`take` messages of an entry, those behind its first `skip`."""
    tag_list, wire, count = entry
    pieces = tag_list.split(wire, count)[skip : skip + take]
    return tag_list, b"".join([b"%b%b\n" % (tag_list.head, data) for data in pieces]), take


class _Columns:
    """A body, unpacked.

    Raises:
        ValueError: its parts don't fit together.
    """

    def __init__(self, body: _Body) -> None:
        self.lists = body.lists.split(b"\n")
        self.publishers = body.publishers
        self.extras = body.extras
        self.postings = body.postings
        self.data = body.data
        sections, runs = body.sections, body.runs
        self.section_ends = list(accumulate(unpack(*body.section_runs, sections)))
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
            or max(self.run_lists) >= len(self.lists)
            or max(self.section_publishers) >= len(self.publishers)
            or max(self.section_extras) >= len(self.extras)
        ):
            raise ValueError("numbers out of range")
