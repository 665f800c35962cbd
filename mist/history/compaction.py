"""Joining small blocks, so that a log that came in slowly is read as fast as one that didn't.

An append is a block, and a publisher that sends once a second makes blocks of one message. A
thousand of those cost a thousand rows to read, and as many bits in the directory. So
neighbours are joined: many small ones into one that is not, and those into blocks of the
target's size. Each message is written anew two or three times in all, by logarithm of how small
it came, and a log under load, whose blocks come large, isn't touched.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import Block, TagLists
from mist.history.block_store import BlockStore, Change
from mist.history.channels import numbers_of
from mist.history.encoding import encode
from mist.history.layout import Head
from mist.history.record import Stored

__all__ = ["TARGET", "Joining", "plan_joining"]

TARGET: Final = 64 * 1024  # bytes of a block that is left alone
_MAX_MESSAGES: Final = 10_000
_SMALL: Final = 2 * 1024  # bytes
_MANY: Final = 32  # small blocks that are joined, however little they come to
_SEEN: Final = 512  # blocks looked at


@attrs.frozen
class Joining:
    """One block in the place of several.

    Attributes:
        before: the blocks that go.
        change: what to do.
    """

    before: Sequence[Head]
    change: Change


def plan_joining(store: BlockStore, tag_lists: TagLists, settled: int) -> Joining | None:
    """The next blocks to join above the id `settled`; None if there are none.

    Reads and encodes up to `TARGET` bytes.
    """
    heads = _choose(store.heads(settled, _SEEN))
    if not heads:
        return None
    try:
        blocks = [Block(row, tag_lists) for row in store.rows(heads)]
        stored = [
            each for block in blocks for each in block.select(numbers=numbers_of(store, block))
        ]
    except HistoryDamaged:  # `verify` tells
        return None
    if any(block.has_channels for block in blocks):
        # One that has none says so for each message, where another has some.
        stored = [each if each.numbers is not None else _unnumbered(each) for each in stored]
    row = encode(stored, first=heads[0].first, last=heads[-1].last)
    return Joining(heads, Change([head.first for head in heads], [row]))


def _choose(heads: Sequence[Head]) -> Sequence[Head]:
    return _group(heads, _SMALL, _MANY) or _group(heads, TARGET, None)


def _group(heads: Sequence[Head], below: int, enough: int | None) -> Sequence[Head]:
    """The first neighbours of less than `below` bytes each that are worth joining.

    Worth it are `enough` of them, or as many as fill a block.
    """
    start = size = messages = 0
    for place, head in enumerate(heads):
        if head.size >= below or head.messages >= _MAX_MESSAGES // 2:
            start, size, messages = place + 1, 0, 0
            continue
        size += head.size
        messages += head.messages
        is_full = size >= TARGET or messages >= _MAX_MESSAGES
        if is_full or place + 1 - start == enough:
            return heads[start : place + 1]
    return ()


def _unnumbered(stored: Stored) -> Stored:
    return attrs.evolve(stored, numbers=[{}] * len(stored.entries))
