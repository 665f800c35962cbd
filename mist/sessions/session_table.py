"""The session table: which sessions there are, and which of them a token has.

A session enters as pending while its peer has yet to authenticate, is attached once it may
subscribe and publish, and leaves with `detach`; its counts stay in the totals. Nothing here
awaits, so a token is looked up and its session attached without a gap for a revocation to fall
into.

The table and all who list sessions know them as `ConnectedSession`; what more there is to a
session stands above, in `mist.sessions.base_session`.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from mist.attributes import Attributes
from mist.auth import Record
from mist.auth.issued import IssuedRecord
from mist.broker.outbox import Outbox
from mist.sessions.close_reason import CloseReason
from mist.sessions.subscriptions import NamedSubscriptionSet, Quota, SubscriptionSet

__all__ = ["ConnectedSession", "SessionEvents", "SessionTable"]

_Key = TypeVar("_Key")

_CROWDED_OUT: Final = CloseReason(4429, "too many unauthenticated connections")


class ConnectedSession(Protocol):
    """A session, as the table and those who list sessions know it.

    Attributes:
        name: of its own, for logs: `tcp-17`.
        transport: the listener's kind, for logs and counts: `tcp`, `ws`.
        peer: the peer's address, for logs.
        since: when the peer connected, Unix seconds.
        record: the token's registry record; None for services.
        ended: None while the session lives.
        handling: whether it is at commands that its peer sent.
    """

    name: str
    transport: str
    peer: str
    since: float
    record: Record | None
    outbox: Outbox
    subscriptions: SubscriptionSet
    named_subscriptions: NamedSubscriptionSet
    ended: CloseReason | None
    handling: bool

    @property
    def attributes(self) -> Attributes:
        """What an audience chooses by."""

    def end(self, reason: CloseReason) -> None:
        """End the session; nothing happens where it has ended."""

    def token_changed(self, record: Record | None) -> Iterator[None]:
        """The session's token has changed; None where it is revoked. In steps."""


class SessionEvents(Protocol):
    """Who is told of sessions that begin; see `mist.sessions.events`."""

    def connected(self, session: ConnectedSession) -> None:
        """A session has begun."""


class SessionTable:
    """See the module. Iteration gives every attached session, oldest first, as of then.

    Args:
        unauthenticated: sessions that may be pending at once.

    Attributes:
        unauthenticated: as given; may be changed.
        transports: those that there may be sessions of, at the listeners that there are.
        accepted, refused: sessions and connections, by transport; of `http`, whose requests are
            no sessions, refused ones only.
        connections: sessions attached now, by transport.
        close_codes: sessions that ended, by code.
        events: told of sessions that begin; None where nobody asks.
        gone_messages, gone_bytes: delivered to sessions that are gone, by transport.
    """

    def __init__(self, unauthenticated: int) -> None:
        self.transports: set[str] = set()
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.connections: Counter[str] = Counter()
        self.close_codes: Counter[int] = Counter()
        self.gone_messages: Counter[str] = Counter()
        self.gone_bytes: Counter[str] = Counter()
        self.unauthenticated = unauthenticated
        self.events: SessionEvents | None = None
        self._pending: dict[ConnectedSession, None] = {}
        self._attached: dict[ConnectedSession, None] = {}
        self._by_token: dict[str, dict[ConnectedSession, None]] = {}
        self._by_mark: dict[bytes, dict[ConnectedSession, None]] = {}
        self._quotas: WeakValueDictionary[str, Quota] = WeakValueDictionary()
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[ConnectedSession]:
        return iter(list(self._attached))

    def __contains__(self, session: object) -> bool:
        """Whether a session is attached."""
        return session in self._attached

    @property
    def connected(self) -> int:
        """Sessions attached now."""
        return len(self._attached)

    @property
    def pending(self) -> list[ConnectedSession]:
        """Sessions whose peers have yet to authenticate, oldest first, attached or not."""
        return list(self._pending)

    @property
    def lifetime(self) -> int:
        """Sessions ever attached."""
        return self.accepted.total()

    def new_name(self, transport: str) -> str:
        """A name for a new session, for logs: `tcp-17`."""
        return f"{transport}-{next(self._numbers)}"

    def add_pending(self, session: ConnectedSession) -> None:
        """Enter a session whose peer has yet to authenticate.

        Beyond the limit the oldest of them ends, not the newest: an honest peer authenticates
        within a round trip, so a flood of silent ones can't lock it out.
        """
        self._pending[session] = None
        if len(self._pending) > self.unauthenticated:
            oldest = next(iter(self._pending))
            self.remove_pending(oldest)
            oldest.end(_CROWDED_OUT)

    def remove_pending(self, session: ConnectedSession) -> None:
        """Undo `add_pending`: the peer has authenticated, or is gone."""
        self._pending.pop(session, None)

    def attach(self, session: ConnectedSession) -> None:
        """Count a session in, and list it with its token, if it has one."""
        if session not in self._attached:
            self._attached[session] = None
            self.accepted[session.transport] += 1
            self.connections[session.transport] += 1
            if self.events is not None:
                self.events.connected(session)
        record = session.record
        if record is not None:
            self._by_token.setdefault(record.id, {})[session] = None
            if isinstance(record, IssuedRecord):
                for mark in record.marks:
                    self._by_mark.setdefault(mark, {})[session] = None

    def detach_token(self, session: ConnectedSession) -> None:
        """Undo the token's part of `attach`, before the session gets another token."""
        if session.record is None:
            return
        _remove(self._by_token, session.record.id, session)
        if isinstance(session.record, IssuedRecord):
            for mark in session.record.marks:
                _remove(self._by_mark, mark, session)

    def detach(self, session: ConnectedSession) -> None:
        """Undo `attach`, keeping the session's counts."""
        if session not in self._attached:
            return
        del self._attached[session]
        self.connections[session.transport] -= 1
        self.detach_token(session)
        outbox = session.outbox
        self.gone_messages[session.transport] += outbox.sent_messages
        self.gone_bytes[session.transport] += outbox.sent_bytes

    def quota(self, token: str) -> Quota:
        """What the subscriptions of a token's sessions count against.

        Args:
            token: its registry id.
        """
        quota = self._quotas.get(token)
        if quota is None:
            quota = self._quotas[token] = Quota()
        return quota

    def count(self, token: str) -> int:
        """How many sessions of a token there are, those that are just ending included. O(1).

        Args:
            token: its registry id.
        """
        return len(self._by_token.get(token, ()))

    def of_token(self, token: str) -> list[ConnectedSession]:
        """The sessions of a token, oldest first.

        Args:
            token: its registry id.
        """
        return list(self._by_token.get(token, ()))

    def marked(self, mark: bytes) -> list[ConnectedSession]:
        """The sessions whose credential may be revoked under a digest, oldest first.

        Args:
            mark: see `mist.auth.issued.IssuedRecord`.
        """
        return list(self._by_mark.get(mark, ()))

    def delivered(self) -> tuple[int, int]:
        """Messages and bytes handed to the kernel since the start, all sessions. O(sessions)."""
        live = [session.outbox.statistics() for session in self._attached]
        return (
            self.gone_messages.total() + sum(each.sent for each in live),
            self.gone_bytes.total() + sum(each.sent_bytes for each in live),
        )


def _remove(
    table: dict[_Key, dict[ConnectedSession, None]], key: _Key, session: ConnectedSession
) -> None:
    sessions = table.get(key, {})
    sessions.pop(session, None)
    if not sessions:
        table.pop(key, None)
