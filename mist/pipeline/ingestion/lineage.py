"""The lineage check: whether a log that was started anew still matches the lake.

An id must not mean two things. The server begins an epoch when its machine stopped uncleanly,
when a backup was put back, when the history is another one. Ids may go on then, or be given out
again. So the newest messages of the lake are compared with those of the same ids in the log, as
a server does with its own archive (`mist.archive.lineage`).
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from mist.archive import Manifest, Table
from mist.archive.segments import iter_batches
from mist.pipeline.selection import Alternatives
from mist.pipeline.source.origins import LogPosition, Losses, Origin
from mist.pipeline.source.splitting import Stretch

__all__ = ["goes_on"]

_COMPARED: Final = 100  # messages
_COLUMNS: Final = ("id", "time", "tags", "data")


def goes_on(
    table: Table,
    manifest: Manifest,
    origin: Origin,
    position: LogPosition,
    alternatives: Alternatives,
) -> bool:
    """Whether no id of the log, from now on, is one that the lake has for another message.

    Args:
        position: of the log that was started anew.
        alternatives: that the lake is made of.

    Raises:
        ArchiveError, SourceError: one of the two can't be read.
    """
    if not manifest.segments or position.first > manifest.sealed:
        return True
    if position.newest < manifest.sealed:
        return False  # these ids will be given out again
    newest = _newest(table, manifest)
    first, last = min(newest), max(newest)
    stretch = Stretch(position.epoch, first - 1, last)
    found = _rows(origin.read(stretch, alternatives, _COLUMNS, _COMPARED, Losses(fatal=False)))
    both = newest.keys() & found.keys()
    return bool(both) and all(newest[each] == found[each] for each in both)


def _newest(table: Table, manifest: Manifest) -> dict[int, Any]:
    # All of one segment, since what is at its end may have been erased.
    batches = deque(iter_batches(table, manifest.segments[-1], _COLUMNS, _COMPARED), 2)
    rows = pa.Table.from_batches(batches)
    return _rows(rows.slice(max(0, len(rows) - _COMPARED)).to_batches())


def _rows(batches: Iterable[pa.RecordBatch]) -> dict[int, Any]:
    return {
        row.pop("id"): row for batch in batches for row in batch.select(list(_COLUMNS)).to_pylist()
    }
