"""Which client ids are taken, and by whom.

A client chooses its id itself, so that messages can be addressed to one tab of a browser. While
it is connected, and for a while longer, the id belongs to the token that claimed it first: another
token that claims it is refused, or it would get what is meant for the first. An id is for routing
and no secret: a peer that has the token may claim its clients' ids.
"""

from collections.abc import Callable
from typing import Final

import attrs
import trio

from mist.attributes import Attributes
from mist.errors import ClientTaken

__all__ = ["ClientClaim", "Clients"]

_LINGER: Final = 60.0  # seconds; a client that polls is gone in between
_MOST_LINGERING: Final = 100_000  # ids; the oldest are let go before their time


@attrs.define
class _Claim:
    owner: str
    holders: int = 0
    until: float = 0.0  # on trio's clock, where nobody holds it


class Clients:
    """See the module.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._claims: dict[str, _Claim] = {}
        self._lingering: dict[str, None] = {}  # in the order of their ends
        self._clock = clock

    def __len__(self) -> int:
        return len(self._claims)

    def claim(self, client: str, owner: str) -> None:
        """Take an id, or take it once more. Undo it with `release`.

        Args:
            owner: registry id of a token; empty for services.

        Raises:
            ClientTaken: it is another's.
            InvalidAudience: it can't be an id.
        """
        Attributes(client=client)
        self._forget()
        claim = self._claims.get(client)
        if claim is None:
            claim = self._claims[client] = _Claim(owner)
        elif claim.owner != owner:
            raise ClientTaken
        self._lingering.pop(client, None)
        claim.holders += 1

    def release(self, client: str, owner: str) -> None:
        """Undo one `claim`; the id stays the owner's for a minute."""
        claim = self._claims.get(client)
        if claim is None or claim.owner != owner or not claim.holders:
            return
        claim.holders -= 1
        if not claim.holders:
            claim.until = self._clock() + _LINGER
            self._lingering[client] = None
            self._forget()

    def _forget(self) -> None:
        now = self._clock()
        while self._lingering:
            oldest = next(iter(self._lingering))
            if self._claims[oldest].until > now and len(self._lingering) <= _MOST_LINGERING:
                return
            del self._lingering[oldest]
            del self._claims[oldest]


class ClientClaim:
    """The client id of one session.

    Args:
        clients: which ids are taken.

    Attributes:
        id: empty for none.
    """

    __slots__ = ("_clients", "_owner", "_wanted", "id")

    def __init__(self, clients: Clients) -> None:
        self.id = ""
        self._clients = clients
        self._owner = ""
        self._wanted = ""

    @property
    def chosen(self) -> str | None:
        """The id that its peer chose, whether it has it yet or not; None for none."""
        return self._wanted or self.id or None

    def want(self, client: str) -> None:
        """Have `reclaim` claim this id, since its owner isn't known yet.

        Raises:
            InvalidAudience: it isn't valid.
        """
        self._wanted = Attributes(client=client).client

    def claim(self, client: str, owner: str) -> None:
        """Take an id, in place of any other; see `Clients.claim`."""
        self._clients.claim(client, owner)
        self.release()
        self.id, self._owner = client, owner

    def reclaim(self, owner: str) -> None:
        """Take the id that is wanted, or the one there is, for another owner.

        Raises:
            ClientTaken: it is another's; the session has none now.
        """
        client = self._wanted or self.id
        self._wanted = ""
        self.release()
        if client:
            self.claim(client, owner)

    def release(self) -> None:
        """Give the id up. Idempotent."""
        if self.id:
            self._clients.release(self.id, self._owner)
            self.id = ""
