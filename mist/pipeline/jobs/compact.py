"""Compaction: joins small segments into few large ones, one output segment for each task.

Tasks write files that no manifest lists. Then the driver commits all of them in one new generation,
and retires the segments that they replace. So a crash at any point leaves the current generation,
and orphan files, which are swept. A group of which a segment was replaced in the meantime, by an
erasure, retention or another compaction, is left as it is.

The table: `file string, rows int64, bytes int64, segments int64` (that were merged), by file.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from mist.archive.manifest import Manifest, Segment
from mist.archive.table import Archive, Table
from mist.pipeline.jobs.result import Result
from mist.pipeline.kernels.merging import Group, groups, merge
from mist.pipeline.progress import Progress, silent
from mist.pipeline.reading import each_in_a_task
from mist.pipeline.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BYTES", "ROWS", "run"]

ROWS: Final = 5_000_000  # of a segment, approximately an upper limit
BYTES: Final = 512 * 1024 * 1024  # likewise


def run(
    spark: "SparkSession",
    archive: Archive,
    selection: Selection | None = None,
    *,
    rows: int = ROWS,
    size: int = BYTES,
    progress: Progress = silent,
) -> Result:
    """Compact an archive.

    Args:
        selection: only segments entirely in its range are merged; tags are ignored.
        rows, size: target rows and bytes of a segment, approximately upper limits.

    Raises:
        ArchiveMissing: there is none.
        ArchiveError: the disk is full; the archive is as it was.
    """
    table = archive.messages
    before = table.current()
    wanted = (selection or Selection()).range
    todo = groups([each for each in before.segments if wanted.holds(each)], rows, size)
    progress(f"making {len(todo)} segments of {sum(map(len, todo))}")
    made = _merge(spark, archive.folder.absolute(), todo, f"-{before.generation}")
    done: list[tuple[Group, Segment]] = []

    def edit(manifest: Manifest) -> Manifest:
        done.clear()
        there = set(manifest.segments)
        for group, segment in zip(todo, made, strict=True):
            if there.issuperset(group):
                done.append((group, segment))
        replaced = {each.file for group, _ in done for each in group}
        return manifest.minus(replaced).plus(*(segment for _, segment in done))

    after = table.change(edit) if made else before
    kept = {segment.file for _, segment in done}
    _delete(table, [segment for segment in made if segment.file not in kept])
    return Result(
        pa.table(
            {
                "file": pa.array([segment.file for _, segment in done], pa.string()),
                "rows": pa.array([segment.rows for _, segment in done], pa.int64()),
                "bytes": pa.array([segment.bytes for _, segment in done], pa.int64()),
                "segments": pa.array([len(group) for group, _ in done], pa.int64()),
            }
        ),
        {
            "segments_before": len(before.segments),
            "segments_after": len(after.segments),
            "bytes_before": before.size,
            "bytes_after": after.size,
            "rows": sum(segment.rows for _, segment in done),
            "generation": after.generation,
            "left_as_they_are": len(made) - len(done),
        },
    )


def _merge(spark: "SparkSession", archive: Path, todo: list[Group], part: str) -> list[Segment]:
    """Merge each group into a segment; in the order of the groups."""
    if not todo:
        return []
    found = each_in_a_task(spark, len(todo), partial(_write, archive, todo, part))
    return [msgspec.json.decode(each, type=Segment) for each in found]


def _write(archive: Path, todo: list[Group], part: str, number: int) -> bytes:
    return msgspec.json.encode(merge(Archive(archive).messages, todo[number], part))


def _delete(table: Table, segments: list[Segment]) -> None:
    for segment in segments:
        with suppress(OSError):  # the next sweep deletes it
            table.path(segment).unlink()
