"""Feed: what all iterators of a client have in common. The client fills a queue, one task reads it,
and one of the two ends it.
"""

from collections import deque
from typing import Generic, TypeVar

import anyio

from mist.client.change import Change
from mist.client.home import Home
from mist.errors import MistError

__all__ = ["Feed"]

_T = TypeVar("_T")


class Feed(Generic[_T]):
    """See the module; a base class.

    Attributes:
        settled: set once the server has confirmed or refused it, or it has ended.
    """

    def __init__(self, home: Home) -> None:
        self.settled = anyio.Event()
        self._home = home
        self._queue: deque[_T] = deque()
        self._arrived = Change()
        self._ended = False
        self._error: MistError | None = None

    async def _until_queued(self) -> None:
        """Wait until something is queued. Cancellation loses nothing.

        Raises:
            StopAsyncIteration: it has ended, and was read to its end.
            MistError: the same, and why it was ended.
        """
        while not self._queue:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._arrived.wait()

    def raise_if_refused(self) -> None:
        """Raise the error that it was ended with, if any."""
        if self._ended and self._error is not None:
            raise self._error

    def end(self, error: MistError | None = None) -> None:
        """Nothing more comes after what is queued. The first reason stays."""
        if not self._ended:
            self._ended = True
            self._error = error
            self.settled.set()
            self._arrived.notify()
