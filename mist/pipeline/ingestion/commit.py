"""The commit of a batch: its files are listed in the lake's manifest in one generation.

the lake has ids up to      the batch                       then
`after` of the batch        is new                          it is committed
its `upto`, or beyond       was committed before a crash    its files are deleted
an id within the batch, or  belongs to another lake, or     an error: any commit would
an id below `after`         a folder was restored           duplicate or lose messages
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs
import msgspec

from mist.archive import ArchiveError, Manifest
from mist.archive.generations import sync_directory
from mist.archive.manifest import join_ranges
from mist.pipeline.errors import JobFailed
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.ingestion.tasks import TaskOutput

__all__ = ["Committed", "StaleBatch", "commit"]

_MAX_LOST: Final = 1_000  # ranges of lost ids that the manifest lists

Range = tuple[int, int]


class StaleBatch(Exception):
    """An erasure ran since the tasks began to read: the batch has to be read again."""


@attrs.frozen
class Committed:
    """The result of a commit.

    Attributes:
        rows: number of rows added; 0 for a repeat.
        repeated: whether the batch had been committed before.
    """

    rows: int
    repeated: bool


def commit(lake: Lake, outputs: Iterable[TaskOutput]) -> Committed:
    """Commit the files that the tasks of one batch have written. Durable on return.

    Args:
        outputs: one of each task; together they cover all ids of the batch.

    Raises:
        StaleBatch: an erasure ran in the meantime. The files are deleted.
        JobFailed: the batch is not contiguous with the lake.
        ArchiveError: it can't be written; the lake is as it was.
    """
    parts = sorted(outputs, key=lambda each: each.after)
    _check_contiguous(parts)
    first, last = parts[0], parts[-1]
    repeated = False

    def edit(manifest: Manifest) -> Manifest:
        nonlocal repeated
        if repeated := _is_committed(lake, manifest, first.epoch, first.after, last.upto):
            return manifest
        if any(part.fence_token != lake.fence_token() for part in parts):
            raise StaleBatch
        segments = [segment for part in parts for segment in part.segments]
        _move(lake, parts)
        gone = (each for part in parts for each in part.lost)
        lost = join_ranges([*manifest.lost, *gone], _MAX_LOST)
        return msgspec.structs.replace(
            manifest.plus(*segments), epoch=first.epoch, sealed=last.upto, lost=lost
        )

    try:
        lake.table.change(edit)
    except ArchiveError:
        # The manifest may have been written without being known as durable: it decides.
        lake.delete_orphans()
        raise
    finally:
        # Also the output of killed and duplicate tasks: none is running now.
        shutil.rmtree(lake.landing, ignore_errors=True)
    return Committed(0 if repeated else sum(part.rows for part in parts), repeated)


def _check_contiguous(parts: Sequence[TaskOutput]) -> None:
    if not parts:
        raise JobFailed("a batch came without the output of any task")
    for one, next_one in pairwise(parts):
        if (one.epoch, one.upto) != (next_one.epoch, next_one.after):
            raise JobFailed(f"a batch has a gap: {one.upto} is followed by {next_one.after}")


def _is_committed(lake: Lake, manifest: Manifest, epoch: str, after: int, upto: int) -> bool:
    """Whether the lake has the ids in `(after, upto]`; an error where it has some of them."""
    if not manifest.epoch:
        return False  # a new lake may begin at any id
    if manifest.epoch == epoch and upto <= manifest.sealed:
        return True
    if after == manifest.sealed or (manifest.epoch != epoch and not manifest.segments):
        return False
    raise JobFailed(
        f"{lake.folder} has messages up to {manifest.sealed}, and the checkpoint goes on from"
        f" {after} to {upto}: one of the two is another lake's, or was put back;"
        " without a checkpoint it goes on where the folder is"
    )


def _move(lake: Lake, parts: Sequence[TaskOutput]) -> None:
    """Move the files to the paths that the manifest will list."""
    days: set[Path] = set()
    try:
        for part in parts:
            for segment in part.segments:
                target = lake.table.path(segment)
                target.parent.mkdir(mode=0o700, exist_ok=True)
                os.rename(lake.folder / part.folder / segment.file, target)
                days.add(target.parent)
        for folder in (*days, lake.folder):
            sync_directory(folder)
    except OSError as error:
        raise ArchiveError(f"archive {lake.folder}: {error.strerror}") from error
