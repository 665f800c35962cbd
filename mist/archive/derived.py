"""Derived tags of a column: the numbers of its tags, and of all tags derived from addresses.

    names       /a/b  x  .c           wanted    ../a  ..#1  x
    own           -1  2  -1           numbers      0     1  2
    found        [0] [2] [1]

Tags are derived in Python once for each distinct address; rows are numbers by then.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.addresses import derived

__all__ = ["Derived", "find_derived", "grouped"]

_ADDRESS: Final = r"^[/.]"

Numbers = np.ndarray[Any, np.dtype[Any]]


@attrs.frozen(eq=False)
class Derived:
    """Some numbers for each of some names: `numbers[starts[n] : starts[n] + counts[n]]`."""

    numbers: Numbers
    starts: Numbers
    counts: Numbers

    def spread(self, names: Numbers) -> tuple[Numbers, Numbers]:
        """The numbers of a sequence of names, concatenated, and how many each has."""
        counts = self.counts[names]
        before = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(self.starts[names] - before, counts)
        return self.numbers[places], counts


def find_derived(
    names: pa.Array, own: Numbers, find: Callable[[list[str]], Numbers]
) -> Derived | None:
    """The numbers of names and of the tags derived from them.

    Args:
        names: array<string>, published tags; nulls have no numbers.
        own: the number of each name itself; -1 for none.
        find: maps tags to their numbers; -1 for none.

    Returns:
        None where nothing derived from any of them has a number.
    """
    chosen = pc.indices_nonzero(pc.match_substring_regex(names, _ADDRESS))
    if not len(chosen):
        return None
    all_tags: list[str] = []
    sizes = []
    for name in names.take(chosen).to_pylist():
        tags = derived(name)
        all_tags += tags
        sizes.append(len(tags))
    numbers = find(all_tags)
    owners = np.repeat(chosen.to_numpy().astype(np.int64), sizes)[numbers >= 0]
    if not len(owners):
        return None
    mine = np.flatnonzero(own >= 0)
    return grouped(
        np.concatenate([mine, owners]),
        np.concatenate([own[mine], numbers[numbers >= 0]]),
        len(names),
    )


def grouped(owners: Numbers, numbers: Numbers, count: int) -> Derived:
    """Group numbers by the name that each belongs to; those of one name ascend."""
    counts = np.bincount(owners, minlength=count)
    order = np.lexsort((numbers, owners))
    return Derived(numbers[order], np.cumsum(counts) - counts, counts)
