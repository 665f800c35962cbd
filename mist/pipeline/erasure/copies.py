"""Erasure in exports: the files concerned are rewritten in place.

An export has no manifest whose change all would see at once, so each file is replaced by a
rename: who reads it goes on with the old one, who opens it gets the new one. A lake has one, and
is erased from as the archive itself is.
"""

import glob
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from mist.archive import Archive
from mist.history.erasing import Erasure
from mist.pipeline.erasure.files import (
    Rewritten,
    count_doomed,
    digest,
    put_in_place,
    rewrite_parquet,
)
from mist.pipeline.erasure.lakes import delete_uncommitted
from mist.pipeline.erasure.tables import erase_table
from mist.pipeline.errors import JobFailed
from mist.pipeline.exports import Export
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CopyErased", "erase_copy"]


@attrs.frozen
class CopyErased:
    """What became of an export.

    Attributes:
        state: `done`; `gone`, where there is nothing at its path any more; or `failed`, and
            then somebody has to look after it.
        reason: why it failed.
    """

    path: str
    format: str
    state: str
    rows: int = 0
    files: Sequence[Rewritten] = ()
    reason: str = ""


def erase_copy(
    spark: "SparkSession", export: Export, erasure: Erasure, *, progress: Progress = silent
) -> CopyErased:
    """Take rows out of an export. Never raises for what is wrong with it: others follow."""
    folder = Path(export.path)
    for half_made in folder.parent.glob(f".{glob.escape(folder.name)}.[0-9a-f]*"):
        shutil.rmtree(half_made, ignore_errors=True)  # the export that writes it can be repeated
    if not folder.exists():
        return CopyErased(export.path, export.format, "gone")
    progress(f"export {folder}")
    try:
        files = _ERASERS[export.format](spark, folder, erasure)
    except Exception as error:  # it is told in the receipt, which is not complete then
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return CopyErased(export.path, export.format, "failed", reason=reason)
    rows = sum(each.erased for each in files)
    return CopyErased(export.path, export.format, "done", rows, files)


def _erase_parquet(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    paths = sorted(_files(folder, ".parquet"))
    return [what for _, what in _rewrite_all(spark, folder, paths, erasure)]


def _rewrite_all(
    spark: "SparkSession", folder: Path, paths: Sequence[Path], erasure: Erasure
) -> list[tuple[str, Rewritten]]:
    """Those of some Parquet files that hold what is to go; by their paths in the folder."""

    def work(path: Path) -> tuple[str, Rewritten] | None:
        if not count_doomed(path, erasure):
            return None
        name = str(path.relative_to(folder))
        return name, attrs.evolve(rewrite_parquet(path, erasure), file=name)

    return [each for each in _spread(spark, paths, work) if each is not None]


def _erase_jsonl(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    def work(path: Path) -> Rewritten | None:
        done = _rewrite_lines(path, erasure)
        return done and attrs.evolve(done, file=str(path.relative_to(folder)))

    done = _spread(spark, sorted(_files(folder, ".jsonl", ".json", ".txt")), work)
    return [each for each in done if each is not None]


def _rewrite_lines(path: Path, erasure: Erasure) -> Rewritten | None:
    """A file of lines without those that are to go; None where none is."""
    temporary = path.with_name(f".{path.name}.tmp")
    erased = kept = 0
    try:
        with open(path, "rb") as old, open(temporary, "wb") as new:
            for line in old:
                if _is_doomed(erasure, msgspec.json.decode(line)):
                    erased += 1
                else:
                    kept += 1
                    new.write(line)
        if not erased:
            return None
        return put_in_place(path, temporary, digest(path), erased, kept)
    finally:
        temporary.unlink(missing_ok=True)


def _is_doomed(erasure: Erasure, message: dict[str, Any]) -> bool:
    if erasure.tags is not None and not erasure.tags <= set(message["tags"]):
        return False
    return erasure.publisher in (None, message.get("publisher", ""))


def _erase_delta(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    """A Delta table: new files by the side of the old, a new version, and no old one any more.

    Older versions would still give what is to go, in their files and in the statistics that
    their log has of them. So the log begins anew with what is there now.
    """
    from mist.pipeline.delta import begin_log, live_files

    live = live_files(folder)
    for path in _files(folder, ".parquet"):
        if path not in live:
            path.unlink()  # of an older version
    done = _rewrite_all(spark, folder, sorted(live), erasure)
    if done:
        begin_log(folder)
    return [what for _, what in done]


def _erase_lake(spark: "SparkSession", folder: Path, erasure: Erasure) -> list[Rewritten]:
    busy = delete_uncommitted(folder)
    done = erase_table(spark, Archive(folder), "messages", erasure)
    assert done is not None  # of messages it always can be told
    if busy := [*busy, *done.unfinished]:
        raise JobFailed(f"{busy[0]} is still being written; erase once more when it is done")
    return list(done.files)


_ERASERS: Final[dict[str, Callable[["SparkSession", Path, Erasure], list[Rewritten]]]] = {
    "parquet": _erase_parquet,
    "jsonl": _erase_jsonl,
    "delta": _erase_delta,
    "lake": _erase_lake,
}


def _spread(spark: "SparkSession", items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    if not items:
        return []
    return spark.sparkContext.parallelize(items, min(len(items), 1000)).map(work).collect()


def _files(folder: Path, *suffixes: str) -> Iterator[Path]:
    # All there are, whatever the folder's own records say: what nothing lists holds data too.
    for path in folder.rglob("*"):
        if path.suffix in suffixes and path.is_file():
            yield path
