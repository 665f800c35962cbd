"""Finding the server that has a realm: the one that a URL names, or the one that others tell of.

What Sentinels and members of a cluster tell may be old by the time that a connection is open, or
come from one that is cut off itself. So the server that was found has to say that it is a master
(`pool`), what it has is confirmed by all nodes before it counts (`fence`), and a server that can't
be used is held against the one that told of it: another is asked next.
"""

import math
from abc import ABC, abstractmethod

import hiredis

from mist.engine.redis.location import Address

__all__ = ["Discovery", "Fixed"]


class Discovery(ABC):
    """See the module. Any number of tasks may call any method.

    Attributes:
        reply_timeout: seconds for a reply, beside what the server was asked to wait; then it is
            looked where the realm is by now.
    """

    reply_timeout: float = math.inf

    @abstractmethod
    async def find(self) -> Address:
        """The server that has the realm. The caller has a deadline.

        Raises:
            EngineUnavailable: nobody can tell.
        """

    def doubt(self) -> None:
        """What was found last can't be used."""

    async def moved(self) -> bool:
        """Whether the realm is at another server than the one that was found last.

        Looks at times only, and for a short time: where it can't be known, all stays as it is.
        """
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
        self._address = address

    async def find(self) -> Address:
        return self._address
