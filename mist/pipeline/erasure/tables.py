"""Erasure in the tables of an archive.

Tasks find the affected segments and rewrite them, one segment for each task. Then one change of
the manifest replaces the old segments, and their files are deleted at once. There is no grace
period: the requester has a right to the deletion, and a reader whose file is missing can start
again. For the same reason all retired files are deleted now, and orphan files with matching rows.

Segments that another writer (the sealer, compaction) adds or replaces in the meantime are handled
in the next round, until a round finds nothing.
"""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import pyarrow as pa

from mist.archive import Archive, Manifest, Segment, Table
from mist.archive.schema import TABLES
from mist.archive.segments import iter_batches, write_segment
from mist.history.erasure import Erasure
from mist.pipeline.erasure.files import (
    Rewritten,
    count_matches,
    digest,
    matching_rows,
    predicate_columns,
)
from mist.pipeline.errors import JobFailed
from mist.pipeline.progress import Progress, silent
from mist.pipeline.unreadable import segment_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ErasedTable", "erase_table"]

ROUNDS: Final = 20  # each caused by another writer: so many in a row mean that it never stops
WRITER_TIMEOUT: Final = 30.0  # seconds for a writer to commit a file that it has finished
POLL: Final = 0.2  # seconds
BATCH: Final = 65_536  # rows
TEMPORARY: Final = re.compile(r"\.(\d+)-[0-9a-f]+\.parquet\.tmp")  # mist.archive.segments


@attrs.frozen
class ErasedTable:
    """The result for one table.

    Attributes:
        before, after: generations of the manifest.
        files: the rewritten segments.
        removed: SHA-256 of other deleted files, by file: retired ones in their grace period, and
            orphans.
        unfinished: files that another process is still writing, which can't be scanned.
    """

    table: str
    before: int
    after: int
    rows: int
    files: Sequence[Rewritten]
    removed: dict[str, str]
    unfinished: Sequence[str]


@attrs.frozen
class _Task:
    """The input of a task, picklable: no session, no open file."""

    archive: Archive
    name: str
    erasure: Erasure
    part: str

    @property
    def table(self) -> Table:
        return self.archive.table(self.name)

    def count(self, segment: Segment) -> int:
        with segment_errors(self.table, segment):
            return count_matches(self.table.path(segment), self.erasure)

    def rewrite(self, segment: Segment) -> tuple[Segment | None, Rewritten]:
        schema = TABLES[self.name]
        columns = predicate_columns(self.erasure, schema.names)
        erased = 0

        def kept() -> Iterator[pa.RecordBatch]:
            nonlocal erased
            for batch in iter_batches(self.table, segment, batch_size=BATCH):
                gone = matching_rows(self.erasure, batch.select(columns))
                erased += int(gone.sum())
                rest = batch.filter(pa.array(~gone))
                if len(rest):
                    yield rest

        batches = kept()
        first = next(batches, None)
        removed = digest(self.table.path(segment))
        if first is None:
            return None, Rewritten(segment.file, removed, erased, 0, "")
        written = write_segment(
            self.table,
            chain([first], batches),
            schema,
            segment.first,
            segment.last,
            day=date.fromisoformat(segment.file.partition("/")[0].removeprefix("date=")),
            # Each attempt writes to the same name, so a repeated task leaves one file.
            part=self.part,
        )
        name = digest(self.table.path(written))
        return written, Rewritten(segment.file, removed, erased, written.rows, name)


def erase_table(
    spark: "SparkSession",
    archive: Archive,
    name: str,
    erasure: Erasure,
    *,
    progress: Progress = silent,
    report: Callable[[ErasedTable], None] = lambda _: None,
) -> ErasedTable | None:
    """Erase from a table; None if it does not exist, or lacks the columns of the predicate.

    Args:
        report: takes the result so far, after each round.

    Raises:
        ArchiveError: it can't be read or written. Completed changes stay.
        JobFailed: other writers keep changing the table.
    """
    table = archive.table(name)
    if not table.exists or not _has_predicate(erasure, name):
        return None
    before = table.current().generation
    clean: set[str] = set()
    files: list[Rewritten] = []
    removed: dict[str, str] = {}
    looked = False

    def result(unfinished: Sequence[str] = ()) -> ErasedTable:
        after = table.current().generation
        rows = sum(each.erased for each in files)
        return ErasedTable(name, before, after, rows, list(files), dict(removed), unfinished)

    for _ in range(ROUNDS):
        segments = [each for each in table.current().segments if each.file not in clean]
        if looked and not segments:
            break
        task = _Task(archive, name, erasure, f"-e{secrets.token_hex(4)}")
        affected = _affected(spark, task, segments)
        clean.update(each.file for each in segments if each not in affected)
        if affected:
            rows = sum(each.rows for each in affected)
            progress(f"{name}: writing {len(affected)} segments anew, {rows:,} rows")
            done = _run_tasks(spark, affected, task.rewrite)
            files += _replace(table, list(zip(affected, done, strict=True)))
            report(result())
            clean.update(written.file for written, _ in done if written is not None)
        removed |= _delete_retired(table)
        removed |= _delete_orphans(table, erasure)  # it may have waited for a commit: look again
        looked = True
        report(result())
    else:
        raise JobFailed(f"{name}: others change the archive faster than it can be gone over")
    erased = result(_delete_unfinished(table))
    report(erased)
    return erased


