"""How many of each key there are at a time, such as of each token; others of that key wait."""

from collections.abc import Callable
from functools import partial

import trio

__all__ = ["KeyedLimiter"]


class KeyedLimiter:
    """See the module. Nothing is kept of a key that nobody has, and nobody waits for."""

    def __init__(self) -> None:
        self._places: dict[str, trio.CapacityLimiter] = {}

    def __len__(self) -> int:
        """How many keys are kept."""
        return len(self._places)

    async def acquire(self, key: str, most: int) -> Callable[[], None]:
        """Wait for a place, behind those who wait for one of the same key.

        Args:
            most: places of a key.

        Returns:
            What gives it back.
        """
        places, holder = self._places.setdefault(key, trio.CapacityLimiter(most)), object()
        try:
            await places.acquire_on_behalf_of(holder)
        finally:
            self._forget(key, places)
        return partial(self._give_back, key, places, holder)

    def _give_back(self, key: str, places: trio.CapacityLimiter, holder: object) -> None:
        places.release_on_behalf_of(holder)
        self._forget(key, places)

    def _forget(self, key: str, places: trio.CapacityLimiter) -> None:
        if not places.borrowed_tokens and not places.statistics().tasks_waiting:
            self._places.pop(key, None)
