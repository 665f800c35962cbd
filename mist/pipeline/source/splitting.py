"""Splitting a range of ids into partitions.

A task costs some tens of milliseconds before its first row, so small stretches are not cut;
large ones are cut even where nobody asked for it, so that a task that fails has little to do
again. Where the log lies in segments, cuts are laid between them: a segment opened by two
tasks has a row group decoded twice.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs

from mist.pipeline.selection import Bounds

__all__ = ["LARGEST", "SMALLEST", "Stretch", "split"]

SMALLEST: Final = 20_000  # ids in a partition, where nobody asked for more partitions
LARGEST: Final = 500_000  # ids in a partition: a segment's rows


@attrs.frozen
class Stretch:
    """Ids above `after`, up to `upto`, of the log whose epoch this is.

    Attributes:
        known: up to here some were gone when the query began, which asked for what there was;
            they are not lost to it.
    """

    epoch: str
    after: int
    upto: int
    known: int = 0

    def __len__(self) -> int:
        return max(self.upto - self.after, 0)


def split(
    stretch: Stretch, partitions: int, *, asked: bool, segments: Sequence[Bounds] = ()
) -> list[Stretch]:
    """The parts, ascending, that make up the stretch; none where it is empty.

    Args:
        partitions: how many there should be at least.
        asked: whether a person said so; then parts may be small, down to one id.
        segments: what is known of where the ids lie, ascending.
    """
    length = len(stretch)
    if not length:
        return []
    if not asked:
        partitions = min(partitions, -(-length // SMALLEST))
    partitions = min(max(partitions, -(-length // LARGEST)), length)
    edges = [seg.last for seg in segments if stretch.after < seg.last < stretch.upto]
    cuts = [stretch.after]
    if edges:
        _cut_between(cuts, [*edges, stretch.upto], length // partitions)
    else:
        _cut_evenly(cuts, stretch.upto, partitions)
    return [attrs.evolve(stretch, after=after, upto=upto) for after, upto in pairwise(cuts)]


def _cut_between(cuts: list[int], edges: list[int], most: int) -> None:
    reach = cuts[-1]  # whole segments up to here fit into the part that is being made
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
