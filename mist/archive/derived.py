"""What the tags of a column stand for: numbers of themselves, and of all that is derived from them.

    names       /a/b  x  .c           wanted    ../a  ..#1  x
    own           -1  2  -1           numbers      0     1  2
    found        [0] [2] [1]

Addresses are looked at once for each that is different, in Python; rows are numbers by then.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.addresses import derived

__all__ = ["Derived", "find_derived", "grouped", "is_derived"]

_ADDRESS: Final = r"^[/.]"
_MARK: Final = ".."

Numbers = np.ndarray[Any, np.dtype[Any]]


def is_derived(tag: str) -> bool:
    """Whether a tag, as matching knows it, is one that no peer says."""
    return tag.startswith(_MARK)


@attrs.frozen(eq=False)
class Derived:
    """Some numbers for each of some names: `numbers[starts[n] : starts[n] + counts[n]]`."""

    numbers: Numbers
    starts: Numbers
    counts: Numbers

    def spread(self, names: Numbers) -> tuple[Numbers, Numbers]:
        """For names one behind the other: their numbers likewise, and how many each has."""
        counts = self.counts[names]
        before = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(self.starts[names] - before, counts)
        return self.numbers[places], counts


def find_derived(
    names: pa.Array, own: Numbers, find: Callable[[list[str]], Numbers]
) -> Derived | None:
    """What names stand for.

    Args:
        names: array<string>, published tags; nulls stand for nothing.
        own: for each the number that it has itself; -1 for none.
        find: from tags to their numbers likewise.

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
    """Numbers, each beside the name that it belongs to, by name; those of one ascending."""
    counts = np.bincount(owners, minlength=count)
    order = np.lexsort((numbers, owners))
    return Derived(numbers[order], np.cumsum(counts) - counts, counts)
