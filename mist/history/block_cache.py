"""The blocks that were decoded last, for the next reader of the same.

A reader that follows the log alone reads each block once. But thousands of clients that come back
at once all read the same few, and to decode one takes ten times as long as to choose from it.
"""

from collections import OrderedDict
from typing import Final

from mist.history.block import Block, TagLists
from mist.history.layout import Row

__all__ = ["Blocks"]

_MAX_BYTES: Final = 8 * 1024 * 1024
_RUN_COST: Final = 200  # bytes of a run: its numbers, in six columns


class Blocks:
    """See the module. Shared by threads.

    A block is recognised by all that is stored of it, so whatever replaces it is decoded anew.

    Args:
        max_bytes: of all blocks that are kept, roughly.

    Attributes:
        tag_lists: where the tag lists of all blocks come from.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.tag_lists = TagLists()
        self._max_bytes = max_bytes
        self._size = 0
        # By the first id, least recently used first.
        self._kept: OrderedDict[int, tuple[Row, Block, int]] = OrderedDict()

    def decode(self, row: Row) -> Block:
        """The block of a row.

        Raises:
            HistoryDamaged: it isn't what was written.
        """
        first = row.head.first
        kept = self._kept.pop(first, None)  # while another thread has it, it is decoded twice
        if kept is not None:
            self._size -= kept[2]
        if kept is None or kept[0] != row:
            block = Block(row, self.tag_lists)
            columns = block.columns
            size = len(row.body) + len(columns.data) + _RUN_COST * len(columns.counts)
            kept = row, block, size
        self._keep(first, kept)
        return kept[1]

    def _keep(self, first: int, kept: tuple[Row, Block, int]) -> None:
        before = self._kept.setdefault(first, kept)
        if before is not kept:
            return
        size = kept[2]
        self._size += size
        while self._size > self._max_bytes and self._kept:
            _, (_, _, size) = self._kept.popitem(last=False)
            self._size -= size
