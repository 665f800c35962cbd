"""The blocks that were decoded last, for the next reader of the same.

A reader that follows the log alone reads each block once. But thousands of clients that come back
at once all read the same few, and to decode one takes ten times as long as to choose from it.
"""

from typing import Final

from mist.history.block import Block, TagLists
from mist.history.layout import Row
from mist.history.recent import Recent

__all__ = ["Blocks"]

_MAX_BYTES: Final = 8 * 1024 * 1024
_RUN_COST: Final = 200  # bytes of a run: its numbers, in six columns


class Blocks(Recent[int, tuple[Row, Block]]):
    """See the module. By the first ids; shared by threads.

    A block is recognised by all that is stored of it, so whatever replaces it is decoded anew.

    Args:
        max_bytes: of all blocks that are kept, roughly.

    Attributes:
        tag_lists: where the tag lists of all blocks come from.
    """

    __slots__ = ("tag_lists",)

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__(max_bytes)
        self.tag_lists = TagLists()

    def cost(self, key: int, value: tuple[Row, Block]) -> int:
        """See `Recent`."""
        row, block = value
        columns = block.columns
        return len(row.body) + len(columns.data) + _RUN_COST * len(columns.counts)

    def decode(self, row: Row) -> Block:
        """The block of a row.

        Raises:
            HistoryDamaged: it isn't what was written.
        """
        first = row.head.first
        kept = self.find(first)
        if kept is not None and kept[0] == row:
            return kept[1]
        block = Block(row, self.tag_lists)
        self.remove(first)
        self.add(first, (row, block))
        return block
