"""Replay over a block store: pages of messages, and where the last n begin.

Both walk over the blocks that may hold a match and stop as soon as they have enough, so neither
memory nor the time to the first result depends on the length of the log.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from mist.attributes import Attributes
from mist.errors import HistoryDamaged
from mist.history.block import Block
from mist.history.block_cache import Blocks
from mist.history.block_store import BlockStore
from mist.history.channels import numbers_of
from mist.history.layout import MICROSECONDS, NOT_THERE
from mist.history.numbering import Numbers
from mist.history.part import ColumnPage, Part
from mist.history.record import Packed, Page, Stored
from mist.history.selection import Selection

__all__ = ["column_page", "find_last", "find_time", "read_page"]

# Read for one page at most, so that no search holds a reader for long, and the first matches are
# not delayed by a search for the next ones.
_MAX_BLOCKS: Final = 32
_MAX_BYTES: Final = 2 * 1024 * 1024
_MAX_HEADS: Final = 1_024


def read_page(
    store: BlockStore,
    blocks: Blocks,
    selection: Selection | None,
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
    *,
    numbered: bool = False,
    packed: bool = False,
) -> Page:
    """See `History.read`. A damaged block ends the page before it, or is raised."""
    stored: list[Stored] = []
    parts: list[Packed] = []

    def take(block: Block, part: Part, _: int, numbers: Sequence[Numbers] | None) -> None:
        if packed:
            parts.append(block.packed(part))
        else:
            stored.extend(block.stored(part, numbers))

    after, complete = _walk(
        store,
        blocks,
        selection,
        after,
        upto,
        limit,
        max_bytes,
        take,
        numbered=numbered,
        in_parts=not numbered,
    )
    return Page(stored, after, complete, parts)


def column_page(
    store: BlockStore,
    blocks: Blocks,
    selection: Selection | None,
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
) -> ColumnPage:
    """See `History.columns`. As `read_page`, with parts of blocks instead of messages."""
    parts: list[Part] = []
    sizes: list[int] = []

    def take(_: Block, part: Part, size: int, __: object) -> None:
        parts.append(part)
        sizes.append(size)

    after, complete = _walk(store, blocks, selection, after, upto, limit, max_bytes, take)
    return ColumnPage(parts, after, complete, sum(sizes))


def _walk(
    store: BlockStore,
    blocks: Blocks,
    selection: Selection | None,
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
    take: Callable[[Block, Part, int, Sequence[Numbers] | None], None],
    *,
    numbered: bool = False,
    in_parts: bool = False,
) -> tuple[int, bool]:
    """Walk up the blocks and pass on what is selected of each, as much as fits a page.

    Args:
        take: called with a block, the selected part, its bytes of wires, and the block's
            numbers.
        numbered: whether to read the numbers, which takes whole blocks.
        in_parts: whether blocks may be read in parts.

    Returns:
        Where to continue, and whether nothing is left.
    """
    read = 0
    taken = False
    find = store.search if in_parts else store.ascend
    try:
        with store.snapshot(), closing(find(after, upto, selection)) as rows:
            for looked_at, row in enumerate(rows, 1):
                block = blocks.decode(row)
                numbers = numbers_of(store, block) if numbered else None
                part = block.part(selection, after, upto, limit, max_bytes)
                blocks.keep(row, block)
                size = 0
                if part is not None:
                    size = part.size
                    take(block, part, size, numbers)
                    taken = True
                    limit -= part.count
                    max_bytes -= size
                    if limit <= 0 or max_bytes <= 0:
                        return part.last, False
                after = min(row.head.last, upto)
                read += block.size_read
                # A block that is unlikely to fit is not begun: the next page would unpack it
                # again.
                if looked_at == _MAX_BLOCKS or read >= _MAX_BYTES or max_bytes < size:
                    return after, False
    except HistoryDamaged:
        if not taken:
            raise
        return after, False  # what was taken first; the next page begins with the damage
    return upto, True


def find_last(
    store: BlockStore,
    blocks: Blocks,
    selection: Selection | None,
    n: int,
    upto: int,
    attributes: Attributes | None = None,
) -> tuple[int, int]:
    """Walk down from `upto` until `n` selected messages are found, or up to a bound.

    Args:
        attributes: of a reader, who may get them; None for one who gets all.

    Returns:
        How many are still to be found, and an id: with none left, the one after which exactly
        the `n` begin; else where to continue, 0 at the beginning of the log.
    """
    read = 0
    with store.snapshot(), closing(store.search(0, upto, selection, descending=True)) as rows:
        for looked_at, row in enumerate(rows, 1):
            block = blocks.decode(row)
            for first, count in reversed(block.count(selection, 0, upto, attributes)):
                if count >= n:
                    return 0, first + count - n - 1
                n -= count
            read += block.size_read
            if looked_at == _MAX_BLOCKS or read >= _MAX_BYTES:
                return n, row.head.first - 1
    return n, 0


def find_time(store: BlockStore, blocks: Blocks, moment: int, after: int) -> tuple[int, int | None]:
    """Walk up the blocks whose keys are above `after`, up to a bound.

    Args:
        moment: microseconds; times ascend with ids.

    Returns:
        The last id known to be older; 0 where none is. And where to continue; None where the
        result is final.
    """
    older = 0
    with store.snapshot():
        heads = store.heads(after, _MAX_HEADS)
        for head in heads:
            if head.newest < moment:
                older = head.last
                continue
            if head.oldest < moment:
                row = store.row(head.first)
                if row is None:  # and nothing changes in a snapshot
                    raise head.damaged(NOT_THERE)
                for stored in blocks.decode(row).select():
                    if round(stored.time * MICROSECONDS) < moment:
                        older = stored.firsts[-1] + stored.entries[-1][2] - 1
            return older, None
    return older, heads[-1].first if len(heads) == _MAX_HEADS else None
