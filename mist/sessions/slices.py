"""Blocks of a log as batches to publish, each small enough for a turn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from mist.history import Stored
from mist.history.block import Block
from mist.history.columns import is_one, is_zero
from mist.history.layout import Row, decode_body
from mist.history.part import Columns
from mist.history.tag_lists import TagLists
from mist.history.visibility import envelope_of
from mist.wire import Batch

__all__ = ["Slice", "cut", "lists_of", "plain_slices", "slices_of"]

_SLICE: Final = 256  # entries of a large batch published at a time
_PLAIN: Final = (None, None)  # neither audience nor meta

Slice = tuple[Batch, int, int]
"""A batch, with the ids of its first and last message."""


def plain_slices(row: Row) -> list[Slice] | None:
    """What to publish of a block whose messages are all plain, from its columns; else None.

    Plain are those without audience and meta, each a line, ids without gaps. Nothing is made for
    each of them but its data. None also where it can't be read: `slices_of` tells why.

    Args:
        row: whose checksum was looked at.
    """
    try:
        columns = Columns(decode_body(row.body))
        lists = columns.lists
        if not (
            is_one(columns.counts)
            and is_zero(columns.gaps)
            and all(columns.section_framable)
            and all(columns.extras[each] == _PLAIN for each in columns.section_extras)
        ):
            return None
        names = list(map(lists.__getitem__, columns.run_lists))
    except (ValueError, IndexError):
        return None
    datas = columns.data.split(b"\n")
    if datas.pop() or len(datas) != len(names) or len(names) != row.head.messages:
        return None
    start = row.head.start
    slices: list[Slice] = []
    for at in range(0, len(names), _SLICE):
        some = Batch.of_columns(names[at : at + _SLICE], datas[at : at + _SLICE])
        slices.append((some, start + at, start + at + len(some.tag_lists) - 1))
    return slices


def slices_of(row: Row, tag_lists: TagLists) -> list[Slice]:
    """What to publish of a block.

    Raises:
        HistoryDamaged: it isn't what was written.
    """
    return [piece for stored in Block(row, tag_lists).select() for piece in cut(stored)]


def cut(stored: Stored) -> Iterator[Slice]:
    """Batches of some entries each."""
    # The ids of a batch follow each other; those of what somebody has taken a part of don't.
    whole = stored.firsts[-1] + stored.entries[-1][2] - stored.firsts[0] == stored.count
    step = _SLICE if whole else 1
    for start in range(0, len(stored.entries), step):
        entries = stored.entries[start : start + step]
        firsts = stored.firsts[start : start + step]
        runs = [(tag_list.canonical, wire, count) for tag_list, wire, count in entries]
        last = firsts[-1] + runs[-1][2] - 1
        envelope = None
        if stored.audience is not None or stored.meta is not None:
            envelope = envelope_of(stored)
        yield Batch.of_runs(runs, framable=stored.framable, envelope=envelope), firsts[0], last


def lists_of(row: Row) -> Mapping[bytes, int]:
    """The tag lists of a block, and how many of its messages have each.

    Raises:
        ValueError: it isn't what was written.
    """
    columns = Columns(decode_body(row.body))
    numbers: Counter[int] = Counter()
    if is_one(columns.counts):
        numbers.update(columns.run_lists)
    else:
        for number, count in zip(columns.run_lists, columns.counts, strict=True):
            numbers[number] += count
    lists = columns.lists
    if max(numbers, default=0) >= len(lists):
        raise ValueError("numbers out of range")
    return {lists[number]: count for number, count in numbers.items()}
