"""Retention: removes days older than a limit, by a change of the manifest alone.

No data is read or rewritten, so it needs no Spark. A partition is dropped when its whole day (UTC)
is old enough, so up to a day more is kept than requested, and never less. Files are deleted after
the grace period of the archive, as after compaction, so running readers can finish. (Erasure
doesn't wait: see `mist.pipeline.jobs.erase`.)
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import attrs

from mist.archive import Archive, Manifest, Segment
from mist.archive.schema import TABLES
from mist.pipeline.errors import BadInput
from mist.pipeline.progress import Progress, silent

__all__ = ["Result", "Retained", "run"]


@attrs.frozen
class Retained:
    """The result for one table."""

    table: str
    dropped_days: int
    dropped_rows: int
    dropped_bytes: int
    kept_rows: int
    kept_bytes: int


@attrs.frozen
class Result:
    """The result of retention.

    Attributes:
        before: the first day that was kept, `2026-11-21`.
        deleted: number of files deleted from disk now, including those dropped earlier.
    """

    before: str
    tables: Sequence[Retained]
    deleted: int

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "before": self.before,
            "tables": [attrs.asdict(table) for table in self.tables],
            "deleted_files": self.deleted,
        }


def run(
    archive: Archive,
    days: int,
    *,
    now: float,
    tables: Sequence[str] = tuple(TABLES),
    grace: float = 3600.0,
    progress: Progress = silent,
) -> Result:
    """Drop partitions that ended more than `days` days ago.

    Args:
        now: Unix seconds.
        tables: of the archive; missing ones are skipped.
        grace: seconds for which files stay after they were dropped.

    Raises:
        BadInput: less than one day, or an unknown table.
        ArchiveError: it can't be changed.
    """
    if days < 1:
        raise BadInput("--days: at least 1; the day that goes on can't be dropped")
    if unknown := set(tables) - set(TABLES):
        raise BadInput(f"no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    today = datetime.fromtimestamp(now, UTC).toordinal()
    first = date.fromordinal(max(today - days, 1)).isoformat()
    done = []
    deleted = 0
    for name in tables:
        table = archive.table(name)
        if not table.exists:
            continue
        dropped: list[Segment] = []

        def without_old(manifest: Manifest, dropped: list[Segment] = dropped) -> Manifest:
            dropped[:] = [each for each in manifest.segments if _day(each) < first]
            return manifest.minus({each.file for each in dropped}, now) if dropped else manifest

        kept = table.change(without_old)
        deleted += len(table.sweep(now, grace))
        rows = sum(segment.rows for segment in dropped)
        days_dropped = len({_day(segment) for segment in dropped})
        size = sum(segment.bytes for segment in dropped)
        done.append(Retained(name, days_dropped, rows, size, kept.rows, kept.size))
        progress(f"{name}: {rows:,} rows of {days_dropped} days dropped, {kept.rows:,} kept")
    return Result(first, done, deleted)


def _day(segment: Segment) -> str:
    return segment.file.partition("/")[0].removeprefix("date=")
