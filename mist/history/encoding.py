"""Encoding: messages to blocks, as the row that is stored; see `layout`.

    encode              publications, as they are appended; `encode_blocks`, as several blocks
    encode_stored       messages that were read, where retention or an erasure left some
    encode_joined       neighbouring blocks, as one

None looks at each message: what is done for each is done in C, a column at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, repeat
from operator import add, sub
from typing import Final

import attrs

from mist.history.columns import pack
from mist.history.layout import (
    MICROSECONDS,
    Body,
    Extra,
    Head,
    Row,
    checksum,
    decode_body,
    encode_body,
)
from mist.history.numbering import (
    Numbers,
    add_up,
    bound_of,
    has_channels,
    pack_numbers,
)
from mist.history.part import HEAD_LENGTH, Columns
from mist.history.postings import pack_postings
from mist.history.record import Publication, Stored
from mist.wire import Batch, Run, record_head

__all__ = [
    "encode",
    "encode_blocks",
    "encode_joined",
    "encode_stored",
    "takes_long",
    "with_channel_counts",
]

# In a block. Who looks for the messages of one of them reads the whole block: 0.6 ms.
_RUNS: Final = 1_024

_LONG: Final = 131_072  # bytes of tag lists, which take some 10 ms to encode
_MANY: Final = 1_000  # publications, which take as long
_ADDRESSES: Final = 500  # subjects and topics, of which what is derived takes as long


@attrs.define
class _Sections:
    """Columns of a block's sections, while they are filled; see `Body`."""

    runs: list[int] = attrs.field(factory=list)
    times: list[int] = attrs.field(factory=list)
    publishers: list[str] = attrs.field(factory=list)
    extras: list[Extra] = attrs.field(factory=list)
    framable: list[bool] = attrs.field(factory=list)

    def add(self, section: Publication | Stored, runs: int, time: int, *, framable: bool) -> None:
        meta = section.meta
        items = None if meta is None else tuple(sorted(meta.items()))
        self.runs.append(runs)
        self.times.append(time)
        self.publishers.append(section.publisher)
        self.extras.append((section.audience, items))
        self.framable.append(framable)


@attrs.define
class _Runs:
    """Columns of a block's runs, while they are filled.

    Attributes:
        names: the tag list of each.
        counts: messages.
        pieces: their data, LF between them.
    """

    names: list[bytes] = attrs.field(factory=list)
    counts: list[int] = attrs.field(factory=list)
    pieces: list[bytes] = attrs.field(factory=list)

    def add_batch(self, batch: Batch) -> int:
        """Returns the number of its runs."""
        datas = batch.datas
        if datas is None:
            return self.add(batch.runs)
        self.names += batch.tag_lists
        self.counts += repeat(1, len(datas))
        self.pieces += datas
        return len(datas)

    def add(self, runs: Sequence[Run]) -> int:
        """Returns their number."""
        self.names += [run[0] for run in runs]
        self.counts += [run[2] for run in runs]
        self.pieces += [
            wire[HEAD_LENGTH + len(name) : -1] if count == 1 else _data(name, wire)
            for name, wire, count in runs
        ]
        return len(runs)


def _data(name: bytes, wire: bytes) -> bytes:
    head = record_head(name)
    return wire[len(head) : -1].replace(b"\n" + head, b"\n")


def encode(publications: Sequence[Publication], times: Sequence[int]) -> Row:
    """Encode publications, at least one, as one block whose ids begin at 1.

    O(runs + tags of distinct tag lists), and bytes at the speed of memory; nearly all in C.

    Args:
        publications: each with a run.
        times: of each, microseconds.

    Raises:
        ValueError: a run of several messages, in data of which there may be LF.
    """
    sections, runs = _Sections(), _Runs()
    for publication, time in zip(publications, times, strict=True):
        batch = publication.batch
        added = runs.add_batch(batch)
        if not batch.framable and max(runs.counts[-added:]) > 1:
            raise ValueError("data that may contain LF can't be in a run")
        sections.add(publication, added, time, framable=batch.framable)
    row, text, run_lists = _make_of_runs(sections, runs, (), 1)
    if not has_channels(text):
        return row
    bounds = _bounds([each.meta for each in publications], sections.runs)
    return attrs.evolve(row, tally=add_up(text.split(b"\n"), run_lists, runs.counts, bounds))


