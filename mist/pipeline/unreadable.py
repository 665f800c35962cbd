"""Segments of an archive that are missing or damaged: which file it is, and what is wrong with it.

segment_errors      translates what reading a segment raises; for kernels, in tasks and here
check_segments      the same for segments that Spark is about to read itself
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from mist.archive import Segment, Table
from mist.pipeline.errors import SegmentUnreadable

__all__ = ["check_segments", "segment_errors"]


@contextmanager
def segment_errors(table: Table, segment: Segment) -> Iterator[None]:
    """Translate errors of reading a segment.

    Raises:
        SegmentUnreadable: it is missing or damaged.
    """
    try:
        yield
    except FileNotFoundError:
        raise SegmentUnreadable(
            f"{_named(table, segment)} is in the manifest and not there"
        ) from None
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SegmentUnreadable(
            f"{_named(table, segment)} can't be read: {reason.splitlines()[0]}"
        ) from error


def check_segments(table: Table, segments: Iterable[Segment]) -> None:
    """Check that segments are there, and that their footers can be read. O(segments).

    Raises:
        SegmentUnreadable: one is missing or damaged.
    """
    for segment in segments:
        with segment_errors(table, segment):
            pq.read_metadata(table.path(segment))


def _named(table: Table, segment: Segment) -> str:
    day = date.fromisoformat(segment.file.partition("/")[0].removeprefix("date="))
    return f"{table.path(segment)} (of {day:%Y-%m-%d}, {segment.rows:,} rows)"
