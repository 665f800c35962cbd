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

from collections.abc import Iterable, Iterator, Sequence
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
_JOINED: Final = 256  # blocks joined in a step: some ten milliseconds of a thread


@attrs.frozen
class Compaction:
    """Blocks that replace others, each of them several.

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

    Reads and encodes about `TARGET` bytes at most.

    Args:
        removed: see `State.removed`.
    """
    before: list[Head] = []
    put: list[Row] = []
    size = 0
    for heads in _groups(_neighbours(store.heads(settled, _SEEN), removed)):
        size += sum([head.size for head in heads])
        if before and (size > TARGET or len(before) + len(heads) > _JOINED):
            break
        try:
            put.append(_join(store, [Block(row, tag_lists) for row in store.rows(heads)]))
        except HistoryDamaged:  # `verify` reports it
            break
        before += heads
    if not before:
        return None
    return Compaction(before, Change([head.first for head in before], put))


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


def _groups(runs: Iterable[Sequence[Head]]) -> Iterator[Sequence[Head]]:
    """Neighbours that are worth joining: small ones first, and others where there are none."""
    for heads in runs:
        groups = _groups_of(heads, _SMALL, _MANY)
        first = next(groups, None)
        if first is None:
            yield from _groups_of(heads, TARGET, None)
        else:
            yield first
            yield from groups


def _groups_of(heads: Sequence[Head], below: int, enough: int | None) -> Iterator[Sequence[Head]]:
    """Neighbours of less than `below` bytes each that are worth joining.

    That is `enough` of them, or as many as fill a block, where these are `_FEWEST` or more.
    """
    start = size = messages = 0
    for place, head in enumerate(heads):
        if head.size >= below or head.messages >= _MAX_MESSAGES // 2:
            start, size, messages = place + 1, 0, 0
            continue
        size += head.size
        messages += head.messages
        is_full = size >= TARGET or messages >= _MAX_MESSAGES
        if place + 1 - start == enough or (is_full and place + 1 - start >= _FEWEST):
            yield heads[start : place + 1]
            start, size, messages = place + 1, 0, 0
        while size >= TARGET or messages >= _MAX_MESSAGES:
            size -= heads[start].size
            messages -= heads[start].messages
            start += 1


def _unnumbered(stored: Stored) -> Stored:
    return attrs.evolve(stored, numbers=[{}] * len(stored.entries))
