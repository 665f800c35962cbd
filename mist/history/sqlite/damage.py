"""Reading past damage: which blocks of a damaged database can still be read, and which can't.

A damaged page of the file makes SQLite refuse every statement that touches it, and it doesn't say
which rows are on it. Here that is found out, so that a reader loses those rows and no others:

    a page of the table's tree      the blocks on it can't be listed: `next_head` looks for the
                                    next key behind it that can
    a page of one block's body      the block is listed and can't be read
    the directory                   blocks are found one by one, without it

All of it is slow, in the order of a statement for each block, and runs only behind damage.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history.continuity import MISPLACED, MISSING, check_gap, is_sound
from mist.history.layout import NOT_THERE, Head, Row
from mist.history.record import MAX_ID, Problem
from mist.history.sqlite.rows import read_heads, read_rows

__all__ = ["damaged_pages", "next_head", "read_down", "read_up", "readable_heads", "unreadable"]

_TOLD: Final = (MISSING, MISPLACED)
_UP: Final = "WHERE first > ? ORDER BY first LIMIT 1"
_DOWN: Final = "WHERE first < ? ORDER BY first DESC LIMIT 1"


def next_head(connection: sqlite3.Connection, above: int) -> Head | None:
    """The next block whose key is above an id; None behind the last one. A few statements.

    Raises:
        HistoryDamaged: blocks behind `above` can't be listed; those behind its `last` can.
    """
    return _step(connection, _UP, above, lambda found: (above + 1, found.first - 1), 1)


def _previous_head(connection: sqlite3.Connection, below: int) -> Head | None:
    """The block before the one with a key; as `next_head`, downwards."""
    return _step(connection, _DOWN, below, lambda found: (found.last + 1, below - 1), -1)


def _step(
    connection: sqlite3.Connection,
    which: str,
    place: int,
    between: Callable[[Head], tuple[int, int]],
    direction: int,
) -> Head | None:
    try:
        heads = read_heads(connection, which, (place,))
    except HistoryDamaged as error:
        found = _probe(connection, which, place, direction)
        if found is not None:
            first, last = between(found)
        else:
            first, last = (place + 1, MAX_ID) if direction > 0 else (1, place - 1)
        raise HistoryDamaged(first, error.reason, last) from error
    return heads[0] if heads else None


def _probe(connection: sqlite3.Connection, which: str, place: int, direction: int) -> Head | None:
    """The first block in a direction that can be listed; None where none can.

    Each try is a search down the tree, which fails where it ends on a damaged page. Steps double
    until one succeeds, and the edge is found by halving: some O(log ids) statements.
    """
    bad, step = place, 1
    while True:
        good = bad + direction * step
        if not 0 <= good <= MAX_ID:
            return None
        try:
            heads = read_heads(connection, which, (good,))
            break
        except HistoryDamaged:
            bad, step = good, 2 * step
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        try:
            heads = read_heads(connection, which, (middle,))
            good = middle
        except HistoryDamaged:
            bad = middle
    return heads[0] if heads else None


def _read(connection: sqlite3.Connection, head: Head) -> Row:
    try:
        for row in read_rows(connection, "WHERE first = ?", (head.first,)):
            return row
    except HistoryDamaged as error:
        raise head.damaged(error.reason) from error
    raise head.damaged(NOT_THERE)


def read_up(connection: sqlite3.Connection, after: int, upto: int, removed: int) -> Iterator[Row]:
    """Blocks that have ids in `(after, upto]`, ascending, one by one.

    Args:
        removed: see `gaps.removed_upto`.

    Raises:
        HistoryDamaged: at the first that can't be read or isn't there, with its ids.
    """
    try:
        begun = _previous_head(connection, after + 2)
    except HistoryDamaged:  # all that is known of it is that it lies before `after`
        begun = None
    # One that isn't sound may be another, found here since its key has changed.
    if begun is not None and begun.last > after and is_sound(begun, removed):
        yield _read(connection, begun)
        after = begun.last
    while (head := next_head(connection, after)) is not None and head.first <= upto:
        check_gap(after, head.first, removed)
        _check_head(connection, head, removed)
        yield _read(connection, head)
        after = head.last
    check_gap(after, upto + 1, removed)


def read_down(connection: sqlite3.Connection, upto: int, removed: int) -> Iterator[Row]:
    """Blocks that have ids up to `upto`, descending, one by one; else as `read_up`."""
    place = upto + 1
    while (head := _previous_head(connection, place)) is not None:
        if not is_sound(head, removed):
            raise HistoryDamaged(min(head.first, place - 1), MISPLACED, place - 1)
        if place <= upto:  # above the first of them, `upto` may be higher than any id
            check_gap(head.last, place, removed)
        yield _read(connection, head)
        place = head.first
    if place <= upto:
        check_gap(0, place, removed)


def _check_head(connection: sqlite3.Connection, head: Head, removed: int) -> None:
    if not is_sound(head, removed):
        # Its last id may be anything, so it is taken to end where the next block begins.
        following = next_head(connection, head.first)
        last = MAX_ID if following is None else following.first - 1
        raise HistoryDamaged(head.first, MISPLACED, last)


def readable_heads(connection: sqlite3.Connection, after: int, limit: int) -> Sequence[Head]:
    """The heads of the first `limit` blocks above an id that can be listed."""
    heads: list[Head] = []
    while len(heads) < limit:
        try:
            head = next_head(connection, after)
        except HistoryDamaged as error:
            after = error.last
            continue
        if head is None:
            break
        heads.append(head)
        after = head.first
    return heads


def unreadable(connection: sqlite3.Connection, removed: int) -> Iterator[Problem]:
    """The ranges of ids whose blocks can't be listed, or aren't there. O(blocks).

    Args:
        removed: see `gaps.removed_upto`.
    """
    place = 0
    while True:
        try:
            head = next_head(connection, place)
            if head is None:
                return
            check_gap(place, head.first, removed)
            _check_head(connection, head, removed)
            place = head.last
        except HistoryDamaged as error:
            reason = error.reason if error.reason in _TOLD else "its blocks can't be listed"
            yield Problem(error.first, min(error.last, MAX_ID), reason)
            place = error.last
        except HistoryUnavailable:
            return


def damaged_pages(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Pages of tables' trees that can't be read: of which table, and at which byte of the file.

    Where SQLite was built without what tells, there are none.
    """
    try:
        found = connection.execute(
            "SELECT name, pgoffset FROM dbstat WHERE pagetype = 'corrupted'"
        ).fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return
    for name, offset in found:
        yield str(name), int(offset)
