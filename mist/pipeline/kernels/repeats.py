"""Deduplication of tag lists: rows with the same tags are matched once.

A sensor sends the same tag list a thousand times an hour; a request id among the tags makes
each list new. So a few rows are tried first, and where most of those differ, nothing is done.

Lists are told apart by a sum of 64 random bits for each tag; then each row is compared with
the one that stands for it, so that the answer is exact.
"""

import attrs
import numpy as np
import numpy.typing as npt

from mist.pipeline.kernels.tags import Places, Rows, ends, spread

__all__ = ["Repeats", "find_repeats"]

_TRIED = 2048  # rows
_DIFFERING = 0.5  # share of distinct rows above which it isn't worth it

Words = npt.NDArray[np.uint64]


@attrs.frozen(eq=False)
class Repeats:
    """Which rows are alike.

    Attributes:
        distinct: one row for each kind.
        kinds: for each row, the place in `distinct` of the one that is like it.
    """

    distinct: Places
    kinds: Places

    def weights(self) -> Places:
        """How many rows there are of each kind."""
        return np.bincount(self.kinds, minlength=len(self.distinct))

    def expand(self, found: Places) -> tuple[Places, Places]:
        """From what was found for kinds to what holds for rows.

        Args:
            found: kinds, perhaps some repeatedly.

        Returns:
            For each of them all rows of that kind, and beside it the place in `found` it
            comes from. O(rows + what is returned).
        """
        order = np.argsort(self.kinds, kind="stable")
        weights = self.weights()
        starts = ends(weights)
        lengths = weights[found]
        return order[spread(starts[found], lengths)], np.repeat(np.arange(len(found)), lengths)


def find_repeats(rows: Rows, words: Words) -> Repeats | None:
    """Which rows are alike; None where it isn't worth while.

    Args:
        rows: as sets.
        words: random bits for each code.
    """
    if len(rows) < 2:
        return None
    tried = np.unique(_sums(rows, words, min(_TRIED, len(rows))))
    if len(tried) > _DIFFERING * min(_TRIED, len(rows)):
        return None
    sums = _sums(rows, words, len(rows))
    _, distinct, kinds = np.unique(sums, return_index=True, return_inverse=True)
    found = Repeats(distinct, kinds)
    return found if _alike(rows, distinct[kinds]) else None


def _sums(rows: Rows, words: Words, count: int) -> Words:
    starts = rows.starts[: count + 1]
    sums = np.zeros(starts[-1] + 1, np.uint64)
    np.cumsum(words[rows.codes[: starts[-1]]], out=sums[1:])
    return np.diff(sums[starts])  # which wraps around, and takes the overflow back


def _alike(rows: Rows, others: Places) -> bool:
    lengths = rows.lengths
    if not np.array_equal(lengths, lengths[others]):
        return False
    return np.array_equal(rows.codes, rows.codes[spread(rows.starts[others], lengths)])
