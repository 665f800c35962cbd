"""Who reads the history: a token has few pages read at a time.

Blocks are read by one thread, in the order in which they are asked for. With a connection each, one
peer could ask for hundreds of pages, and everybody else would wait for all of them. So requests
wait for those with the same token first, of services for those of the same address.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from mist.http.keyed_limiter import KeyedLimiter

__all__ = ["ReadTurns"]

_AT_ONCE: Final = 2  # one is written as JSON while the other is read


class ReadTurns:
    """See the module."""

    def __init__(self) -> None:
        self._turns = KeyedLimiter()

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the end of this context.

        Args:
            owner: the token's registry id, or the address of a service.
        """
        give_back = await self._turns.acquire(owner, _AT_ONCE)
        try:
            yield
        finally:
            give_back()
