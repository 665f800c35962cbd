"""Deduplication of tag lists: rows with the same tags are matched once.

A sensor sends the same tag list a thousand times an hour, but a request id among the tags makes
each list distinct. So a sample of rows is examined first, and if most of them differ, nothing is
done.

Rows are grouped by a hash, the sum of 64 random bits for each tag. Then each row is compared with
the representative of its group, so the result is exact.
"""

import attrs
import numpy as np
import numpy.typing as npt

from mist.pipeline.kernels.tags import Int64Array, Rows, expand_runs, run_offsets

__all__ = ["RowGroups", "deduplicate"]

_SAMPLE = 2048  # rows
_MAX_DISTINCT = 0.5  # share of distinct rows above which deduplication doesn't pay

Hashes = npt.NDArray[np.uint64]


@attrs.frozen(eq=False)
class RowGroups:
    """Rows grouped by equal tags.

    Attributes:
        distinct: one row of each group.
        kinds: for each row, the index of its group in `distinct`.
    """

    distinct: Int64Array
    groups: Int64Array

    def weights(self) -> Int64Array:
        """The number of rows of each group."""
        return np.bincount(self.groups, minlength=len(self.distinct))

    def expand(self, found: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Expand results for groups to results for rows.

        Args:
            found: groups, possibly repeated.

        Returns:
            For each of them all rows of the group, and beside each row its index in `found`.
            O(rows + result).
        """
        order = np.argsort(self.groups, kind="stable")
        weights = self.weights()
        starts = run_offsets(weights)
        lengths = weights[found]
        return order[expand_runs(starts[found], lengths)], np.repeat(np.arange(len(found)), lengths)


def deduplicate(rows: Rows, hashes: Hashes) -> RowGroups | None:
    """Group rows by equal tags; None if it doesn't pay.

    Args:
        rows: as sets.
        words: 64 random bits for each code.
    """
    if len(rows) < 2:
        return None
    sample = np.unique(_row_hashes(rows, hashes, min(_SAMPLE, len(rows))))
    if len(sample) > _MAX_DISTINCT * min(_SAMPLE, len(rows)):
        return None
    sums = _row_hashes(rows, hashes, len(rows))
    _, distinct, groups = np.unique(sums, return_index=True, return_inverse=True)
    found = RowGroups(distinct, groups)
    return found if _equal_rows(rows, distinct[groups]) else None


def _row_hashes(rows: Rows, hashes: Hashes, count: int) -> Hashes:
    starts = rows.starts[: count + 1]
    sums = np.zeros(starts[-1] + 1, np.uint64)
    np.cumsum(hashes[rows.codes[: starts[-1]]], out=sums[1:])
    return np.diff(sums[starts])  # modulo 2^64, like the overflow of the sum


def _equal_rows(rows: Rows, others: Int64Array) -> bool:
    lengths = rows.lengths
    if not np.array_equal(lengths, lengths[others]):
        return False
    return np.array_equal(rows.codes, rows.codes[expand_runs(rows.starts[others], lengths)])