def _has_predicate(erasure: Erasure, name: str) -> bool:
    try:
        return bool(predicate_columns(erasure, TABLES[name].names))
    except KeyError:
        return False


def _affected(spark: "SparkSession", task: _Task, segments: list[Segment]) -> list[Segment]:
    counts = _run_tasks(spark, segments, task.count)
    return [segment for segment, count in zip(segments, counts, strict=True) if count]


def _run_tasks(
    spark: "SparkSession", items: Sequence[Any], work: Callable[[Any], Any]
) -> list[Any]:
    # One task for each item: a segment is the unit of work.
    if not items:
        return []
    return spark.sparkContext.parallelize(items, len(items)).map(work).collect()


def _replace(
    table: Table, done: Sequence[tuple[Segment, tuple[Segment | None, Rewritten]]]
) -> list[Rewritten]:
    """Commit new segments whose old ones are still live; delete all other files at once."""
    won: list[tuple[Segment, Segment | None, Rewritten]] = []

    def edit(manifest: Manifest) -> Manifest:
        there = {segment.file for segment in manifest.segments}
        won[:] = [(old, new, what) for old, (new, what) in done if old.file in there]
        gone = {old.file for old, _, _ in won}
        return manifest.minus(gone).plus(*(new for _, new, _ in won if new is not None))

    table.change(edit)
    for _, (new, _) in done:
        if new is not None and all(new is not entered for _, entered, _ in won):
            table.path(new).unlink(missing_ok=True)
    for old, _, _ in won:
        table.path(old).unlink(missing_ok=True)
    return [what for _, _, what in won]


def _delete_retired(table: Table) -> dict[str, str]:
    """Delete all retired files, regardless of their grace period, and unlist them."""
    removed = {}
    retired = {each.file for each in table.current().retired}
    for file in sorted(retired):
        path = table.folder / file
        with suppress(FileNotFoundError):
            removed[file] = digest(path)
            path.unlink()
    table.change(
        lambda manifest: msgspec.structs.replace(
            manifest,
            retired=tuple(each for each in manifest.retired if each.file not in retired),
        )
    )
    return removed


def _delete_orphans(table: Table, erasure: Erasure) -> dict[str, str]:
    """Delete orphan files, which no manifest lists, with rows to erase.

    A recent file may be about to be committed, and gets time for that: the next round handles it.
    A job that replaces segments that were replaced here finds them gone, and gives up.
    """
    removed = {}
    deadline = time.monotonic() + WRITER_TIMEOUT
    while orphans := [path for path in _orphans(table) if _holds(path, erasure)]:
        if time.monotonic() < deadline and any(_is_young(path) for path in orphans):
            time.sleep(POLL)
            continue
        for path in orphans:
            with suppress(FileNotFoundError):
                removed[str(path.relative_to(table.folder))] = digest(path)
                path.unlink()
    return removed


def _orphans(table: Table) -> list[Path]:
    found = sorted(table.folder.glob("date=*/[!.]*.parquet"))
    manifest = (
        table.current()
    )  # read after the folder, so that a file committed in between is known
    known = {each.file for each in manifest.segments}
    return [path for path in found if str(path.relative_to(table.folder)) not in known]


def _holds(path: Path, erasure: Erasure) -> bool:
    try:
        return count_matches(path, erasure) > 0
    except FileNotFoundError:
        return False
    except (OSError, pa.ArrowException, KeyError):
        return True  # it can't be scanned, and nothing refers to it


def _is_young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < WRITER_TIMEOUT
    except FileNotFoundError:
        return False


def _delete_unfinished(table: Table) -> list[str]:
    """Delete unfinished files of dead processes; return those of running ones."""
    unfinished = []
    for path in sorted(table.folder.glob("date=*/.*.parquet.tmp")):
        found = TEMPORARY.fullmatch(path.name)
        if found and _is_alive(int(found[1])):
            unfinished.append(str(path.relative_to(table.folder)))
        else:
            path.unlink(missing_ok=True)
    return unfinished


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
