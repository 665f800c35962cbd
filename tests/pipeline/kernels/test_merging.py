"""Compaction: which segments become one, and that nothing of them is lost."""

from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.archive import Segment
from mist.archive.segments import read_segment
from mist.pipeline.errors import BadInput
from mist.pipeline.kernels.merging import groups, merge
from tests.pipeline.archives import Told, make_archive


def segments_of(sizes: list[int], day: int = 21) -> list[Segment]:
    firsts = [1, *(1 + total for total in accumulate(sizes))]
    return [
        Segment(f"date=2026-11-{day}/{first}", first, first + rows - 1, rows, rows * 80, 0, 0)
        for first, rows in zip(firsts, sizes, strict=False)
    ]


@given(sizes=st.lists(st.integers(1, 150), max_size=80))
def test_groups_are_neighbours_and_no_piece_is_much_too_large(sizes: list[int]) -> None:
    segments = segments_of(sizes)
    found = groups(segments, 100, 1 << 40)
    numbers = [[segments.index(each) for each in group] for group in found]
    for group in numbers:
        assert len(group) > 1
        assert all(after == before + 1 for before, after in pairwise(group))
    assert len({n for group in numbers for n in group}) == sum(map(len, numbers))
    for group in found:
        assert all(each.rows < 100 for each in group)  # what is large enough stays
        assert sum(each.rows for each in group) < 100 + 2 * max(each.rows for each in group)


@pytest.mark.parametrize("count", [1, 3, 4, 7, 125])
def test_equal_segments_make_just_as_many_pieces_as_asked_for(count: int) -> None:
    found = groups(segments_of([200] * 125 * count), 25_000, 1 << 40)
    assert [len(group) for group in found] == [125] * count


def test_bytes_bound_a_piece_as_rows_do() -> None:
    found = groups(segments_of([10] * 40), 10**9, 10 * 800)
    assert [len(group) for group in found] == [10, 10, 10, 10]


def test_days_stay_apart() -> None:
    found = groups([*segments_of([5, 5]), *segments_of([5, 5], day=22)], 100, 1 << 40)
    assert [len(group) for group in found] == [2, 2]


def test_a_merged_segment_has_all_rows_in_order_and_whole_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.pipeline.kernels.merging.ROW_GROUP", 25)
    table = make_archive(tmp_path, [Told(f"a,t{n % 3}") for n in range(97)], segment=10).messages
    segments = table.current().segments
    before = [row for each in segments for row in read_segment(table, each).to_pylist()]
    made = merge(table, segments, "-7")
    assert read_segment(table, made).to_pylist() == before
    assert (made.first, made.last, made.rows) == (1, 97, 97)
    metadata = pq.read_metadata(table.path(made))
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert sizes == [25, 25, 25, 22]
    assert merge(table, segments, "-7") == made  # a task that is tried again


def test_a_segment_with_other_rows_than_were_sealed_is_refused(tmp_path: Path) -> None:
    table = make_archive(tmp_path, [Told("a")] * 20, segment=10).messages
    one, other = table.current().segments
    table.path(one).write_bytes(table.path(other).read_bytes()[:-20])
    with pytest.raises(BadInput, match=one.file):
        merge(table, (one, other), "-1")
    assert not list(tmp_path.glob("date=*/.*"))  # nothing is left of the attempt
