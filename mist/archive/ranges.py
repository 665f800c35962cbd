"""Ranges of ids that are gone, as few as say it."""

from collections.abc import Iterable

__all__ = ["joined"]


def joined(ranges: Iterable[tuple[int, int]], most: int) -> tuple[tuple[int, int], ...]:
    """Neighbours made one; where they are too many, the oldest likewise, with what was kept
    between them: rather too much is called lost than too little.

    Args:
        ranges: first and last id of each, in any order.
        most: that are told apart.
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    surplus = len(found) - most
    if surplus > 0:
        found[: surplus + 1] = [(found[0][0], found[surplus][1])]
    return tuple(found)
