"""Co-occurrence: exact counts of pairs among the most frequent tags.

Ten thousand tags make fifty million pairs, most of them rare and of no interest. So there are two
passes: the first counts tags, the second the pairs of the most frequent `tags`, in a square matrix.
Its memory is known in advance, 8 bytes x tags²: 8 MB for a thousand.

*What is missed.* A pair can't occur more often than its rarer tag. Let `floor` be the count of the
most frequent tag that was left out. Every pair with a higher count is listed, and its count is
exact; of the other pairs those with a tag that was left out are missing. Refused: space-saving
counters. They need one pass, but give upper bounds only, and take a step for each pair where this
takes one for thousands.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from mist.pipeline.kernels.tags import Codes, Int64Array, Rows, Vocabulary, rows_by_length

__all__ = ["PairCounts"]

_MAX_PENDING = 1 << 21  # pairs that are buffered before they are counted


class PairCounts:
    """Counts of the messages that have both tags of a pair.

    Args:
        tags: array<string>, distinct: the tags to count. Memory: 8 bytes x tags².
    """

    def __init__(self, tags: pa.Array) -> None:
        self._vocabulary = Vocabulary.of(tags)
        size = len(self._vocabulary)
        self._counts = np.zeros(size * size, np.int64)
        self._pending: list[Int64Array] = []
        self._pending_size = 0

    def add(self, tags: pa.Array) -> None:
        """Count the rows of a column. O(pairs in each row)."""
        rows = self._vocabulary.code(Codes.of(tags))
        for length, alike in rows_by_length(rows.lengths):
            self._add(rows, alike, length)
        if self._pending_size:
            self._count()

    def _add(self, rows: Rows, alike: Int64Array, length: int) -> None:
        size = len(self._vocabulary)
        columns = rows.codes[rows.starts[alike] + np.arange(length)[:, None]].astype(np.int64)
        for low in range(length - 1):
            # Codes ascend in each row, so pairs are (lower, higher) and fill half of the matrix.
            self._pending.append((columns[low] * size + columns[low + 1 :]).ravel())
            self._pending_size += len(self._pending[-1])
            if self._pending_size > _MAX_PENDING:
                self._count()

    def _count(self) -> None:
        self._counts += np.bincount(np.concatenate(self._pending), minlength=len(self._counts))
        self._pending.clear()
        self._pending_size = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The pairs that occur: `tag`, `other` (the later one by text), `messages`."""
        met = np.flatnonzero(self._counts)
        if not len(met):
            return
        names = self._vocabulary.names
        tag, other = np.divmod(met, len(names))
        yield pa.record_batch(
            {
                "tag": names.take(pa.array(tag)),
                "other": names.take(pa.array(other)),
                "messages": pa.array(self._counts[met]),
            }
        )
