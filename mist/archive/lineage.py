"""The lineage check: whether an archive is of this log, before either is added to.

An id must not mean two messages. Archive and log have an epoch each; where it is the same, one
was made from the other, unless a backup was restored. Where it differs, they may still share
history: the machine stopped uncleanly, or an operator began a new epoch. So what both hold is
compared, a few of the log's messages with the same rows of the archive:

    epoch      what both hold      the archive
    same       differs             is another log's, or one of the two was restored
    same       agrees, or nothing  goes on
    another    differs, or nothing is another log's
    another    agrees              goes on, in the new epoch

Where the archive has higher ids than its log, as after that was restored from a backup, the log
continues above them, in a new epoch. An archive without rows can become that of any log.

Where nodes share an archive, `claiming` does the check.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import trio

from mist.archive.manifest import ArchiveError, Manifest
from mist.archive.segments import iter_batches
from mist.archive.table import Archive
from mist.errors import HistoryDamaged
from mist.history import Durability, History, StoredMessage
from mist.history.layout import MICROSECONDS

__all__ = ["ADVICE", "check_lineage", "compare"]

log = logging.getLogger("mist.archive")

ADVICE: Final = "restore that one, or use another directory for this one"
_COMPARED: Final = 100  # messages
_COLUMNS: Final = ("id", "time", "tags", "data")


async def check_lineage(archive: Archive, history: History) -> Manifest:
    """Check that the archive is of this log, and have the log continue above it.

    Called before anything is published: it may begin a new epoch of the log.

    Returns:
        The manifest, of the log's epoch.

    Raises:
        ArchiveError: one line that says why not.
        HistoryUnavailable: the log can't be read.
    """
    table = archive.messages
    manifest = await trio.to_thread.run_sync(table.current)
    position = await history.position()
    if not manifest.segments and manifest.epoch != position.epoch:
        # What retention removed before counts as no loss of this archive.
        changes: dict[str, Any] = {"sealed": position.first - 1, "lost": ()}
    else:
        await _compare(archive, manifest, history)
        changes = {}
    epoch = position.epoch
    if manifest.sealed > position.newest and not changes:
        epoch = await history.new_epoch(manifest.sealed)
        log.warning(
            "the archive holds more than the history; ids go on above it",
            extra={"archive": manifest.sealed, "history": position.newest},
        )

    def bind(current: Manifest) -> Manifest:
        return msgspec.structs.replace(current, epoch=epoch, **changes)

    return await trio.to_thread.run_sync(partial(table.change, bind))


async def _compare(archive: Archive, manifest: Manifest, history: History) -> None:
    is_same = manifest.epoch == (await history.position()).epoch
    agrees = await compare(archive, manifest, history, is_same=is_same)
    if agrees or (agrees is None and is_same):
        return
    advice = (
        "memory:// is a new one at each start, and needs a new directory each time"
        if (await history.statistics()).durability is Durability.NOTHING
        else ADVICE
    )
    raise ArchiveError(f"archive {archive.folder}: of another history; {advice}")


async def compare(
    archive: Archive, manifest: Manifest, history: History, *, is_same: bool
) -> bool | None:
    """Whether an archive and a log agree on what both hold; None where they hold nothing in common.

    Args:
        is_same: whether the archive is of the log's epoch. Then one that can't be read has nothing
            in common with it.

    Raises:
        ArchiveError: the archive can't be read.
        HistoryUnavailable: the log can't.
    """
    messages = await _newest(history, manifest.sealed)
    rows: Mapping[int, Mapping[str, object]] = {}
    if messages:
        find = partial(_rows, archive, manifest, messages[0].id, messages[-1].id)
        try:
            rows = await trio.to_thread.run_sync(find)
        except ArchiveError as error:
            if not is_same:
                raise
            log.warning("the archive can't be compared", extra={"reason": str(error)})
    both = [message for message in messages if message.id in rows]
    return all(_is_same(message, rows[message.id]) for message in both) if both else None


async def _newest(history: History, upto: int) -> Sequence[StoredMessage]:
    """Some of the log's messages, the newest of those with ids up to `upto`."""
    try:
        after = await history.last(None, _COMPARED, upto=upto)
        return list((await history.read(after=after, upto=upto)).messages())
    except HistoryDamaged:
        return []


def _rows(
    archive: Archive, manifest: Manifest, first: int, last: int
) -> Mapping[int, Mapping[str, object]]:
    found: dict[int, Mapping[str, object]] = {}
    for segment in manifest.segments:
        if segment.last < first or segment.first > last:
            continue
        for batch in iter_batches(archive.messages, segment, _COLUMNS, within=(first, last)):
            ids = batch.column("id")
            rows = batch.filter(pc.and_(pc.greater_equal(ids, first), pc.less_equal(ids, last)))
            times = rows.column("time").cast(pa.int64()).to_pylist()
            for row, time in zip(rows.drop_columns(["time"]).to_pylist(), times, strict=True):
                found[row["id"]] = row | {"time": time}
    return found


def _is_same(message: StoredMessage, row: Mapping[str, object]) -> bool:
    return (round(message.time * MICROSECONDS), sorted(message.tags), message.data) == (
        row["time"],
        row["tags"],
        row["data"],
    )
