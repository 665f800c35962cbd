"""Encoding: publications to blocks, with ids, times, and the row that is stored; see `layout`."""

from collections.abc import Hashable, Iterable, Sequence
from operator import add, sub
from typing import TypeVar

import attrs
import msgspec

from mist.history.clock import Clock
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
from mist.history.part import Columns
from mist.history.postings import pack_postings
from mist.history.record import Publication, Stored

__all__ = ["assign", "encode", "with_channel_counts"]

K = TypeVar("K", bound=Hashable)


def assign(publications: Iterable[Publication], first: int, clock: Clock) -> list[Stored]:
    """Give ids to publications from `first` on, and times that never go back."""
    stored = []
    for each in publications:
        if not each.entries:
            continue
        firsts = []
        if not each.framable and any(count > 1 for _, _, count in each.entries):
            raise ValueError("data that may contain LF can't be in a run")
        for _, _, count in each.entries:
            firsts.append(first)
            first += count
        stored.append(
            Stored(
                each.entries,
                clock.stamp(each.time) / MICROSECONDS,
                each.publisher,
                each.framable,
                each.audience,
                each.meta,
                firsts=firsts,
            )
        )
    return stored


class _Numbering(dict[K, int]):
    """Distinct values, numbered in order of appearance."""

    def __missing__(self, key: K) -> int:
        number = self[key] = len(self)
        return number


def encode(stored: Sequence[Stored], *, first: int | None = None, last: int | None = None) -> Row:
    """Encode publications with ids, ascending and at least one message, as one block.

    O(entries + tags of distinct tag lists), and bytes at the speed of memory.

    Args:
        stored: with numbers where the block is rewritten and its messages have some. Numbers are
            stored only if those of all messages are known.
        first, last: the ids that the block covers, where retention removed messages at its ends.
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
    extras: _Numbering[Extra] = _Numbering()
    section_publishers = pack([publishers[each.publisher] for each in stored])
    section_extras = pack([extras[_extra(each)] for each in stored])
    hashes, postings = pack_postings(lists, len(lists))
    text = b"\n".join(lists)
    body = encode_body(
        Body(
            lists=text,
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
    row = Row(head, hashes, checksum(hashes, body), body)
    if not has_channels(text):
        return row
    if first is None:
        bounds = _bounds(stored)
        return attrs.evolve(row, tally=add_up(lists, run_lists, counts, bounds))
    numbers: list[Numbers] = []
    for publication in stored:
        if publication.numbers is None:
            return row
        numbers += publication.numbers
    return attrs.evolve(row, numbers=pack_numbers(lists, run_lists, counts, numbers))


def with_channel_counts(row: Row) -> Row:
    """A block that was received as bytes, with the counts of its channels.

    Raises:
        ValueError: it can't be read.
    """
    if row.tally is not None:
        return row
    try:
        body = decode_body(row.body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if not has_channels(body.lists):
        return row
    columns = Columns(body)
    return attrs.evolve(row, tally=add_up(columns.lists, columns.run_lists, columns.counts))


def _bounds(stored: Sequence[Stored]) -> list[tuple[int, int | None, int | None]]:
    bounds = []
    run = 0
    for publication in stored:
        size, age = bound_of(publication.meta)
        for _ in publication.entries:
            if size is not None or age is not None:
                bounds.append((run, size, age))
            run += 1
    return bounds


def _extra(publication: Publication) -> Extra:
    meta = publication.meta
    return publication.audience, None if meta is None else tuple(sorted(meta.items()))
