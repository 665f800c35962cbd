"""What was used last, up to so many bytes: what the caches of a log have in common."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(ABC, Generic[K, V]):
    """Values by their keys; those that were not used for longest leave first. Shared by threads.

    Once it is full, its size hardly changes.

    Args:
        max_bytes: of all that is kept, roughly.
    """

    __slots__ = ("_kept", "_max_bytes", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._kept: OrderedDict[K, V] = OrderedDict()  # least recently used first
        self._size = 0
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._kept)

    @abstractmethod
    def cost(self, key: K, value: V) -> int:
        """Bytes of an entry, roughly; always the same for it."""

    def find(self, key: K) -> V | None:
        """The value of a key, if there is one."""
        kept = self._kept
        try:
            kept.move_to_end(key)
            return kept[key]
        except KeyError:  # or another thread has forgotten it in between
            return None

    def add(self, key: K, value: V) -> V:
        """Keep a value, unless another thread has added one; the one that is kept then."""
        found = self._kept.setdefault(key, value)
        if found is value:  # sums have no call within, so none is lost to another thread
            cost = self.cost(key, value)
            self._size += cost
            while self._size > self._max_bytes and self._kept:
                cost = self.cost(*self._kept.popitem(last=False))
                self._size -= cost
        return found

    def remove(self, key: K) -> None:
        """Forget a key, if it is there."""
        value = self._kept.pop(key, None)
        if value is not None:
            cost = self.cost(key, value)
            self._size -= cost
