"""Blocks that were decoded last are not decoded again; what replaces one is."""

import gc
import tracemalloc

import attrs
import pytest

from mist.errors import HistoryDamaged
from mist.history import Publication
from mist.history.block_cache import Blocks
from mist.history.layout import Row
from tests.history.messages import block_of
from tests.history.test_pieces import opened


def row_of(count: int, first: int = 1, size: int = 1) -> Row:
    runs = [(b"a", b"publish a %b\n" % (b"x" * size), 1)] * count
    return block_of([Publication.of_runs(runs, 0.0)], first)


def row_of_many_lists(size: int) -> Row:
    runs = [(b"a%d" % n, b"publish a%d %b\n" % (n, b"x" * size), 1) for n in range(100)]
    return block_of([Publication.of_runs(runs, 0.0)])


def test_a_block_is_decoded_once_for_all_who_read_it() -> None:
    blocks, row = Blocks(), row_of(3)
    found = blocks.decode(row)
    assert blocks.decode(attrs.evolve(row)) is found
    assert found.head.messages == 3


def test_a_block_may_be_decoded_without_being_kept() -> None:
    blocks, row = Blocks(), row_of(3)
    assert blocks.decode(row, keep=False) is not blocks.decode(row, keep=False)
    kept = blocks.decode(row)
    assert blocks.decode(row, keep=False) is kept


def test_what_replaces_a_block_is_decoded_anew() -> None:
    blocks = Blocks()
    blocks.decode(row_of(3))
    assert blocks.decode(row_of(2)).head.messages == 2
    assert blocks.decode(row_of(3)).head.messages == 3


def test_damage_is_found_in_a_block_that_is_kept() -> None:
    blocks, row = Blocks(), row_of(3)
    blocks.decode(row)
    with pytest.raises(HistoryDamaged):
        blocks.decode(attrs.evolve(row, body=bytes([row.body[0] ^ 1]) + row.body[1:]))
    assert blocks.decode(row).head.messages == 3


def test_as_many_bytes_are_kept_as_was_said() -> None:
    blocks = Blocks(max_bytes=100_000)
    rows = [row_of(1, first, 9_000) for first in range(1, 100)]
    found = [blocks.decode(row) for row in rows]
    kept = [n for n, row in enumerate(rows) if blocks.decode(row) is found[n]]
    assert len(kept) < 15
    small = Blocks(max_bytes=1)
    assert small.decode(rows[0]) is not small.decode(rows[0])


@pytest.mark.parametrize("messages", [1, 3, 30])
def test_no_more_memory_is_taken_than_was_said(messages: int) -> None:
    blocks = Blocks(max_bytes=200_000)
    gc.collect()
    tracemalloc.start()
    try:
        for first in range(1, 1_500, messages):
            blocks.decode(row_of(messages, first, 20))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 100_000 < taken < 220_000


def test_what_was_used_last_stays() -> None:
    blocks = Blocks(max_bytes=100_000)
    used = blocks.decode(row_of(1))
    for first in range(2, 1_000):
        blocks.decode(row_of(1, first, 1_000))
        assert blocks.decode(row_of(1)) is used


def test_a_block_that_is_read_in_parts_is_kept_once_all_of_it_was_read() -> None:
    blocks, row = Blocks(), row_of_many_lists(900)
    for _ in range(2):
        found = blocks.decode(opened(row))
        found.select(upto=1)
        blocks.keep(opened(row), found)
        assert not found.data.is_whole
        assert blocks.decode(opened(row)) is not found
    found.select()
    blocks.keep(opened(row), found)
    assert blocks.decode(opened(row)) is found
    other = row_of_many_lists(901)
    assert blocks.decode(opened(other)) is not found
    assert blocks.decode(row) is not found  # this one has the hashes, too
    assert blocks.decode(opened(row)) is found
