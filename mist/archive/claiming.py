"""Claiming: a node takes over an archive that it shares with the other nodes of its log.

The lineage check (`lineage`) of an archive that nodes share. A node's mirror may be behind the
archive, and the engine's log may come into another epoch at any time, so it is done each time that
a node takes the archive over, and at the start as far as that can be told then.

The archive is of the log where its epoch is that of the log or one of its ancestors, or where both
agree on what they hold in common. With ids that the log does not have:

- The engine has lost them, and began another epoch: its ids go on above them. The archive keeps
  what the log has lost.
- The engine was restored from a backup, and no node had more: ids are given to nothing until the
  log is above the archive.

Taking over writes the fence of the lease into the manifest. From then on it refuses all that others
had begun under earlier leases; see `Tenure`.
"""

import logging
from typing import Any

import msgspec
import trio

from mist.archive.lineage import ADVICE, compare
from mist.archive.locking import alone
from mist.archive.manifest import ArchiveError, Manifest
from mist.archive.table import Archive
from mist.archive.tenure import Superseded
from mist.history import History, Position

__all__ = ["check_start", "claim", "is_related"]

log = logging.getLogger("mist.archive")


def is_related(manifest: Manifest, position: Position) -> bool:
    """Whether an archive is of a log's epoch, or of one of its ancestors; a new one is not."""
    return manifest.epoch == position.epoch or manifest.epoch in position.ancestors


async def check_start(archive: Archive, history: History, lock: int, *, is_whole: bool) -> Manifest:
    """Check at a node's start, as far as that can be told, that an archive is of its log.

    Args:
        lock: see `locking`.
        is_whole: whether the mirror has all of the log. Where it has not, an archive with which it
            has nothing in common may turn out to be of the log.

    Returns:
        The manifest. One without segments is of this log from now on.

    Raises:
        ArchiveError: one line that says why not.
        HistoryUnavailable: the mirror can't be read.
    """
    table = archive.messages
    manifest = await trio.to_thread.run_sync(table.current)
    position = await history.position()
    if is_related(manifest, position):
        return manifest
    if manifest.segments:
        agrees = await compare(archive, manifest, history, is_same=False)
        if agrees is False or (agrees is None and is_whole):
            raise _of_another(archive)
        return manifest

    def bind_new(current: Manifest) -> Manifest:
        return current if current.epoch else bind(current)

    def bind(current: Manifest) -> Manifest:
        if current.segments or is_related(current, position):
            return current
        return Manifest(
            current.table,
            epoch=position.epoch,
            generation=current.generation,
            retired=current.retired,
        )

    if not manifest.epoch:  # a new one
        manifest = await trio.to_thread.run_sync(table.change, bind_new)
    else:
        with alone(archive, lock) as is_alone:
            if is_alone:
                manifest = await trio.to_thread.run_sync(table.change, bind)
    if not is_related(manifest, position):
        raise ArchiveError(f"archive {archive.folder}: nodes of another log use it")
    return manifest


async def check_related(
    archive: Archive, manifest: Manifest, history: History, position: Position
) -> None:
    """Check that an archive is of a log, of which the mirror has all that the archive may have.

    Raises:
        ArchiveError: it is not.
        HistoryUnavailable: the mirror can't be read.
    """
    related = is_related(manifest, position)
    agrees = await compare(archive, manifest, history, is_same=related)
    if not agrees and not (agrees is None and related):
        raise _of_another(archive)


async def claim(archive: Archive, history: History, fence: int) -> Manifest:
    """Take an archive over.

    Args:
        history: the mirror; it has all of the log up to the archive's end.
        fence: of the lease.

    Returns:
        The manifest, of the log's epoch and with the fence.

    Raises:
        Superseded: another node has taken it over meanwhile, under a later lease.
        ArchiveError: one line that says why not; the archive is of another log, or can't be read
            or written.
        HistoryUnavailable: the mirror can't be read.
    """
    table = archive.messages
    manifest = await trio.to_thread.run_sync(table.current)
    position = await history.position()
    await check_related(archive, manifest, history, position)
    changes: dict[str, Any] = {"epoch": position.epoch, "fence": fence}
    if not manifest.segments and not manifest.sealed:
        # What retention removed before counts as no loss of this archive.
        changes["sealed"] = position.first - 1
    if manifest.epoch != position.epoch:
        log.info("the archive goes on in another epoch", extra={"epoch": position.epoch})

    def take(current: Manifest) -> Manifest:
        # Of another log's epoch, fences say nothing: leases may have been lost with records.
        is_later = current.fence > fence and current.epoch not in position.ancestors
        if is_later or (current.epoch, current.sealed) != (manifest.epoch, manifest.sealed):
            raise Superseded(f"archive {archive.folder}: another node seals it")
        return msgspec.structs.replace(current, **changes)

    return await trio.to_thread.run_sync(table.change, take)


def _of_another(archive: Archive) -> ArchiveError:
    return ArchiveError(f"archive {archive.folder}: of another log; {ADVICE}")
