"""One poll a client: a newer one ends those before, whose answers are not waited for any more."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mist.sessions.close_reason import CloseReason
from mist.sessions.session import Session

__all__ = ["SUPERSEDED", "Polls"]

SUPERSEDED: Final = CloseReason(1000, "another poll of this client")

Client = tuple[str, str]
"""The token's id, and the client id."""


class Polls:
    """The polls of all clients, one for each."""

    def __init__(self) -> None:
        self._newest: dict[Client, tuple[int, Session]] = {}

    def __len__(self) -> int:
        return len(self._newest)

    @contextmanager
    def only(self, client: Client, number: int, session: Session) -> Iterator[None]:
        """Have this be the client's only poll while the block runs.

        Of two the one with the lower number ends, as `SUPERSEDED`; of equal ones the older.
        """
        other = self._newest.get(client)
        if other is not None and other[0] > number:
            session.end(SUPERSEDED)
            yield
            return
        if other is not None:
            other[1].end(SUPERSEDED)
        self._newest[client] = number, session
        try:
            yield
        finally:
            if self._newest.get(client) == (number, session):
                del self._newest[client]
