"""Gaps: ids of a log that no block holds; see `mist.history.continuity`.

A search that reads only blocks that may hold a match doesn't see the others. So what it relies on
is checked for gaps: the segments of the directory, and the blocks that it doesn't list yet.

From where on there should be none is recorded in a table of its own, which is made when the log is
opened for writing. So it needs no version of the schema: a mist that doesn't know it leaves it
alone, and where it isn't there yet, nothing is checked.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from mist.errors import HistoryDamaged
from mist.history.continuity import Gap, is_sound
from mist.history.record import MAX_ID
from mist.history.sqlite.rows import checked, fetch, read_heads
from mist.sqlite import transaction

__all__ = ["begin_continuity", "find_gap", "note_skipped", "removed_upto"]

_Span = tuple[int, int]
"""First and last id of what there is."""

_WITHIN: Final = (
    "first >= coalesce((SELECT max(first) FROM {0} WHERE first <= ?), 0) AND first <= ?"
)
_BLOCKS: Final = f"WHERE {_WITHIN.format('block')}"
_SEGMENTS: Final = (
    f"SELECT first, last FROM segment WHERE {_WITHIN.format('segment')} ORDER BY first"  # noqa: S608
)


_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS continuity (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        after INTEGER NOT NULL       -- no id above this was left out when ids were given
    ) STRICT
"""


def removed_upto(connection: sqlite3.Connection) -> int:
    """Up to this id, ids may be missing without damage. All, where that isn't recorded."""
    try:
        if not _is_recorded(connection):
            return MAX_ID
        ((removed,),) = fetch(
            connection,
            "SELECT max(coalesce((SELECT max(floor, trimmed) FROM log), 0), "
            "coalesce((SELECT max(upto) FROM erasure), 0), "
            "coalesce((SELECT max(after) FROM continuity), ?))",
            (MAX_ID,),
        )
    except HistoryDamaged:  # what it is recorded on; the blocks may be readable
        return MAX_ID
    return int(removed)


def note_skipped(connection: sqlite3.Connection, upto: int) -> None:
    """Record that ids up to this one were left out, in a transaction of the caller's."""
    connection.execute(_TABLE)
    connection.execute("INSERT OR REPLACE INTO continuity VALUES (1, ?)", (upto,))


def begin_continuity(connection: sqlite3.Connection) -> None:
    """Record from where on a log has no gaps, where that isn't recorded. O(blocks), once."""
    if _is_recorded(connection):
        return
    upto = place = 0
    for head in read_heads(connection, "ORDER BY first"):
        if head.first != place + 1 or not is_sound(head, 0):
            upto = head.first - 1 if is_sound(head, 0) else head.last
        place = head.last
    with transaction(connection):
        note_skipped(connection, upto)


def _is_recorded(connection: sqlite3.Connection) -> bool:
    return bool(fetch(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'continuity'"))


def find_gap(
    connection: sqlite3.Connection,
    after: int,
    upto: int,
    removed: int,
    *,
    indexed: bool,
    descending: bool = False,
) -> Gap | None:
    """The first gap in `(after, upto]`; from above, where ids up to `upto` may not be given yet.

    O(blocks / 64) of those in the directory, O(blocks) of those behind it.

    Args:
        removed: see `removed_upto`.
        indexed: whether these ids are all in the directory, or else behind it.

    Raises:
        HistoryDamaged: what there is can't be listed.
    """
    if indexed:
        spans = _segments(connection, after, upto)
    else:
        heads = read_heads(connection, _BLOCKS, (after + 1, upto))
        spans = [(head.first, head.last) for head in heads if is_sound(head, removed)]
    gaps = list(_between(spans, after, removed))
    if descending:
        return gaps[-1] if gaps else None
    if gaps:
        return gaps[0]
    end = max(removed, spans[-1][1] if spans else after)
    return Gap(end + 1, upto) if end < upto else None


def _segments(connection: sqlite3.Connection, after: int, upto: int) -> list[_Span]:
    found = fetch(connection, _SEGMENTS, (after + 1, upto))
    with checked():
        return msgspec.convert(found, list[_Span])


def _between(spans: Iterable[_Span], after: int, removed: int) -> Iterator[Gap]:
    for first, last in spans:
        if first > max(after, removed) + 1:
            yield Gap(max(after, removed) + 1, first - 1)
        after = max(after, last)
