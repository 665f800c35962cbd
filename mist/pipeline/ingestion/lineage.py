"""The lineage check: whether a log with a new epoch continues the one in the lake.

An id must identify one message. The server begins an epoch after an unclean stop of the machine,
a restore from a backup, or a change of the history. Ids may then continue, or be assigned again.
So the newest messages of the lake are compared with those of the same ids in the log, as a server
does with its own archive (`mist.archive.lineage`).
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from mist.archive import Manifest, Table
from mist.archive.segments import iter_batches
from mist.pipeline.selection import Alternatives
from mist.pipeline.source.origins import LogPosition, Losses, Origin
from mist.pipeline.source.splitting import OffsetRange

__all__ = ["continues_lake"]

_COMPARED: Final = 100  # messages
_COLUMNS: Final = ("id", "time", "tags", "data")


def continues_lake(
    table: Table,
    manifest: Manifest,
    origin: Origin,
    position: LogPosition,
    alternatives: Alternatives,
) -> bool:
    """Whether the log assigns no id that the lake has for another message.

    Args:
        position: of the log with the new epoch.
        alternatives: the selection that the lake was written with.

    Raises:
        ArchiveError, SourceError: the lake or the log can't be read.
    """
    if not manifest.segments or position.first > manifest.sealed:
        return True
    if position.newest < manifest.sealed:
        return False  # the log will assign these ids again
    newest = _newest(table, manifest)
    first, last = min(newest), max(newest)
    offsets = OffsetRange(position.epoch, first - 1, last)
    found = _rows(origin.read(offsets, alternatives, _COLUMNS, _COMPARED, Losses(fatal=False)))
    both = newest.keys() & found.keys()
    return bool(both) and all(newest[each] == found[each] for each in both)


def _newest(table: Table, manifest: Manifest) -> dict[int, Any]:
    # The whole segment is read, since messages at its end may have been erased.
    batches = deque(iter_batches(table, manifest.segments[-1], _COLUMNS, _COMPARED), 2)
    rows = pa.Table.from_batches(batches)
    return _rows(rows.slice(max(0, len(rows) - _COMPARED)).to_batches())


def _rows(batches: Iterable[pa.RecordBatch]) -> dict[int, Any]:
    return {
        row.pop("id"): row for batch in batches for row in batch.select(list(_COLUMNS)).to_pylist()
    }
