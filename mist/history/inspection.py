"""Verification of a block store: whether its blocks are what was written."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history.block import Block
from mist.history.block_store import BlockStore
from mist.history.channels import numbers_of
from mist.history.layout import Head
from mist.history.record import Problem
from mist.history.tag_lists import TagLists

__all__ = ["inspect", "inspect_block"]

_STEP: Final = 16  # blocks


def inspect(store: BlockStore, tag_lists: TagLists, after: int) -> tuple[list[Problem], int | None]:
    """Verify the next few blocks, those whose keys are above `after`.

    Returns:
        Problems of them, and where to continue; None at the end.
    """
    try:
        heads = store.heads(after, _STEP)
    except HistoryUnavailable as error:
        return [Problem(after, 0, f"the blocks can't be listed from here on: {error}")], None
    problems = [problem for head in heads for problem in inspect_block(store, tag_lists, head)]
    for head, following in pairwise(heads):
        if following.first <= head.last:
            problems.append(Problem(following.first, head.last, "two blocks with the same ids"))
    return problems, heads[-1].first if len(heads) == _STEP else None


def inspect_block(store: BlockStore, tag_lists: TagLists, head: Head) -> Iterator[Problem]:
    """Verify one block: what is wrong with it, if anything."""
    try:
        row = store.row(head.first)
        if row is None:  # compacted or trimmed since it was listed
            return
        block = Block(row, tag_lists)
        reason = block.check()
        numbers_of(store, block)
    except HistoryDamaged as error:
        reason = error.reason
    except HistoryUnavailable as error:
        reason = str(error)
    if reason:
        yield Problem(head.first, head.last, reason)
