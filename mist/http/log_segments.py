"""Reading an archive's segments for `GET /v1/log`, a row group at a time.

Readers request consecutive pages, and a row group holds several of them, so the last row groups
are cached.

Needs pyarrow and numpy, and must be imported and called in threads.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mist.archive import ArchiveDamaged, Manifest, Segment, Table
from mist.archive.matching import matching
from mist.archive.schema import MESSAGES
from mist.archive.segments import older_than
from mist.archive.visibility import visible_rows
from mist.attributes import Attributes
from mist.message import TagSet

__all__ = ["Piece", "Segments", "filter_visible"]

_KEPT: Final = 2  # row groups cached
_ID: Final = MESSAGES.get_field_index("id")


@attrs.frozen
class Piece:
    """Some rows of a segment.

    Attributes:
        batch: the rows; None where none matches.
        after: everything requested up to this id is in it.
        lost: ranges of ids up to there that are no longer available.
    """

    batch: pa.RecordBatch | None
    after: int
    lost: tuple[tuple[int, int], ...] = ()


class Segments:
    """The segments of an archive's messages. Thread-safe."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._kept: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self,
        manifest: Manifest,
        after: int,
        upto: int,
        alternatives: Collection[TagSet] | None,
        limit: int,
        size: int,
        attributes: Attributes | None = None,
    ) -> Piece:
        """The next rows with ids in `(after, upto]`, of one row group at most.

        Args:
            manifest: of the table; its `sealed` is at least `upto`.
            alternatives: subscriptions, of which a row has to match one; None is all rows.
            attributes: of the reader; None may get all.
            limit, size: rows, and bytes of their data; at least one row is returned.

        Raises:
            ArchiveDamaged: a segment can't be read.
        """
        segment = manifest.following(after, upto)
        if segment is None:
            return Piece(None, upto, manifest.gone(after, upto))
        try:
            batch, end = self._group(segment, after)
        except (OSError, pa.ArrowException) as error:
            text = str(error).partition("\n")[0]
            raise ArchiveDamaged(f"archive {self._table.path(segment)}: {text}") from error
        reached = min(end, upto)
        ids = batch.column(_ID).to_numpy()
        low, high = np.searchsorted(ids, [after, reached], "right").tolist()
        rows = batch.slice(low, high - low)
        if alternatives is not None:
            rows = rows.filter(pa.array(matching(rows.column("tags"), alternatives)))
        rows = filter_visible(rows, attributes)
        kept = _fit(rows, limit, size)
        if kept < len(rows):
            rows = rows.slice(0, kept)
            reached = rows.column(_ID)[kept - 1].as_py()
        return Piece(rows if kept else None, reached, manifest.gone(after, reached))

    def older(self, manifest: Manifest, moment: int) -> int | None:
        """The highest id older than `moment` (microseconds); None where all are older."""
        segment = next((each for each in manifest.segments if each.newest >= moment), None)
        if segment is None:
            return None
        return older_than(self._table, segment, moment)

    def _group(self, segment: Segment, after: int) -> tuple[pa.RecordBatch, int]:
        """The row group that holds what follows `after`, and the last id that it covers."""
        with pq.ParquetFile(self._table.path(segment)) as file:
            metadata = file.metadata
            for number in range(metadata.num_row_groups):
                is_last = number == metadata.num_row_groups - 1
                last = segment.last
                if not is_last:
                    last = metadata.row_group(number).column(_ID).statistics.max
                if last > after:
                    return self._load(file, segment, number), last
        raise ArchiveDamaged(f"archive {self._table.path(segment)}: it has no rows")

    def _load(self, file: pq.ParquetFile, segment: Segment, number: int) -> pa.RecordBatch:
        key = segment.file, number
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        table = file.read_row_group(number, columns=MESSAGES.names, use_threads=False)
        table = table.cast(MESSAGES).combine_chunks()
        batch = table.to_batches()[0] if len(table) else pa.record_batch([], schema=MESSAGES)
        with self._lock:
            self._kept[key] = batch
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return batch


def filter_visible(rows: pa.RecordBatch, attributes: Attributes | None) -> pa.RecordBatch:
    """The rows of `MESSAGES` that a session with these attributes may get."""
    if attributes is None:
        return rows
    mask = visible_rows(rows.column("audience"), rows.column("tags"), attributes)
    return rows if mask is None else rows.filter(pa.array(mask))


def _fit(rows: pa.RecordBatch, limit: int, size: int) -> int:
    """How many of the rows fit, at least one where there is one."""
    kept = min(len(rows), limit)
    if not kept:
        return 0
    sizes = np.cumsum(pc.binary_length(rows.column("data").slice(0, kept)).to_numpy())
    return max(min(kept, int(np.searchsorted(sizes, size, "right"))), 1)
