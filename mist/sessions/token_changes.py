"""Changes of tokens, as they reach the sessions: at once where that is little, else in turns.

A token that is changed may have thousands of sessions, or one with thousands of subscriptions;
to end them all takes a fifth of a second. So a change reaches one session after another: each has
its new record in one moment and from then on gets nothing new by the old one. What it is subscribed
to and may be no more ends in steps behind that. The first steps are done at once, which nearly
always is all of it.

Who answers for a change waits until all sessions of this server have it (`settled`). So what is
published after the answer reaches nobody by a right that was taken away; what is published before
it was under way at the same time.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import attrs
import trio

from mist.auth import Record
from mist.change import Change
from mist.sessions.close_reason import INTERNAL_ERROR
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.session_table import ConnectedSession
from mist.turns import Account

__all__ = ["TokenChanges"]

log = logging.getLogger("mist.hub")

_AT_ONCE: Final = 100  # steps, 1 ms where each ends a subscription


@attrs.define(eq=False)
class _UnderWay:
    """A change that has not reached all sessions yet."""

    steps: Iterator[None]
    done: trio.Event = attrs.field(factory=trio.Event)


class TokenChanges:
    """See the module.

    Args:
        flush_scheduler: sends what is queued for sessions.
    """

    def __init__(self, flush_scheduler: FlushScheduler) -> None:
        self._flush_scheduler = flush_scheduler
        self._under_way: dict[str, deque[_UnderWay]] = {}
        self._begun = Change()

    def give(
        self,
        token: str,
        sessions: Iterable[ConnectedSession],
        concerned: Callable[[ConnectedSession], bool],
        record: Callable[[], Record | None],
    ) -> None:
        """Give sessions another record, or end them.

        Args:
            token: see `begin`.
            sessions: which.
            concerned: whether one of them is, asked when it is its turn.
            record: what it gets; asked then, too. None ends it.
        """

        def steps() -> Iterator[None]:
            for session in sessions:
                if concerned(session):
                    try:
                        yield from session.token_changed(record())
                    except Exception:
                        log.exception("a session could not be given a changed token")
                        session.end(INTERNAL_ERROR)
                    yield

        self.begin(token, steps())

    def begin(self, token: str, steps: Iterator[None]) -> None:
        """Have a change reach the sessions, behind earlier ones of the same token.

        Args:
            token: its id, or another name for what changes.
            steps: that do it, 10 µs each. They should raise nothing.
        """
        queue = self._under_way.get(token)
        if queue is not None:
            queue.append(_UnderWay(steps))
            return
        done = 0
        for _ in islice(steps, _AT_ONCE):
            done += 1
        if done == _AT_ONCE:
            self._under_way[token] = deque([_UnderWay(steps)])
            self._begun.notify()
        self._flush_scheduler.flush()

    async def settled(self) -> None:
        """Wait until every change that has begun is done. No checkpoint where none is left."""
        for queue in list(self._under_way.values()):
            for each in list(queue):
                await each.done.wait()

    async def run(self) -> None:
        """Do what wasn't done at once, until cancelled."""
        # Not the account of the token's holder, who could put it off by keeping the loop busy.
        account = Account()
        while True:
            while not self._under_way:
                await self._begun.wait()
            for token in list(self._under_way):
                await self._flush_scheduler.work(self._next_of(token), account)
                self._flush_scheduler.flush()

    def _next_of(self, token: str) -> Iterator[None]:
        """The rest of the oldest change of a token."""
        queue = self._under_way[token]
        try:
            yield from queue[0].steps
        except Exception:
            log.exception("a token's change has not reached all its sessions")
        queue.popleft().done.set()
        if not queue:
            del self._under_way[token]
