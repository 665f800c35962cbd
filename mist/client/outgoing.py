"""What is to be written: published messages and requests in one bounded queue.

One queue, because a fence has to stay behind what it fences. It outlives connections: what
was not written when one broke is written to the next, in the same order. What was taken to be
written is never put back, so that nothing is ever written twice.
"""

from collections.abc import Callable
from typing import Final

import trio

from mist.client.dialect import Request

__all__ = ["Outgoing"]

_REQUEST_SIZE: Final = 64  # bytes a request counts for


class Outgoing:
    """See the module.

    Args:
        limit: bytes of published messages, queued or being written, beyond which `publish`
            waits.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[bytes | Request] = []
        self._size = 0  # bytes queued
        self._writing = 0  # bytes taken and not yet written
        self._filled = trio.Event()
        self._room = trio.lowlevel.ParkingLot()

    @property
    def messages(self) -> int:
        """Published messages queued and not taken. O(queue)."""
        return sum(isinstance(item, bytes) for item in self._items)

    @property
    def full(self) -> bool:
        """Whether the next message has to wait. One is always let in, whatever its size."""
        return self._size + self._writing >= self._limit

    async def wait_for_room(self) -> None:
        """Wait once for something to be written, or for `wake`."""
        await self._room.park()

    def wake(self) -> None:
        """Have all who wait for room look again."""
        self._room.unpark_all()

    def add(self, item: bytes | Request) -> None:
        """Queue a message's bytes or a request, without waiting."""
        self._items.append(item)
        self._size += len(item) if isinstance(item, bytes) else _REQUEST_SIZE
        self._filled.set()

    async def take(self) -> list[bytes | Request]:
        """All that is queued, waited for. Say `written` once it is. Cancelled, takes nothing."""
        while not self._items:
            self._filled = trio.Event()
            await self._filled.wait()
        items, self._items = self._items, []
        self._writing, self._size = self._size, 0
        return items

    def written(self) -> None:
        """What was taken was written, or never will be."""
        self._writing = 0
        self.wake()

    def remove(self, unwanted: Callable[[Request], bool]) -> list[Request]:
        """Take out requests that were not written yet. O(queue)."""
        removed = [it for it in self._items if isinstance(it, Request) and unwanted(it)]
        if removed:
            gone = set(map(id, removed))
            self._items = [item for item in self._items if id(item) not in gone]
            self._size -= _REQUEST_SIZE * len(removed)
        return removed
