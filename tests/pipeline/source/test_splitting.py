from itertools import pairwise

import attrs
from hypothesis import given
from hypothesis import strategies as st

from mist.pipeline.source.splitting import LARGEST, SMALLEST, OffsetRange, split


@attrs.frozen
class Known:
    first: int
    last: int
    oldest: int = 0
    newest: int = 0


@given(
    after=st.integers(0, 10**7),
    length=st.integers(0, 10**7),
    partitions=st.integers(1, 40),
    asked=st.booleans(),
    lengths=st.lists(st.integers(1, 10**6), max_size=40),
)
def test_parts_are_the_whole_in_order_and_not_too_large(
    after: int, length: int, partitions: int, asked: bool, lengths: list[int]
) -> None:
    segments, first = [], 1
    for each in lengths:
        segments.append(Known(first, first + each - 1))
        first += each
    whole = OffsetRange("e", after, after + length)
    parts = split(whole, partitions, asked=asked, segments=segments)
    assert not parts or parts[0].after == whole.after
    assert all(a.upto == b.after for a, b in pairwise(parts))
    assert not parts or parts[-1].upto == whole.upto
    assert all(0 < len(part) <= LARGEST for part in parts)
    assert sum(map(len, parts)) == length
    if asked:
        assert len(parts) >= min(partitions, length)


def test_small_stretches_are_left_whole_unless_asked() -> None:
    whole = OffsetRange("e", 10, 10 + SMALLEST)
    assert split(whole, 8, asked=False) == [whole]
    assert len(split(whole, 8, asked=True)) == 8
    assert len(split(OffsetRange("e", 0, 3), 8, asked=True)) == 3


def test_cuts_are_laid_between_segments() -> None:
    segments = [Known(n * 50_000 + 1, n * 50_000 + 50_000) for n in range(8)]
    parts = split(OffsetRange("e", 0, 400_000), 3, asked=False, segments=segments)
    assert [part.upto for part in parts] == [100_000, 200_000, 300_000, 400_000]


def test_a_large_segment_is_shared_out() -> None:
    parts = split(OffsetRange("e", 0, 400_000), 2, asked=False, segments=[Known(1, 400_000)])
    assert [part.upto for part in parts] == [200_000, 400_000]
