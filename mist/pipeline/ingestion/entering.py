"""The commit of a batch: its files are listed in the lake's manifest in one generation.

the lake has ids up to      the batch                       then
`after` of the batch        is new                          it is entered
its `upto`, or beyond       was entered before a crash      its files are dropped
somewhere within it, or     belongs to another lake, or     an error: whatever were done,
not even as far as `after`  the folder was put back         a message were twice or nowhere
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
from mist.archive.manifest import join_ranges
from mist.archive.table import sync_directory
from mist.pipeline.errors import JobFailed
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.ingestion.tasks import Landed

__all__ = ["Entered", "OutOfDate", "enter"]

_MAX_LOST: Final = 1_000  # ranges that are told apart

Range = tuple[int, int]


class OutOfDate(Exception):
    """Something was erased since the tasks began to read: the batch has to be read again."""


@attrs.frozen
class Entered:
    """What came of a batch.

    Attributes:
        rows: that it added; 0 where it was repeated.
        repeated: it had been entered before.
    """

    rows: int
    repeated: bool


def enter(lake: Lake, landed: Iterable[Landed]) -> Entered:
    """Enter what the tasks of one batch have written. Durable on return.

    Args:
        landed: of each task; together all ids of the batch.

    Raises:
        OutOfDate: see there. The files are gone.
        JobFailed: the batch doesn't follow on what the lake has.
        ArchiveError: it can't be written; the lake is as it was.
    """
    parts = sorted(landed, key=lambda each: each.after)
    _check_whole(parts)
    first, last = parts[0], parts[-1]
    repeated = False

    def edit(manifest: Manifest) -> Manifest:
        nonlocal repeated
        if repeated := _has(lake, manifest, first.epoch, first.after, last.upto):
            return manifest
        if any(part.mark != lake.mark() for part in parts):
            raise OutOfDate
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
        # The manifest may be written and only not known to be durable: it decides.
        lake.drop_strays()
        raise
    finally:
        # Also what tasks left that were cut short, or done twice: none is at work now.
        shutil.rmtree(lake.landing, ignore_errors=True)
    return Entered(0 if repeated else sum(part.rows for part in parts), repeated)


def _check_whole(parts: Sequence[Landed]) -> None:
    if not parts:
        raise JobFailed("a batch came without a task's word")
    for one, next_one in pairwise(parts):
        if (one.epoch, one.upto) != (next_one.epoch, next_one.after):
            raise JobFailed(f"a batch has a gap: {one.upto} is followed by {next_one.after}")


def _has(lake: Lake, manifest: Manifest, epoch: str, after: int, upto: int) -> bool:
    """Whether the lake has the ids in `(after, upto]`; an error where it has some of them."""
    if not manifest.epoch:
        return False  # a new lake begins anywhere
    if manifest.epoch == epoch and upto <= manifest.sealed:
        return True
    if after == manifest.sealed or (manifest.epoch != epoch and not manifest.segments):
        return False
    raise JobFailed(
        f"{lake.folder} has messages up to {manifest.sealed}, and the checkpoint goes on from"
        f" {after} to {upto}: one of the two is another lake's, or was put back;"
        " without a checkpoint it goes on where the folder is"
    )


def _move(lake: Lake, parts: Sequence[Landed]) -> None:
    """Put the files where the manifest will list them."""
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