def encode_blocks(publications: Sequence[Publication], times: Sequence[int]) -> list[Row]:
    """As `encode`, as blocks of which each begins behind the one before."""
    total = sum([len(each.batch.tag_lists) for each in publications])
    most = -(-total // -(-total // _RUNS))  # in blocks of one size
    rows: list[Row] = []
    some: list[Publication] = []
    of_some: list[int] = []
    count = last = 0
    for publication, time in zip(publications, times, strict=True):
        for piece in _cut(publication, most):
            runs = len(piece.batch.tag_lists)
            if some and count + runs > most:
                rows.append(encode(some, of_some).moved(last))
                some, of_some, count, last = [], [], 0, rows[-1].head.last
            some.append(piece)
            of_some.append(time)
            count += runs
    rows.append(encode(some, of_some).moved(last))
    return rows


def takes_long(publications: Sequence[Publication]) -> bool:
    """Whether encoding messages would keep the event loop for long."""
    if len(publications) > _MANY:
        return True
    lists = list(chain.from_iterable([each.batch.tag_lists for each in publications]))
    if sum(map(len, lists)) > _LONG:
        return True
    if len(lists) <= _ADDRESSES:
        return False
    tags = b",".join([b"", *set(lists)])
    return tags.count(b",.") + tags.count(b",/") > _ADDRESSES


def _cut(publication: Publication, most: int) -> Iterator[Publication]:
    """The same in pieces of so many runs, where these are a message each."""
    batch = publication.batch
    if len(batch.tag_lists) <= most or (datas := batch.datas) is None:
        yield publication
        return
    for start in range(0, len(datas), most):
        some = slice(start, start + most)
        piece = Batch.of_columns(batch.tag_lists[some], datas[some])
        piece.framable = batch.framable
        yield attrs.evolve(publication, batch=piece)


def encode_stored(stored: Sequence[Stored], first: int, last: int) -> Row:
    """Encode what is left of a block, at least one message, ids ascending.

    Args:
        stored: with numbers where its messages have some. Numbers are stored only if those of all
            messages are known.
        first, last: the ids that the block covers.
    """
    sections, runs = _Sections(), _Runs()
    firsts: list[int] = []
    for each in stored:
        added = runs.add([(tags.canonical, wire, count) for tags, wire, count in each.entries])
        sections.add(each, added, round(each.time * MICROSECONDS), framable=each.framable)
        firsts += each.firsts
    gaps = [0, *map(sub, firsts[1:], map(add, firsts, runs.counts))]
    row, text, run_lists = _make_of_runs(sections, runs, gaps, firsts[0])
    row = _covering(row, first, last)
    numbers: list[Numbers] = []
    if not has_channels(text):
        return row
    for each in stored:
        if each.numbers is None:
            return row
        numbers += each.numbers
    packed = pack_numbers(text.split(b"\n"), run_lists, runs.counts, numbers)
    return attrs.evolve(row, numbers=packed)


def encode_joined(blocks: Sequence[tuple[Head, Columns]]) -> Row:
    """Encode neighbouring blocks, of no message with a channel, as one.

    O(runs + tags of distinct tag lists), nearly all in C: no message is looked at by itself.
    """
    sections = _Sections()
    lists: dict[bytes, int] = {}
    run_lists: list[int] = []
    counts: list[int] = []
    sizes: list[int] = []
    gaps: list[int] = []
    following = blocks[0][0].start
    for head, columns in blocks:
        new = [each for each in columns.lists if each not in lists]
        lists.update(zip(new, range(len(lists), len(lists) + len(new)), strict=True))
        numbers = list(map(lists.__getitem__, columns.lists))
        run_lists += map(numbers.__getitem__, columns.run_lists)
        counts += columns.counts
        sizes += columns.sizes
        gaps += [head.start - following, *columns.gaps[1:]]
        following = head.start + head.messages + sum(columns.gaps[1:])
        sections.runs += columns.section_runs
        sections.times += [head.oldest + time for time in columns.section_times]
        sections.publishers += map(columns.publishers.__getitem__, columns.section_publishers)
        sections.extras += map(columns.extras.__getitem__, columns.section_extras)
        sections.framable += map(bool, columns.section_framable)
    data = b"".join([columns.data for _, columns in blocks])
    start = blocks[0][0].start
    row = _make(sections, b"\n".join(lists), run_lists, counts, sizes, gaps, data, start)
    return _covering(row, blocks[0][0].first, blocks[-1][0].last)


def _covering(row: Row, first: int, last: int) -> Row:
    return attrs.evolve(row, head=attrs.evolve(row.head, first=first, last=last))


def _make_of_runs(
    sections: _Sections, runs: _Runs, gaps: Sequence[int], start: int
) -> tuple[Row, bytes, Sequence[int]]:
    """A block of some runs; and its tag lists, LF between them, and the number of each run's."""
    names, pieces = runs.names, runs.pieces
    lists = list(dict.fromkeys(names))
    run_lists: Sequence[int] = range(len(names))
    if len(lists) < len(names):
        numbers = dict(zip(lists, run_lists, strict=False))
        run_lists = list(map(numbers.__getitem__, names))
    sizes = [len(piece) + 1 for piece in pieces]
    data = b"\n".join([*pieces, b""])  # and not a copy of all for the last LF
    text = b"\n".join(lists)
    return _make(sections, text, run_lists, runs.counts, sizes, gaps, data, start), text, run_lists


def _make(
    sections: _Sections,
    text: bytes,
    run_lists: Sequence[int],
    counts: Sequence[int],
    sizes: Sequence[int],
    gaps: Sequence[int],
    data: bytes,
    start: int,
) -> Row:
    """A block of columns; see `Columns`. Without gaps there are no ids left out."""
    times = sections.times
    publishers = dict(zip(dict.fromkeys(sections.publishers), count()))
    extras = dict(zip(dict.fromkeys(sections.extras), count()))
    hashes, posted, postings = pack_postings(text)
    body = encode_body(
        Body(
            lists=text,
            publishers=list(publishers),
            extras=list(extras),
            sections=len(times),
            runs=len(counts),
            section_runs=pack(sections.runs),
            section_times=pack([time - times[0] for time in times]),
            section_publishers=pack(list(map(publishers.__getitem__, sections.publishers))),
            section_extras=pack(list(map(extras.__getitem__, sections.extras))),
            section_framable=pack(sections.framable),
            run_lists=pack(run_lists),
            run_counts=pack(counts),
            run_sizes=pack(sizes),
            run_gaps=pack(gaps),
            postings=postings,
            data=data,
            posted=posted,
        )
    )
    messages = sum(counts)
    head = Head(
        first=start,
        last=start + messages + sum(gaps) - 1,
        start=start,
        messages=messages,
        oldest=times[0],
        newest=times[-1],
        size=len(hashes) + len(body),
    )
    return Row(head, hashes, checksum(hashes, body), body)


def with_channel_counts(row: Row) -> Row:
    """A block that was received as bytes, with the counts of its channels.

    Raises:
        ValueError: it can't be read.
    """
    if row.tally is not None:
        return row
    body = decode_body(row.body)
    if not has_channels(body.lists):
        return row
    columns = Columns(body)
    metas = [columns.extras[extra][1] for extra in columns.section_extras]
    bounds = _bounds([None if meta is None else dict(meta) for meta in metas], columns.section_runs)
    return attrs.evolve(row, tally=add_up(columns.lists, columns.run_lists, columns.counts, bounds))


def _bounds(
    metas: Iterable[Mapping[str, bytes] | None], runs: Iterable[int]
) -> list[tuple[int, int | None, int | None]]:
    """What the meta of sections of so many runs says of their channels."""
    bounds = []
    first = 0
    for meta, number in zip(metas, runs, strict=True):
        size, age = bound_of(meta)
        if size is not None or age is not None:
            bounds += [(run, size, age) for run in range(first, first + number)]
        first += number
    return bounds
