"""Continuity: whether blocks are missing between those that were read.

Damage inside a page of a file may have SQLite pass over rows and say nothing: a bit flips in the
key of a row, in its length, or in its place on the page. But ids are given without gaps, unless a
new epoch leaves some out, and only retention and erasure remove any. So above the highest id that
may be missing for one of these reasons, each block holds all ids from its first to its last, and
the next one begins right behind it. What doesn't is reported as damage.

Below that id a gap is nothing unusual, and tells nothing.

What checks blocks closes them when it ends, also early: there SQLite may tell of damage, too.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Final, TypeVar

import attrs

from mist.errors import HistoryDamaged
from mist.history.layout import Head
from mist.history.pieces import AnyRow

__all__ = [
    "MISPLACED",
    "MISSING",
    "Gap",
    "check_gap",
    "follow",
    "follow_down",
    "is_sound",
    "stop_at",
]

R = TypeVar("R", bound=AnyRow)

MISSING: Final = "blocks are missing"
MISPLACED: Final = "its ids differ from those it is indexed by"


@attrs.frozen
class Gap:
    """Ids that were given and aren't there.

    Attributes:
        first, last: the lowest and the highest.
    """

    first: int
    last: int


def is_sound(head: Head, removed: int) -> bool:
    """Whether the ids in a block's head agree with each other.

    Args:
        removed: up to this id, ids may be missing without damage.
    """
    return head.first <= removed or (
        head.start == head.first and head.last == head.first + head.messages - 1
    )


def check_gap(after: int, before: int, removed: int) -> None:
    """Check that no id is missing between two that are there.

    Raises:
        HistoryDamaged: some are.
    """
    first = max(after, removed) + 1
    if first < before:
        raise HistoryDamaged(first, MISSING, before - 1)


def follow(
    found: Generator[R, None, None], after: int, upto: int, removed: int
) -> Generator[R, None, None]:
    """All blocks that have ids in `(after, upto]`, ascending, checked.

    Raises:
        HistoryDamaged: before the first that doesn't follow.
    """
    with closing(found) as rows:
        for row in rows:
            head = row.head
            check_gap(after, head.first, removed)
            _check_head(head, removed)
            yield row
            after = head.last
    check_gap(after, upto + 1, removed)


def follow_down(found: Generator[R, None, None], removed: int) -> Generator[R, None, None]:
    """All blocks up to some id, descending, as `follow`."""
    before: int | None = None
    with closing(found) as rows:
        for row in rows:
            head = row.head
            _check_head(head, removed)
            if before is not None:
                check_gap(head.last, before, removed)
            yield row
            before = head.first
    if before is not None:
        check_gap(0, before, removed)


def stop_at(
    gap: Gap | None, found: Generator[R, None, None], removed: int, *, descending: bool
) -> Generator[R, None, None]:
    """Some of the blocks, up to the first gap among all of them.

    Raises:
        HistoryDamaged: before the first block beyond the gap, or at the end where there is one.
    """
    with closing(found) as rows:
        for row in rows:
            head = row.head
            if gap is not None and (head.last < gap.first if descending else head.first > gap.last):
                break
            _check_head(head, removed)
            yield row
    if gap is not None:
        raise HistoryDamaged(gap.first, MISSING, gap.last)


def _check_head(head: Head, removed: int) -> None:
    if not is_sound(head, removed):
        raise HistoryDamaged(head.first, MISPLACED)
