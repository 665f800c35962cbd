"""Finding the server that has a realm: the one that a URL names, or the one that others tell of.

What Sentinels and members of a cluster tell may be old by the time that a connection is open, or
come from one that is cut off itself. So the server that was found has to say that it is a master
(`pool`), what it has is confirmed by all nodes before it counts (`fence`), and a server that can't
be used is held against the one that told of it: another is asked next.
"""

import math
from abc import ABC, abstractmethod

import hiredis
import trio

from mist.engine.addresses import Address

__all__ = ["Discovery", "Fixed"]


class Discovery(ABC):
    """See the module. Any number of tasks may call any method.

    Attributes:
        reply_timeout: seconds for a reply, beside what the server was asked to wait; then it is
            looked where the realm is by now.
    """

    reply_timeout: float = math.inf

    def __init__(self) -> None:
        self._due = math.inf  # when to look whether it has moved, by trio's clock
        self._looking = trio.Lock()

    @abstractmethod
    async def find(self) -> Address:
        """The server that has the realm. The caller has a deadline.

        Raises:
            EngineUnavailable: nobody can tell.
        """

    def doubt(self) -> None:
        """What was found last can't be used."""

    def suspect(self) -> None:
        """What was found last may have been replaced: `moved` looks at once."""

    async def moved(self) -> bool:
        """Whether the realm is at another server than the one that was found last.

        Looks at times only, and for a short time: where it can't be known, all stays as it is.
        """
        if trio.current_time() < self._due:
            return False
        # All who come meanwhile wait: what they would ask of a server may be in vain.
        async with self._looking:
            return trio.current_time() >= self._due and await self._look()

    async def _look(self) -> bool:
        """Look whether it has moved, and say by `_due` when to look again."""
        self._due = math.inf
        return False

    def redirect(self, error: hiredis.ReplyError, asked: Address) -> float | None:
        """What an error says of where the realm is.

        Args:
            asked: the server that it is from.

        Returns:
            Seconds after which to ask again; None where it says nothing of that kind.
        """
        return None

    async def close(self) -> None:
        """Close connections. Idempotent."""


class Fixed(Discovery):
    """The server at an address, whichever it is."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address

    async def find(self) -> Address:
        return self._address
