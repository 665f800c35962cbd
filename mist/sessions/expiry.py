"""Sessions that end at a given time: when their token expires.

One task for all of them, which sleeps until the first is due; where no session has such a time, it
waits for the first one, and nobody pays anything. What brings the time is the record that a session
adopts: `Record.expires`, whether the record is registered or was made for a credential that is
checked in another way. A session that adopts another record has that one's time.

Times are Unix seconds by `Hub.now`: the engine's clock where there is an engine. That clock may be
set: it is looked at every second while anything is due, however far.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from mist.auth.registry import Registry
from mist.change import Change
from mist.deadlines import Deadlines
from mist.errors import RegistryUnavailable
from mist.sessions.close_reason import TOKEN_EXPIRED
from mist.sessions.session_table import ConnectedSession

__all__ = ["SessionExpiry", "discard_expired_tokens"]

_AT_ONCE: Final = 50  # sessions that end without a pause
_LOOK: Final = 1.0  # seconds
_DISCARDING: Final = 30.0  # seconds between two looks at a registry, and up to twice as long


class SessionExpiry:
    """See the module.

    Args:
        now: Unix seconds.
        flush: sends what was queued for sessions.
    """

    __slots__ = ("_changed", "_deadlines", "_flush", "_now", "ended")

    def __init__(self, now: Callable[[], float], flush: Callable[[], object]) -> None:
        self._now = now
        self._flush = flush
        self._deadlines = Deadlines[ConnectedSession]()
        self._changed = Change()
        self.ended = 0
        """Sessions that ended since their token expired."""

    def __len__(self) -> int:
        """How many sessions have a time at which they end."""
        return len(self._deadlines)

    def set(self, session: ConnectedSession, at: float | None) -> None:
        """Have a session end at a time, in place of any other; None for no such time.

        Args:
            at: Unix seconds. One that has passed ends it in a moment.
        """
        if at is None:
            self._deadlines.remove(session)
        elif self._deadlines.set(session, at):
            self._changed.notify()

    def remove(self, session: ConnectedSession) -> None:
        """Forget a session, which has ended."""
        self._deadlines.remove(session)

    async def run(self) -> None:
        """End sessions in time, until cancelled."""
        while True:
            while (first := self._deadlines.first) is None:
                await self._changed.wait()
            if first > (now := self._now()):
                with trio.move_on_after(min(first - now, _LOOK)):
                    await self._changed.wait()
                continue
            while due := self._deadlines.due(self._now(), _AT_ONCE):
                for session in due:
                    session.end(TOKEN_EXPIRED)
                self.ended += len(due)
                self._flush()
                await trio.lowlevel.checkpoint()


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
