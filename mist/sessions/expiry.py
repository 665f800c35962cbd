"""Sessions that end at a given time: when their token expires, or what is known of it.

One task for all of them; where no session has such a time, nobody pays anything. What brings the
time is the record that a session adopts: `Record.expires`, whether the record is registered or was
made for a credential that is checked in another way. A session that adopts another record has that
one's time.

Times are Unix seconds by `Hub.now`: the engine's clock where there is an engine.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from mist.auth.issued import IssuedRecord
from mist.auth.record import Record
from mist.auth.registry import Registry
from mist.errors import RegistryUnavailable
from mist.schedule import Schedule
from mist.sessions.close_reason import REGISTRY_UNAVAILABLE, TOKEN_EXPIRED, CloseReason
from mist.sessions.session_table import ConnectedSession

__all__ = ["SessionExpiry", "discard_expired_tokens"]

_AT_ONCE: Final = 50  # sessions that end without a pause
_DISCARDING: Final = 30.0  # seconds between two looks at a registry, and up to twice as long


class SessionExpiry:
    """See the module.

    Args:
        now: Unix seconds.
        flush: sends what was queued for sessions.
    """

    __slots__ = ("_flush", "_schedule", "ended")

    def __init__(self, now: Callable[[], float], flush: Callable[[], object]) -> None:
        self._flush = flush
        self._schedule = Schedule[ConnectedSession](now)
        self.ended = 0
        """Sessions that ended since their token expired."""

    def __len__(self) -> int:
        """How many sessions have a time at which they end."""
        return len(self._schedule)

    def set(self, session: ConnectedSession, at: float | None) -> None:
        """Have a session end at a time, in place of any other; None for no such time.

        Args:
            at: Unix seconds. One that has passed ends it in a moment.
        """
        if at is None:
            self._schedule.remove(session)
        else:
            self._schedule.set(session, at)

    def remove(self, session: ConnectedSession) -> None:
        """Forget a session, which has ended."""
        self._schedule.remove(session)

    async def run(self) -> None:
        """End sessions in time, until cancelled."""
        while True:
            due = await self._schedule.due(_AT_ONCE)
            for session in due:
                session.end(_why(session.record))
            self.ended += len(due)
            self._flush()


def _why(record: Record | None) -> CloseReason:
    """Why a session ends whose record has expired."""
    if isinstance(record, IssuedRecord) and record.is_renewed:
        return REGISTRY_UNAVAILABLE
    return TOKEN_EXPIRED


async def discard_expired_tokens(registry: Registry, interval: float = _DISCARDING) -> None:
    """Remove expired tokens from a registry now and then, until cancelled.

    Servers that share their tokens all do so, at random times: mostly one of them finds all.

    Args:
        interval: seconds between two times, at least; at most twice as many.
    """
    while True:
        await trio.sleep(interval * (1.0 + random.random()))  # noqa: S311
        with suppress(RegistryUnavailable):  # which the registry has logged; the next time, then
            await registry.discard_expired()
