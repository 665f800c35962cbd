"""The directory of a segment: which of its blocks hold a tag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.history.columns import INDEXES, fixed
from mist.history.postings import part_of
from mist.history.sqlite.directory import WIDTH, build, hashes_of, mask_of, set_bits

# Few numbers, and such whose bytes also stand across the border of two others.
HASHES = st.sampled_from(
    [0, 1, 0xFF, 0x0101_0101, 0x0100_0000, 0x0001_0000, 1 << 26, (1 << 26) - 1, 0xFFFF_FFFF]
) | st.integers(0, (1 << 32) - 1)
BLOCKS = st.lists(st.sets(HASHES, max_size=12), min_size=1, max_size=WIDTH)


@given(BLOCKS, st.lists(HASHES, max_size=5))
def test_a_part_tells_which_blocks_hold_a_hash(blocks: list[set[int]], others: list[int]) -> None:
    packed = [fixed(INDEXES, sorted(each, key=part_of)) for each in blocks]
    parts = {part: (hashes, ends) for part, hashes, ends in build(packed)}
    for wanted in {*set().union(*blocks), *others}:
        mask = mask_of(wanted, *parts[part_of(wanted)]) if part_of(wanted) in parts else 0
        assert list(set_bits(mask)) == [n for n, each in enumerate(blocks) if wanted in each]
    assert hashes_of(parts.values())[: len(blocks)] == packed


def test_a_part_that_is_damaged_is_no_part() -> None:
    hashes = fixed(INDEXES, [1, 2])
    for ends in (fixed(INDEXES, [1]), b"", b"x"):
        with pytest.raises(ValueError):  # of either of two modules
            mask_of(2, hashes, ends)
