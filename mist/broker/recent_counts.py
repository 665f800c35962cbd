"""Recent counts: sums by key over the last half minute, of which the highest are asked for.

Sums of five seconds each: the present ones, and six that are over. Each holds a bounded number of
keys; beyond it the rarer half is forgotten.

No clock is read here but the one that is given.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

__all__ = ["RecentCounts"]

_SLOT: Final = 5.0  # seconds
_SLOTS: Final = 6  # that are over
_MAX_KEYS: Final = 2048  # in a slot

K = TypeVar("K", str, bytes)


class RecentCounts(Generic[K]):
    """See the module.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = now = clock()
        self._number = int(now // _SLOT)  # of the present slot
        self._slots: dict[int, dict[K, int]] = {self._number: {}}

    def turn(self, now: float) -> None:
        """What is counted from here on belongs to this time. Until then, to the last one given."""
        number = int(now // _SLOT)
        if number not in self._slots:
            recent = {n: slot for n, slot in self._slots.items() if n >= number - _SLOTS}
            self._slots = {**recent, number: {}}
        self._number = number

    def add(self, keys: Iterable[K], count: int) -> None:
        """Count so many more of each key."""
        slot = self._slots[self._number]
        for key in keys:
            slot[key] = slot.get(key, 0) + count
        while len(slot) > _MAX_KEYS:
            slot = self._slots[self._number] = _most_frequent(slot)

    @property
    def seconds(self) -> float:
        """The time over which is counted: 30 to 35 seconds, or since this was made."""
        since = max(self._started, (self._number - _SLOTS) * _SLOT)
        return max(self._clock() - since, 0.0)

    def top(self, most: int) -> list[tuple[K, float]]:
        """The highest counts, a second each, highest first."""
        seconds = max(self.seconds, 1.0)
        total: dict[K, int] = {}
        for slot in self._slots.values():
            for key, count in slot.items():
                total[key] = total.get(key, 0) + count
        found = sorted(total.items(), key=lambda item: (-item[1], item[0]))
        return [(key, count / seconds) for key, count in found[:most]]


def _most_frequent(slot: dict[K, int]) -> dict[K, int]:
    """Half of the keys, the more frequent ones. The others begin at 0 if they come again."""
    half = len(slot) // 2
    median = sorted(slot.values())[half]
    found = {key: count for key, count in slot.items() if count > median}
    equal = (key for key, count in slot.items() if count == median)
    found.update(dict.fromkeys(islice(equal, half - len(found)), median))
    return found
