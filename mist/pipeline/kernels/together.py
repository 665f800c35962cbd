"""Co-occurrence: exact counts of pairs among the most frequent tags.

Ten thousand tags make fifty million pairs, and nobody wants to read of those that met twice. So
there are two passes: the first counts tags, the second pairs of the `tags` most used ones, in
one square of numbers. Memory is known beforehand, 8 bytes x tags²: 8 MB for a thousand.

*What is missed.* A pair can't meet more often than its rarer tag is used. So with the most used
tag that was left out used `floor` times: every pair that met more often than that is there,
and counted exactly; of others those with a tag that was left out are missing. (Space-saving
counters were refused: one pass, but each count is then an upper bound, and they take a step
for each pair where this takes one for thousands.)
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from mist.pipeline.kernels.tags import Codes, Places, Rows, Vocabulary, rows_by_length

__all__ = ["PairCounts"]

_WAITING = 1 << 21  # pairs that are gathered before they are counted


class PairCounts:
    """How often any two of some tags were on the same message.

    Args:
        tags: array<string>, those that count, each once. Memory: 8 bytes x tags².
    """

    def __init__(self, tags: pa.Array) -> None:
        self._vocabulary = Vocabulary.of(tags)
        size = len(self._vocabulary)
        self._met = np.zeros(size * size, np.int64)
        self._waiting: list[Places] = []
        self._amount = 0

    def add(self, tags: pa.Array) -> None:
        """Count the rows of a column. O(pairs in each row)."""
        rows = self._vocabulary.code(Codes.of(tags))
        for length, alike in rows_by_length(rows.lengths):
            self._add(rows, alike, length)
        if self._amount:
            self._count()

    def _add(self, rows: Rows, alike: Places, length: int) -> None:
        size = len(self._vocabulary)
        columns = rows.codes[rows.starts[alike] + np.arange(length)[:, None]].astype(np.int64)
        for low in range(length - 1):
            # Rows ascend, so each pair comes as (lower, higher) and fills half of the square.
            self._waiting.append((columns[low] * size + columns[low + 1 :]).ravel())
            self._amount += len(self._waiting[-1])
            if self._amount > _WAITING:
                self._count()

    def _count(self) -> None:
        self._met += np.bincount(np.concatenate(self._waiting), minlength=len(self._met))
        self._waiting.clear()
        self._amount = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Pairs that met: `tag`, `other` (the later one by text), `messages`."""
        met = np.flatnonzero(self._met)
        if not len(met):
            return
        names = self._vocabulary.names
        tag, other = np.divmod(met, len(names))
        yield pa.record_batch(
            {
                "tag": names.take(pa.array(tag)),
                "other": names.take(pa.array(other)),
                "messages": pa.array(self._met[met]),
            }
        )
