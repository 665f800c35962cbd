"""Roll-up of messages by hour and tag.

Batches are aggregated as a whole: where times ascend, as in an archive, the rows of an hour are
contiguous, and so are the codes of their tags, of which a histogram is taken. Tag names are
processed once for each dictionary.
"""

from collections import Counter as Counts
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.pipeline.kernels.tags import Codes, Int64Array

__all__ = ["HOUR", "Counter", "HourlyCounts"]

HOUR = 3_600_000_000  # microseconds
_MERGED = 65_536  # rows that wait to be merged, at least


class Counter:
    """Counts of tags, merged over batches with different dictionaries. Memory: O(tags)."""

    def __init__(self) -> None:
        self._merged = pa.table(
            {"tag": pa.array([], pa.string()), "count": pa.array([], pa.int64())}
        )
        self._more: list[pa.Table] = []
        self._waiting = 0  # rows in them

    def add(self, names: pa.Array, counts: Int64Array) -> None:
        """Add `counts` to each of `names`. O(names)."""
        used = np.flatnonzero(counts)
        if len(used) < len(names):
            names, counts = names.take(pa.array(used)), counts[used]
        self._more.append(pa.table({"tag": names, "count": counts}))
        self._waiting += len(names)
        # Where tags hardly repeat, a merge goes over all that is known: not for each batch.
        if self._waiting > max(_MERGED, len(self._merged)):
            self._merge()

    def _merge(self) -> None:
        if self._more:
            joined = pa.concat_tables([self._merged, *self._more])
            summed = joined.group_by("tag", use_threads=False).aggregate([("count", "sum")])
            self._merged = summed.rename_columns(["tag", "count"])
            self._more.clear()
            self._waiting = 0

    def arrays(self) -> tuple[pa.Array, Int64Array]:
        """The names, and the count of each."""
        self._merge()
        names, counts = (self._merged.column(each).combine_chunks() for each in ("tag", "count"))
        return names, counts.to_numpy()

    def top(self, count: int) -> list[tuple[str, int]]:
        """The most frequent tags; equal counts are ordered by name."""
        self._merge()
        order = [("count", "descending"), ("tag", "ascending")]
        places = pc.select_k_unstable(self._merged, count, order)
        found = self._merged.take(places)
        return list(
            zip(*(found.column(each).to_pylist() for each in ("tag", "count")), strict=True)
        )


class HourlyCounts:
    """Messages, and bytes of their data, by hour and tag. Memory: O(hours x tags).

    Args:
        sizes: whether to count bytes as well, which requires reading all data.
    """

    def __init__(self, *, sizes: bool = False) -> None:
        self._sizes = sizes
        self._messages: dict[int, Counter] = {}
        self._bytes: dict[int, Counter] = {}
        self._rows: Counts[int] = Counts()  # by hour, each message once
        self._sums: Counts[int] = Counts()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch with the columns `time`, `tags`, and `data` where sizes are counted.

        A tag that is twice in a row counts twice; an archive has no such rows.
        """
        column = Codes.of(batch.column("tags"))
        hours = batch.column("time").cast(pa.int64()).to_numpy() // HOUR
        if (hours[1:] < hours[:-1]).any():  # not from an archive
            order = np.argsort(hours, kind="stable")
            column, hours = Codes(column.names, column.rows.take(order)), hours[order]
        else:
            order = None
        rows = column.rows
        weights = None
        if self._sizes:
            lengths = _lengths(batch.column("data"))
            lengths = lengths if order is None else lengths[order]
            weights = np.repeat(lengths, rows.lengths)
        for hour, start, stop in _runs(hours):
            some = slice(int(rows.starts[start]), int(rows.starts[stop]))
            found = np.bincount(rows.codes[some], minlength=len(column.names))
            self._messages.setdefault(hour, Counter()).add(column.names, found)
            self._rows[hour] += stop - start
            if weights is not None:
                self._sums[hour] += int(lengths[start:stop].sum())
                summed = np.bincount(rows.codes[some], weights[some], len(column.names))
                # Floats, exact up to 2^53 bytes a batch.
                self._bytes.setdefault(hour, Counter()).add(column.names, summed.astype(np.int64))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The counts, an hour at a time.

        `hour` (hours since 1970), `tag`, `messages`, and `bytes`, which are null unless
        counted. A null tag is the total of the hour, with each message once.
        """
        for hour, counter in sorted(self._messages.items()):
            names, messages = counter.arrays()
            sizes = pa.nulls(len(names), pa.int64())
            if self._sizes:
                known, summed = self._bytes[hour].arrays()
                places = pc.index_in(names, known)
                sizes = pc.fill_null(pa.array(summed).take(places), 0)
            yield _batch(hour, names, pa.array(messages), sizes)
            whole = pa.array([self._sums[hour] if self._sizes else None], pa.int64())
            yield _batch(hour, pa.nulls(1, pa.string()), pa.array([self._rows[hour]]), whole)


def _batch(hour: int, names: pa.Array, messages: pa.Array, sizes: pa.Array) -> pa.RecordBatch:
    hours = pa.array(np.full(len(names), hour))
    return pa.record_batch({"hour": hours, "tag": names, "messages": messages, "bytes": sizes})


def _runs(values: Int64Array) -> Iterator[tuple[int, int, int]]:
    """Runs of equal values: value, start, stop."""
    if not len(values):
        return
    bounds = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for start, stop in pairwise(bounds):
        yield int(values[start]), start, stop


def _lengths(data: pa.Array) -> Int64Array:
    lengths = pc.fill_null(pc.binary_length(data), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
