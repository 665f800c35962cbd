"""The blocks that were decoded last, for the next reader of the same.

A reader that follows the log alone reads each block once. But thousands of clients that come back
at once all read the same few, and to decode one takes ten times as long as to choose from it.
"""

from typing import Final

from mist.history.block import Block
from mist.history.layout import Head, Row
from mist.history.pieces import AnyRow, OpenRow
from mist.history.recent import Recent
from mist.history.tag_lists import TagLists

__all__ = ["Blocks"]

_MAX_BYTES: Final = 8 * 1024 * 1024
# Bytes: of a block's objects, most of what one takes that has few messages; and of a run, its
# numbers in six columns.
_BLOCK_COST: Final = 2_200
_RUN_COST: Final = 110


_Stored = Row | tuple[Head, bytes]


class Blocks(Recent[tuple[int, bool], tuple[_Stored, Block]]):
    """See the module. By the first ids, and whether it was read as a whole; shared by threads.

    A block is recognised by all that is stored of it, or by its index, in which checksums stand
    for the rest. So whatever replaces it is decoded anew.

    Args:
        max_bytes: of all blocks that are kept, roughly.

    Attributes:
        tag_lists: where the tag lists of all blocks come from.
    """

    __slots__ = ("tag_lists",)

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__(max_bytes)
        self.tag_lists = TagLists()

    def cost(self, key: tuple[int, bool], value: tuple[_Stored, Block]) -> int:
        """See `Recent`."""
        _, block = value
        stored = block.head.size + len(block.columns.data)
        return _BLOCK_COST + stored + _RUN_COST * len(block.columns.counts)

    def decode(self, row: AnyRow, *, keep: bool = True) -> Block:
        """The block of a row. Of an `OpenRow` it is perhaps kept later; see `keep`.

        Args:
            keep: whether to keep it. Who reads more blocks than there is room for, one after the
                other, would else have each forgotten that comes next in the same order.

        Raises:
            HistoryDamaged: it isn't what was written.
        """
        is_whole = isinstance(row, Row)
        kept = self.find((row.head.first, is_whole))
        if kept is not None and kept[0] == _stored(row):
            return kept[1]
        block = Block(row, self.tag_lists)
        if is_whole and keep:
            self._keep(row, block)
        return block

    def keep(self, row: AnyRow, block: Block) -> None:
        """Keep the block of a row, if all of it has been read by now.

        A block that only a few messages were read of is likely to be read by nobody else, and
        reading it again costs little.
        """
        if isinstance(row, OpenRow) and block.data.is_whole:
            self._keep(row, block)

    def _keep(self, row: AnyRow, block: Block) -> None:
        key = row.head.first, isinstance(row, Row)
        kept = self.find(key)
        if kept is None or kept[1] is not block:
            self.remove(key)
            self.add(key, (_stored(row), block))


def _stored(row: AnyRow) -> _Stored:
    return row if isinstance(row, Row) else (row.head, row.index)
