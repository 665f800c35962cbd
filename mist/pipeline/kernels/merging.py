"""Merging: one segment from many, for compaction.

Adjacent segments of a day are merged up to the target size. Segments that are large enough stay, so
compaction is idempotent.
"""

from collections.abc import Iterable, Iterator
from datetime import date
from itertools import groupby
from math import ceil
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from mist.archive.manifest import Segment
from mist.archive.schema import MESSAGES, ROW_GROUP
from mist.archive.segments import write_segment
from mist.archive.table import Table
from mist.pipeline.errors import BadInput
from mist.pipeline.unreadable import segment_errors

__all__ = ["groups", "merge"]

Group = tuple[Segment, ...]

_ROUNDING: Final = 1e-6  # of a segment: 500 times a 125th is a bit more than 4


def groups(segments: Iterable[Segment], rows: int, size: int) -> list[Group]:
    """Plan the merges: groups of two or more adjacent segments of one day.

    A day becomes as few segments as the target allows, of similar size. O(segments).

    Args:
        segments: of a table, in its order.
        rows: target rows of a segment, approximately an upper limit.
        size: target bytes of a segment, likewise.
    """
    found = []
    for _, same_day in groupby(segments, lambda each: each.file.partition("/")[0]):
        found += [group for group in _pieces(list(same_day), rows, size) if len(group) > 1]
    return found


def _pieces(segments: list[Segment], rows: int, size: int) -> Iterator[Group]:
    weights = [max(each.rows / rows, each.bytes / size) for each in segments]
    pieces = max(1, ceil(sum(weights) - _ROUNDING))
    share = sum(weights) / pieces
    before = 0.0
    group: list[Segment] = []
    number = 0
    for segment, weight in zip(segments, weights, strict=True):
        # A segment belongs to the piece that its middle lies in.
        mine = int((before + weight / 2) / share) if share else 0
        if group and (mine != number or weight >= 1):
            yield tuple(group)
            group = []
        number = mine
        group.append(segment)
        if weight >= 1:  # large enough by itself
            yield tuple(group)
            group = []
        before += weight
    if group:
        yield tuple(group)


def merge(table: Table, group: Group, part: str) -> Segment:
    """Write the rows of some segments as one, in the order of their ids.

    The file is durable, but not in the manifest. Memory: a row group and one segment.

    Args:
        part: see `SegmentWriter`. The same part for the same group gives the same file, so a
            retried task leaves one.

    Raises:
        SegmentUnreadable: a segment can't be read.
        BadInput: its row count differs from the manifest.
        ArchiveError: the disk is full.
    """
    return write_segment(
        table,
        _row_groups(_rows(table, group)),
        MESSAGES,
        group[0].first,
        group[-1].last,
        day=_day(group[0]),
        part=part,
    )


def _day(segment: Segment) -> date:
    return date.fromisoformat(segment.file.partition("/")[0].removeprefix("date="))


def _rows(table: Table, group: Group) -> Iterator[pa.Table]:
    for segment in group:
        path = table.path(segment)
        with (
            segment_errors(table, segment),
            pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file,
        ):
            # Each core runs a task, as everywhere in the pipeline, and a mapped file needs no
            # prefetching threads.
            rows = file.read(use_threads=False)
        if rows.num_rows != segment.rows:
            raise BadInput(f"{path}: {rows.num_rows} rows, where {segment.rows} were sealed")
        # Sealed segments have this schema; the comparison takes a tenth of the cast.
        yield rows if rows.schema == MESSAGES else rows.select(MESSAGES.names).cast(MESSAGES)


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Split the same rows at row groups."""
    waiting: list[pa.Table] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        if count >= ROW_GROUP:
            joined = pa.concat_tables(waiting)
            whole = count // ROW_GROUP * ROW_GROUP
            for start in range(0, whole, ROW_GROUP):
                yield joined.slice(start, ROW_GROUP)
            waiting, count = [joined.slice(whole)], count - whole
    if count:
        yield pa.concat_tables(waiting)
