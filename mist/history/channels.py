"""Channel numbers over a block store: the numbers of a block, and finding a number.

See `numbering` for what is stored.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

from mist.errors import HistoryDamaged
from mist.history.block import Block
from mist.history.block_store import BlockStore
from mist.history.numbering import Numbers
from mist.history.record import Stored
from mist.history.selection import Selection
from mist.history.tag_lists import TagLists

__all__ = ["find_number", "numbers_of", "rewritable"]


def numbers_of(store: BlockStore, block: Block) -> list[Numbers] | None:
    """The numbers of each run of a block; None where none of its messages has a channel.

    Raises:
        HistoryDamaged: they are missing or damaged.
    """
    if not block.has_channels:
        return None
    packed = store.numbers(block.head.first)
    if packed is None:
        raise block.head.damaged("the numbers of its channels are missing")
    return block.numbers(packed)


def rewritable(store: BlockStore, block: Block) -> list[Stored]:
    """All of a block, to be rewritten in parts.

    Where the numbers are damaged it comes without them, so that the messages are not lost, too.
    """
    try:
        numbers = numbers_of(store, block)
    except HistoryDamaged:
        numbers = None
    return block.select(numbers=numbers)


def find_number(
    store: BlockStore, tag_lists: TagLists, channel: str, number: int, upto: int
) -> int:
    """The id after which exactly the messages of a channel with higher numbers come.

    The newest block is read first, since most searches end there. Otherwise a binary search over
    ids reads the next block below that holds the channel: O(log ids) blocks. Damaged blocks
    count as if they held nothing of it.

    Args:
        upto: higher ids are not searched.

    Returns:
        0 where all have higher numbers.
    """
    low, high, found = 0, upto, 0
    middle = high
    with store.snapshot():
        while low < high:
            block = _next_below(store, tag_lists, channel, middle, low)
            if block is None:
                low = middle
            else:
                head, runs = block
                if runs[0][2] > number:
                    high = head - 1
                else:
                    first, count, own = next(run for run in reversed(runs) if run[2] <= number)
                    found = first + min(number - own, count - 1)
                    last = runs[-1][0] + runs[-1][1] - 1
                    if found < last:
                        return found
                    low = max(last, middle)
            middle = (low + high + 1) // 2
    return found


_Runs = Sequence[tuple[int, int, int]]


def _next_below(
    store: BlockStore, tag_lists: TagLists, channel: str, upto: int, above: int
) -> tuple[int, _Runs] | None:
    """The next block at or below `upto` that holds messages of a channel above `above`.

    Returns:
        Its key; and first id, messages and first number of each run of the channel.
    """
    selection = Selection([frozenset([channel])])
    with closing(store.descend(upto, selection)) as rows:
        for row in rows:
            if row.head.last <= above:
                return None
            try:
                block = Block(row, tag_lists)
                runs = list(_runs(store, block, selection, channel))
            except HistoryDamaged as error:
                if not error.first:
                    raise
                continue
            if runs:
                return row.head.first, runs
    return None


def _runs(
    store: BlockStore, block: Block, selection: Selection, channel: str
) -> Iterator[tuple[int, int, int]]:
    part = block.part(selection)
    if part is None:
        return
    for stored in block.stored(part, numbers_of(store, block)):
        assert stored.numbers is not None
        for first, entry, numbers in zip(
            stored.firsts, stored.entries, stored.numbers, strict=True
        ):
            yield first, entry[2], numbers[channel]
