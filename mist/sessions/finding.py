"""Finding sessions: by a text, in one of several orders, or by name.

    ConnectionQuery("10.0.0.", Order.QUEUED_BYTES)    whose outbox is fullest, of those addresses

A text is looked for in a session's name, transport and address, and in its token's id and name. All
is computed from sessions as they are, so there is no index to keep, and a look through all of them
costs their number.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec
import trio

from mist.sessions.session_table import ConnectedSession, SessionTable

__all__ = ["ALL", "ConnectionQuery", "Order", "find_session", "session_number"]

_SLICE: Final = 2_000  # names between two checkpoints, well below 1 ms


class Order(StrEnum):
    """In which order sessions are listed: by age, or those with the most first."""

    OLDEST = "oldest"
    NEWEST = "newest"
    QUEUED_BYTES = "queued_bytes"
    SENT = "sent"
    SENT_BYTES = "sent_bytes"
    DROPPED = "dropped"
    SUBSCRIPTIONS = "subscriptions"


_VALUES: Final[dict[Order, Callable[[ConnectedSession], int]]] = {
    Order.QUEUED_BYTES: lambda session: session.outbox.size,
    Order.SENT: lambda session: session.outbox.sent_messages,
    Order.SENT_BYTES: lambda session: session.outbox.sent_bytes,
    Order.DROPPED: lambda session: session.outbox.dropped_full + session.outbox.dropped_unframable,
    Order.SUBSCRIPTIONS: lambda session: (
        len(session.subscriptions) + len(session.named_subscriptions)
    ),
}


class ConnectionQuery(msgspec.Struct, frozen=True, array_like=True):
    """Which sessions are listed, and in which order.

    Attributes:
        search: a text that they contain, in whatever case; empty for all.
    """

    search: str = ""
    order: Order = Order.OLDEST

    @property
    def ascends(self) -> bool:
        """Whether the session with the lowest number is the first."""
        return self.order is Order.OLDEST

    @property
    def by_age(self) -> bool:
        """Whether a session's place is its number alone, so that it never changes."""
        return self.order not in _VALUES

    def matcher(self) -> Callable[[ConnectedSession], bool]:
        """What tells whether a session is one of those."""
        text = self.search.casefold()

        def matches(session: ConnectedSession) -> bool:
            if text in session.name or text in session.peer or text in session.transport:
                return True
            record = session.record
            return record is not None and (text in record.id or text in record.name.casefold())

        return matches if text else lambda session: True

    def placer(self) -> Callable[[ConnectedSession], tuple[int, str]]:
        """What tells the number and the text of a session's place.

        With equal numbers the older session comes first.
        """
        value = _VALUES.get(self.order)
        if value is None:
            return lambda session: (session_number(session), "")
        return lambda session: (value(session), f"{session_number(session):015}")


ALL: Final = ConnectionQuery()
"""All sessions, the oldest first."""


def session_number(session: ConnectedSession) -> int:
    """The number in a session's name: those that connect later have greater ones."""
    return int(session.name.rpartition("-")[2])


async def find_session(sessions: SessionTable, name: str) -> ConnectedSession | None:
    """The session of this name; None where there is none, or it has ended. O(sessions)."""
    found = None
    for number, session in enumerate(sessions):
        if session.name == name:
            found = session
            break
        if number % _SLICE == _SLICE - 1:
            await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    return None if found is None or found.ended is not None else found
