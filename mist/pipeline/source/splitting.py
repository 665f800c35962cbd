"""Splitting a range of ids into partitions.

A task costs some tens of milliseconds before its first row, so small ranges are not split. Large
ones always are, so that a failed task has little to repeat. Where the log is stored in segments,
partitions end at their boundaries: of a segment that two tasks read, a row group is decoded
twice.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs

from mist.pipeline.selection import Bounds

__all__ = ["LARGEST", "SMALLEST", "OffsetRange", "split"]

SMALLEST: Final = 20_000  # ids of a partition, unless more partitions were requested
LARGEST: Final = 500_000  # ids of a partition: the rows of a segment


@attrs.frozen
class OffsetRange:
    """An offset range: the ids in `(after, upto]` of the log with this epoch.

    Attributes:
        gaps_upto: ids up to this one may be missing: they were gone when the query began, and
            it requested the messages that existed. Not a data loss.
    """

    epoch: str
    after: int
    upto: int
    gaps_upto: int = 0

    def __len__(self) -> int:
        return max(self.upto - self.after, 0)


def split(
    offsets: OffsetRange, partitions: int, *, asked: bool, segments: Sequence[Bounds] = ()
) -> list[OffsetRange]:
    """Split a range into adjacent parts, ascending; none where it is empty.

    Args:
        partitions: the minimum number of parts.
        asked: whether the minimum was requested explicitly; parts may then be as small as one id.
        segments: the bounds of the segments that store the ids, ascending; may be empty.
    """
    length = len(offsets)
    if not length:
        return []
    if not asked:
        partitions = min(partitions, -(-length // SMALLEST))
    partitions = min(max(partitions, -(-length // LARGEST)), length)
    edges = [seg.last for seg in segments if offsets.after < seg.last < offsets.upto]
    cuts = [offsets.after]
    if edges:
        _cut_between(cuts, [*edges, offsets.upto], length // partitions)
    else:
        _cut_evenly(cuts, offsets.upto, partitions)
    return [attrs.evolve(offsets, after=after, upto=upto) for after, upto in pairwise(cuts)]


def _cut_between(cuts: list[int], edges: list[int], most: int) -> None:
    reach = cuts[-1]  # whole segments up to here fit into the current part
    for edge in edges:
        if edge - cuts[-1] > most:
            if reach > cuts[-1]:
                cuts.append(reach)
            if edge - cuts[-1] > most:  # too large by itself
                _cut_evenly(cuts, edge, -(-(edge - cuts[-1]) // most))
        reach = edge
    if reach > cuts[-1]:
        cuts.append(reach)


def _cut_evenly(cuts: list[int], upto: int, parts: int) -> None:
    after = cuts[-1]
    cuts += [after + (upto - after) * part // parts for part in range(1, parts + 1)]
