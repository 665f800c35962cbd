"""Compaction: small blocks are joined, so that a log written slowly is still read fast.

An append is a block, and a publisher that sends once a second makes blocks of one message. A
thousand of those cost a thousand rows to read, and as many bits in the directory. So
neighbours are joined in levels: many small ones into a larger one, and those into blocks of the
target size. Each message is rewritten two or three times in all.

Joining costs as much as the append did: the messages are read, encoded and written again. So
blocks are joined only where one replaces at least eight. A log under load, whose blocks are an
eighth of the target size or more from the start, is hardly touched. (With four, a third of what was
stored under load was written twice, since groups differ in size: a tenth of a node's CPU.)
"""

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import Block
from mist.history.block_store import BlockStore, Change
from mist.history.channels import numbers_of
from mist.history.continuity import is_sound
from mist.history.encoding import encode_joined, encode_stored
from mist.history.layout import Head, Row
from mist.history.record import Stored
from mist.history.tag_lists import TagLists

__all__ = ["TARGET", "Compaction", "plan_compaction"]

TARGET: Final = 64 * 1024  # bytes; larger blocks are not joined
_MAX_MESSAGES: Final = 10_000
_SMALL: Final = 2 * 1024  # bytes
_MANY: Final = 32  # small blocks that are joined even if they stay below the target
_FEWEST: Final = 8  # blocks that one has to replace
_SEEN: Final = 512  # blocks considered in a step


@attrs.frozen
class Compaction:
    """One block that replaces several.

    Attributes:
        before: the blocks that are replaced.
        change: the change of the block store.
    """

    before: Sequence[Head]
    change: Change


def plan_compaction(
    store: BlockStore, tag_lists: TagLists, settled: int, removed: int
) -> Compaction | None:
    """The next compaction above the id `settled`; None if none is due.

    Reads and encodes up to `TARGET` bytes.

    Args:
        removed: see `State.removed`.
    """
    runs = _neighbours(store.heads(settled, _SEEN), removed)
    heads = next(filter(None, map(_choose, runs)), ())
    if not heads:
        return None
    try:
        row = _join(store, [Block(row, tag_lists) for row in store.rows(heads)])
    except HistoryDamaged:  # `verify` reports it
        return None
    return Compaction(heads, Change([head.first for head in heads], [row]))


def _join(store: BlockStore, blocks: Sequence[Block]) -> Row:
    """Neighbouring blocks as one."""
    if not any(block.has_channels for block in blocks):
        return encode_joined([(block.head, block.columns) for block in blocks])
    stored = [each for block in blocks for each in block.select(numbers=numbers_of(store, block))]
    # Where one block has numbers, messages without a channel have empty ones.
    stored = [each if each.numbers is not None else _unnumbered(each) for each in stored]
    return encode_stored(stored, blocks[0].head.first, blocks[-1].head.last)


def _neighbours(heads: Sequence[Head], removed: int) -> Iterator[Sequence[Head]]:
    """Blocks between which nothing is missing: joined, they would hide what is."""
    start = 0
    for place, head in enumerate(heads):
        if place > start and head.first > heads[place - 1].last + 1:
            yield heads[start:place]
            start = place
        if not is_sound(head, removed):
            yield heads[start:place]
            start = place + 1
    yield heads[start:]


def _choose(heads: Sequence[Head]) -> Sequence[Head]:
    return _group(heads, _SMALL, _MANY) or _group(heads, TARGET, None)


def _group(heads: Sequence[Head], below: int, enough: int | None) -> Sequence[Head]:
    """The first neighbours of less than `below` bytes each that are worth joining.

    That is `enough` of them, or as many as fill a block, where these are `_FEWEST` or more.
    """
    start = size = messages = 0
    for place, head in enumerate(heads):
        if head.size >= below or head.messages >= _MAX_MESSAGES // 2:
            start, size, messages = place + 1, 0, 0
            continue
        size += head.size
        messages += head.messages
        if place + 1 - start == enough:
            return heads[start : place + 1]
        while size >= TARGET or messages >= _MAX_MESSAGES:
            if place + 1 - start >= _FEWEST:
                return heads[start : place + 1]
            size -= heads[start].size
            messages -= heads[start].messages
            start += 1
    return ()


def _unnumbered(stored: Stored) -> Stored:
    return attrs.evolve(stored, numbers=[{}] * len(stored.entries))
