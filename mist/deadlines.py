"""Deadlines: which of many things are due, by a clock that the caller reads.

    deadlines.set(session, 1798761600.0)
    deadlines.set(session, 1798765200.0)    # moved
    deadlines.remove(session)
    for session in deadlines.due(now, 50): …

A heap of times, with a dict that says which entry of the heap counts. One that is moved or removed
leaves its entry behind; once most entries are such, the heap is made anew. So memory is bounded by
what has a deadline, however often deadlines move, and each call is O(log n) amortized.
"""

import heapq
from typing import Final, Generic, TypeVar

__all__ = ["Deadlines"]

_T = TypeVar("_T")

_SPARE: Final = 64  # entries that may be left behind whatever there is


class Deadlines(Generic[_T]):
    """See the module. What has a deadline is hashable; equal things have one."""

    __slots__ = ("_entries", "_heap", "_number")

    def __init__(self) -> None:
        self._entries: dict[_T, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, _T]] = []
        self._number = 0  # of the last entry: the order of those that are due at once

    def __len__(self) -> int:
        """How many have one."""
        return len(self._entries)

    def get(self, one: _T) -> float | None:
        """The deadline of this one; None where it has none."""
        entry = self._entries.get(one)
        return None if entry is None else entry[0]

    def set(self, one: _T, at: float) -> bool:
        """Set or move a deadline. Returns whether it is now the first of all.

        Args:
            at: in the unit of the caller's clock.
        """
        self._number += 1
        self._entries[one] = at, self._number
        heapq.heappush(self._heap, (at, self._number, one))
        self._tidy()
        self._drop()
        return self._heap[0][1] == self._number

    def remove(self, one: _T) -> None:
        """Take back a deadline, if there is one."""
        if self._entries.pop(one, None) is not None:
            self._tidy()

    @property
    def first(self) -> float | None:
        """The earliest deadline; None where there is none."""
        self._drop()
        return self._heap[0][0] if self._heap else None

    def due(self, now: float, most: int) -> list[_T]:
        """Those whose deadline is at `now` or was before, the earliest first. They have none then.

        Args:
            most: of them; the others stay.
        """
        found: list[_T] = []
        while len(found) < most:
            self._drop()
            if not self._heap or self._heap[0][0] > now:
                break
            one = heapq.heappop(self._heap)[2]
            del self._entries[one]
            found.append(one)
        return found

    def _drop(self) -> None:
        """Drop what was left behind at the top of the heap."""
        heap = self._heap
        while heap and self._entries.get(heap[0][2], (0.0, 0))[1] != heap[0][1]:
            heapq.heappop(heap)

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = [(at, number, one) for one, (at, number) in self._entries.items()]
            heapq.heapify(self._heap)
