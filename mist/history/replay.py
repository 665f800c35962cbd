"""Reading a shelf: pages of a replay, and where the last n begin.

Both walk over the blocks that may hold what is wanted and stop as soon as they have enough,
so neither's memory nor its first result depends on how long the log is.
"""

from contextlib import closing
from typing import Final

from mist.errors import HistoryDamaged
from mist.history.block import Block, TagLists
from mist.history.record import Page, Stored
from mist.history.selection import Selection
from mist.history.shelf import Shelf

__all__ = ["find_last", "read_page"]

# What is looked at for one page, so that no search holds a reader for long, and what is found
# first isn't kept waiting for what is found next.
_MAX_BLOCKS: Final = 64
_MAX_BYTES: Final = 2 * 1024 * 1024


def read_page(
    shelf: Shelf,
    tag_lists: TagLists,
    selection: Selection | None,
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
) -> Page:
    """See `History.read`. A block that is damaged ends the page before it, or is raised."""
    stored: list[Stored] = []
    read = 0
    with shelf.snapshot(), closing(shelf.ascend(after, upto, selection)) as rows:
        for looked_at, row in enumerate(rows, 1):
            try:
                block = Block(row, tag_lists)
            except HistoryDamaged:
                if not stored:
                    raise
                return Page(stored, after, False)
            found = block.select(selection, after, upto, limit, max_bytes)
            stored += found
            limit -= sum([each.count for each in found])
            size = sum([each.size for each in found])
            max_bytes -= size
            if limit <= 0 or max_bytes <= 0:
                last = found[-1]
                return Page(stored, last.firsts[-1] + last.entries[-1][2] - 1, False)
            after = min(row.head.last, upto)
            read += row.head.size
            # Nor is a block begun that is likely not to fit: the next page would unpack it again.
            if looked_at == _MAX_BLOCKS or read >= _MAX_BYTES or max_bytes < size:
                return Page(stored, after, False)
    return Page(stored, upto, True)


def find_last(
    shelf: Shelf, tag_lists: TagLists, selection: Selection | None, n: int, upto: int
) -> tuple[int, int]:
    """Walk down from `upto` until `n` wanted messages are found, or for a bounded while.

    Returns:
        How many are still to be found, and an id: with none left, the one after which exactly
        the `n` begin; else where to go on, 0 when the log is at its end.
    """
    read = 0
    with shelf.snapshot(), closing(shelf.descend(upto, selection)) as rows:
        for looked_at, row in enumerate(rows, 1):
            block = Block(row, tag_lists)
            for first, count in reversed(block.count(selection, 0, upto)):
                if count >= n:
                    return 0, first + count - n - 1
                n -= count
            read += row.head.size
            if looked_at == _MAX_BLOCKS or read >= _MAX_BYTES:
                return n, row.head.first - 1
    return n, 0
