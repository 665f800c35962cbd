"""Whether an archive is of this log, found out before either is added to.

An id must not mean two things. Archive and log have an epoch each; where that is the same, one
was made of the other, unless a backup was put back. Where it is another, they may still be of
one kin: the machine stopped uncleanly, or somebody began a new epoch. So what both hold is
compared, a few of the log's messages with those rows:

    epoch      what both hold      the archive
    same       differs             is another log's, or one of the two was put back
    same       agrees, or nothing  goes on
    another    differs, or nothing is another log's
    another    agrees              goes on, in the new epoch

Where the archive knows higher ids than a log of its kin, as after that was put back from a
backup, the log goes on above them, in a new epoch. An archive without a row means nothing yet
and becomes that of any log.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import trio

from mist.archive.manifest import Archive, ArchiveError, Manifest
from mist.archive.segments import iter_batches
from mist.errors import HistoryDamaged
from mist.history import Durability, History, StoredMessage
from mist.history.layout import MICROSECONDS

__all__ = ["settle"]

log = logging.getLogger("mist.archive")

_COMPARED: Final = 100  # messages
_COLUMNS: Final = ("id", "time", "tags", "data")


async def settle(archive: Archive, history: History) -> Manifest:
    """Make sure that the archive is of this log, and that the log goes on above it.

    To be called before anything is published: it may have the log begin a new epoch.

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
        # What has left the log before is no loss to this archive.
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
    if both or is_same:
        differs = [message.id for message in both if not _is_same(message, rows[message.id])]
        if not differs:
            return
    durability = (await history.statistics()).durability
    advice = (
        "memory:// is a new one at each start, and needs a new folder each time"
        if durability is Durability.NOTHING
        else "put that one back, or use another folder for this one"
    )
    raise ArchiveError(f"archive {archive.folder}: of another history; {advice}")


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
