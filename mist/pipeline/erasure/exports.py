"""Erasure in exports and lakes.

An export has no manifest for an atomic change, so each file is replaced by a rename: a reader that
has the old file open keeps it, a later one gets the new file. A lake has a manifest, and is erased
from like the archive.

A streaming query may be writing to the lake. Its tasks may hold messages that they read before the
server's log was erased from. So the tasks are fenced off first (`Lake.fence`): their output can no
longer be committed, and the query reads the batch again, from the log without the erased messages.
The query deletes the files of fenced tasks, which is waited for; without a query they are deleted
here.
"""

import glob
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from mist.archive import Archive
from mist.history.erasure import Erasure
from mist.pipeline.erasure.files import (
    Rewritten,
    count_matches,
    digest,
    put_in_place,
    rewrite_parquet,
)
from mist.pipeline.erasure.tables import erase_table
from mist.pipeline.errors import JobFailed
from mist.pipeline.exports import Export
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ErasedExport", "delete_uncommitted", "erase_export"]

TIMEOUT: Final = 60.0  # seconds for tasks to end and their files to be deleted
POLL: Final = 0.2  # seconds
RANDOM: Final = "[0-9a-f]" * 8  # at the end of the name of a half-made export, and nothing else


@attrs.frozen
class ErasedExport:
    """The result for one export.

    Attributes:
        state: `done`; `gone`, if its path no longer exists; or `failed`, which requires
            manual action.
        reason: the error, if it failed.
    """

    path: str
    format: str
    state: str
    rows: int = 0
    files: Sequence[Rewritten] = ()
    reason: str = ""


def erase_export(
    spark: "SparkSession", export: Export, erasure: Erasure, *, progress: Progress = silent
) -> ErasedExport:
    """Erase from an export. Its errors are in the result, not raised: other exports follow."""
    folder = Path(export.path)
    for half_made in folder.parent.glob(f".{glob.escape(folder.name)}.{RANDOM}"):
        shutil.rmtree(half_made, ignore_errors=True)  # the export that writes it can be repeated
    if not folder.exists():
        return ErasedExport(export.path, export.format, "gone")
    progress(f"export {folder}")
    try:
        files = _ERASERS[export.format](spark, folder, erasure)
    except Exception as error:  # reported in the receipt, which is incomplete then
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return ErasedExport(export.path, export.format, "failed", reason=reason)
    rows = sum(each.erased for each in files)
    return ErasedExport(export.path, export.format, "done", rows, files)


def _erase_parquet(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    paths = sorted(_files(folder, ".parquet"))
    return [what for _, what in _rewrite_all(spark, folder, paths, erasure)]


def _rewrite_all(
    spark: "SparkSession", folder: Path, paths: Sequence[Path], erasure: Erasure
) -> list[tuple[str, Rewritten]]:
    """Rewrite those Parquet files that have rows to erase; the results by path in the folder."""

    def work(path: Path) -> tuple[str, Rewritten] | None:
        if not count_matches(path, erasure):
            return None
        name = str(path.relative_to(folder))
        return name, attrs.evolve(rewrite_parquet(path, erasure), file=name)

    return [each for each in _run_tasks(spark, paths, work) if each is not None]


def _erase_jsonl(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    def work(path: Path) -> Rewritten | None:
        done = _rewrite_lines(path, erasure)
        return done and attrs.evolve(done, file=str(path.relative_to(folder)))

    done = _run_tasks(spark, sorted(_files(folder, ".jsonl", ".json", ".txt")), work)
    return [each for each in done if each is not None]


def _rewrite_lines(path: Path, erasure: Erasure) -> Rewritten | None:
    """Rewrite a file of JSON lines; None if no line is to be erased."""
    temporary = path.with_name(f".{path.name}.tmp")
    erased = kept = 0
    try:
        with open(path, "rb") as old, open(temporary, "wb") as new:
            for line in old:
                if _matches(erasure, msgspec.json.decode(line)):
                    erased += 1
                else:
                    kept += 1
                    new.write(line)
        if not erased:
            return None
        return put_in_place(path, temporary, digest(path), erased, kept)
    finally:
        temporary.unlink(missing_ok=True)


def _matches(erasure: Erasure, message: dict[str, Any]) -> bool:
    if erasure.tags is not None and not erasure.tags <= set(message["tags"]):
        return False
    return erasure.publisher in (None, message.get("publisher", ""))


def _erase_delta(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    """Erase from a Delta table: its files are rewritten, and its older versions deleted.

    Older versions would still contain the erased messages, in their files and in the statistics
    of their log. So the log is replaced by a new one with the current files.
    """
    from mist.pipeline.delta import begin_log, live_files

    live = live_files(folder)
    for path in _files(folder, ".parquet"):
        if path not in live:
            path.unlink()  # a file of an older version only
    done = _rewrite_all(spark, folder, sorted(live), erasure)
    if done:
        begin_log(folder)
    return [what for _, what in done]


def _erase_lake(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    busy = delete_uncommitted(folder)
    done = erase_table(spark, Archive(folder), "messages", erasure)
    assert done is not None  # messages always have the columns of a predicate
    if busy := [*busy, *done.unfinished]:
        raise JobFailed(f"{busy[0]} is still being written; erase once more when it is done")
    return list(done.files)


def delete_uncommitted(folder: Path, *, timeout: float = TIMEOUT) -> list[str]:
    """Fence off running tasks and delete their files. No effect if the folder is no lake.

    Call it after the erasure from the server's log, and before that from the table.

    Args:
        timeout: seconds to wait for running tasks.

    Returns:
        Folders still in use by tasks after the timeout, relative to the lake. They can't be
        committed, and are deleted when their batch ends; until then they may hold erased messages.
    """
    lake = Lake(folder)
    if not lake.exists:
        return []
    lake.fence()
    # Listed after fencing: a task creates its folder before it reads the fencing token.
    written = sorted(lake.landing.glob("*"))
    deadline = time.monotonic() + timeout
    while lake.has_writer and any(path.exists() for path in written):
        if time.monotonic() >= deadline:
            return [str(path.relative_to(folder)) for path in written if path.exists()]
        time.sleep(POLL)
    for path in written:
        shutil.rmtree(path, ignore_errors=True)
    return []


_ERASERS: Final[dict[str, Callable[["SparkSession", Path, Erasure], list[Rewritten]]]] = {
    "parquet": _erase_parquet,
    "jsonl": _erase_jsonl,
    "delta": _erase_delta,
    "lake": _erase_lake,
}


def _run_tasks(
    spark: "SparkSession", items: Sequence[Any], work: Callable[[Any], Any]
) -> list[Any]:
    if not items:
        return []
    return spark.sparkContext.parallelize(items, min(len(items), 1000)).map(work).collect()


def _files(folder: Path, *suffixes: str) -> Iterator[Path]:
    # All files, listed in a manifest or a log or not: unlisted ones hold data too.
    for path in folder.rglob("*"):
        if path.suffix in suffixes and path.is_file():
            yield path
