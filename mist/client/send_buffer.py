"""Send buffer: published messages and requests waiting to be written, with backpressure.

It is a single queue, because a fence must stay behind the messages it fences. It outlives
connections: what was not written when one broke is written to the next, in the same order.
What was taken for writing is never put back, so nothing is written twice.
"""

from collections.abc import Callable
from typing import Final

from mist.client.change import Change
from mist.client.dialect import Request

__all__ = ["SendBuffer"]

_REQUEST_SIZE: Final = 64  # bytes a request counts for


class SendBuffer:
    """A bounded queue of messages and requests.

    Args:
        limit: bytes of published messages, queued or being written, above which `publish`
            waits.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[bytes | Request] = []
        self._size = 0  # bytes queued
        self._writing = 0  # bytes taken and not yet written
        self._filled = Change()
        self._room = Change()

    @property
    def messages(self) -> int:
        """Published messages queued and not taken. O(queue)."""
        return sum(isinstance(item, bytes) for item in self._items)

    @property
    def full(self) -> bool:
        """Whether the next message has to wait. An empty buffer takes one of any size."""
        return self._size + self._writing >= self._limit

    async def wait_for_room(self) -> None:
        """Wait until something was written, or for `wake`. Check `full` again after it."""
        await self._room.wait()

    def wake(self) -> None:
        """Wake every task that waits for room."""
        self._room.notify()

    def add(self, item: bytes | Request) -> None:
        """Queue a message's bytes or a request, without waiting."""
        self._items.append(item)
        self._size += len(item) if isinstance(item, bytes) else _REQUEST_SIZE
        self._filled.notify()

    async def take(self) -> list[bytes | Request]:
        """Wait for items and take all of them. Cancelled, it takes nothing.

        Call `mark_written` after they were written.
        """
        while not self._items:
            await self._filled.wait()
        items, self._items = self._items, []
        self._writing, self._size = self._size, 0
        return items

    def mark_written(self) -> None:
        """The items taken were written, or will never be."""
        self._writing = 0
        self.wake()

    def remove(self, unwanted: Callable[[Request], bool]) -> list[Request]:
        """Remove and return requests that were not written yet. O(queue)."""
        removed = [it for it in self._items if isinstance(it, Request) and unwanted(it)]
        if removed:
            gone = set(map(id, removed))
            self._items = [item for item in self._items if id(item) not in gone]
            self._size -= _REQUEST_SIZE * len(removed)
        return removed
