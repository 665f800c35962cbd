"""Erasure in the tables of an archive.

The segments concerned are found and written anew by tasks, one a segment; then one change of
the manifest puts the new ones in the place of the old, and the old ones are deleted at once.
There is no grace: someone has a right that these bytes are gone, and a reader that finds its
file missing can begin again. For the same reason all that was retired before goes now, and what
writers left behind that holds such messages.

A segment that another writer (the sealer, compaction) enters or replaces meanwhile is looked at
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
from mist.history.erasing import Erasure
from mist.pipeline.erasure.files import Rewritten, count_doomed, digest
from mist.pipeline.erasure.rows import columns_for, doomed
from mist.pipeline.errors import JobFailed
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TableErased", "erase_table"]

ROUNDS: Final = 20  # each caused by another writer; that many in a row are no accident
WRITER_TIMEOUT: Final = 30.0  # seconds for a writer to enter a file that it has finished
POLL: Final = 0.2  # seconds
BATCH: Final = 65_536  # rows
TEMPORARY: Final = re.compile(r"\.(\d+)-[0-9a-f]+\.parquet\.tmp")  # mist.archive.segments


@attrs.frozen
class TableErased:
    """What became of a table.

    Attributes:
        before, after: generations of the manifest.
        files: what was written anew.
        removed: SHA-256 of other files that went, by file: replaced ones that waited for
            their grace, and what writers had left behind.
        unfinished: files that another process is still writing. They can't be looked into.
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
    """What a task has to know, pickled: no session, no open file."""

    archive: Archive
    name: str
    erasure: Erasure
    part: str

    @property
    def table(self) -> Table:
        return self.archive.table(self.name)

    def count(self, segment: Segment) -> int:
        return count_doomed(self.table.path(segment), self.erasure)

    def rewrite(self, segment: Segment) -> tuple[Segment | None, Rewritten]:
        schema = TABLES[self.name]
        columns = columns_for(self.erasure, schema.names)
        erased = 0

        def kept() -> Iterator[pa.RecordBatch]:
            nonlocal erased
            for batch in iter_batches(self.table, segment, batch_size=BATCH):
                gone = doomed(self.erasure, batch.select(columns))
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
            # The same name from each attempt, so that a task done twice leaves one file.
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
) -> TableErased | None:
    """Take rows out of a table; None where there is none, or nothing in it could tell.

    Raises:
        ArchiveError: it can't be read or written. What was done stays done.
        JobFailed: other writers never rest.
    """
    table = archive.table(name)
    if not table.exists or not _tells(erasure, name):
        return None
    before = table.current().generation
    clean: set[str] = set()
    files: list[Rewritten] = []
    removed: dict[str, str] = {}
    looked = False
    for _ in range(ROUNDS):
        segments = [each for each in table.current().segments if each.file not in clean]
        if looked and not segments:
            break
        task = _Task(archive, name, erasure, f"-e{secrets.token_hex(4)}")
        concerned = _concerned(spark, task, segments)
        clean.update(each.file for each in segments if each not in concerned)
        if concerned:
            rows = sum(each.rows for each in concerned)
            progress(f"{name}: writing {len(concerned)} segments anew, {rows:,} rows")
            done = _spread(spark, concerned, task.rewrite)
            files += _replace(table, list(zip(concerned, done, strict=True)))
            clean.update(written.file for written, _ in done if written is not None)
        removed |= _delete_retired(table)
        removed |= _delete_strays(table, erasure)  # or somebody has entered one: look again
        looked = True
    else:
        raise JobFailed(f"{name}: others change the archive faster than it can be gone over")
    return TableErased(
        name,
        before,
        table.current().generation,
        sum(each.erased for each in files),
        files,
        removed,
        _delete_unfinished(table),
    )


def _tells(erasure: Erasure, name: str) -> bool:
    try:
        return bool(columns_for(erasure, TABLES[name].names))
    except KeyError:
        return False


def _concerned(spark: "SparkSession", task: _Task, segments: list[Segment]) -> list[Segment]:
    counts = _spread(spark, segments, task.count)
    return [segment for segment, count in zip(segments, counts, strict=True) if count]


def _spread(spark: "SparkSession", items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    # A task an item: a segment is the unit of work.
    if not items:
        return []
    return spark.sparkContext.parallelize(items, len(items)).map(work).collect()


def _replace(
    table: Table, done: Sequence[tuple[Segment, tuple[Segment | None, Rewritten]]]
) -> list[Rewritten]:
    """Enter what was written, where what it replaces is still there; delete the losers at once."""
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
    """Delete all replaced files, whatever their grace, and strike them from the manifest."""
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


def _delete_strays(table: Table, erasure: Erasure) -> dict[str, str]:
    """Delete files that no manifest lists and that hold what is to go.

    One that was finished just now may be about to be entered: it is given time for that, and
    if it is, that is another round's. A job that replaces segments that were replaced
    here finds them gone, and gives up.
    """
    removed = {}
    deadline = time.monotonic() + WRITER_TIMEOUT
    while strays := [path for path in _strays(table) if _holds(path, erasure)]:
        if time.monotonic() < deadline and any(_is_young(path) for path in strays):
            time.sleep(POLL)
            continue
        for path in strays:
            with suppress(FileNotFoundError):
                removed[str(path.relative_to(table.folder))] = digest(path)
                path.unlink()
    return removed


def _strays(table: Table) -> list[Path]:
    found = sorted(table.folder.glob("date=*/[!.]*.parquet"))
    manifest = table.current()  # after the look at the folder: what is entered between is known
    known = {each.file for each in manifest.segments}
    return [path for path in found if str(path.relative_to(table.folder)) not in known]


def _holds(path: Path, erasure: Erasure) -> bool:
    try:
        return count_doomed(path, erasure) > 0
    except FileNotFoundError:
        return False
    except (OSError, pa.ArrowException, KeyError):
        return True  # nobody can tell, and nobody misses it


def _is_young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < WRITER_TIMEOUT
    except FileNotFoundError:
        return False


def _delete_unfinished(table: Table) -> list[str]:
    """Delete what dead processes were writing; tell of what living ones are."""
    unfinished = []
    for path in sorted(table.folder.glob("date=*/.*.parquet.tmp")):
        found = TEMPORARY.fullmatch(path.name)
        if found and _lives(int(found[1])):
            unfinished.append(str(path.relative_to(table.folder)))
        else:
            path.unlink(missing_ok=True)
    return unfinished


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
