"""Limits of a token: what all its sessions and requests may do together, at this server.

Three attributes, which a registered token and a JWT have alike:

    rate           requests, and published messages, a second
    bytes          received a second
    connections    sessions open at once

They are token buckets that hold two seconds' worth. What comes in one read of a session counts at
once: it passes while there is anything in the bucket, and the rest is owed. So the average holds,
and nothing has to be taken apart. At nodes each has buckets of its own.

The limits of a token go by the id of its record: a JWT's is that of its user. A token without these
attributes costs a look at its attributes when a session gets it, and nothing after that.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol
from weakref import WeakValueDictionary

import attrs
import trio

from mist.attributes import Attributes
from mist.auth import Record
from mist.auth.limits import LIMITS, limit_of
from mist.commands import Auth, Bye, Command, Hangup, Pause, Ping, Publish, Refused
from mist.errors import TooManyRequests
from mist.token_bucket import TokenBucket

__all__ = ["RETRY_CONNECTION", "Allowance", "LimitedSession", "SessionAllowance", "TokenLimits"]

RETRY_CONNECTION: Final = 5.0
"""Seconds after which a client may try again, where its token has too many connections."""

_BURST: Final = 2.0  # seconds' worth that may come at once
_KEPT: Final = 10_000  # allowances of tokens without a session, those used last
_REFUSED: Final = 1_000  # requests, less those that passed, after which a session ends
_FREE: Final = (Ping, Auth, Bye, Hangup, Pause)


class Allowance:
    """What is left of a token's limits.

    Args:
        attributes: of the token.
        now: seconds.

    Attributes:
        attributes: that it is for.
        connections: at once, at most.
    """

    __slots__ = ("__weakref__", "_bytes", "_requests", "attributes", "connections")

    def __init__(self, attributes: Attributes, now: float) -> None:
        self._requests: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self.change(attributes, now)

    def change(self, attributes: Attributes, now: float) -> None:
        """Have the limits of other attributes. What was owed stays so."""
        self.attributes = attributes
        self.connections = limit_of(attributes, "connections")
        self._requests = _bucket(limit_of(attributes, "rate"), 1.0, now, self._requests)
        self._bytes = _bucket(limit_of(attributes, "bytes"), 0.0, now, self._bytes)

    @property
    def limits_bytes(self) -> bool:
        """Whether bytes are limited."""
        return self._bytes is not None

    def over(self, now: float) -> float:
        """Seconds until more bytes may come; 0 where they may now."""
        return 0.0 if self._bytes is None else self._bytes.wait(now, 0.0)

    def receive(self, now: float, size: int) -> float:
        """Count bytes that were received.

        Returns:
            Seconds until more may come, where these were too much already; else 0.
        """
        bucket = self._bytes
        if bucket is None:
            return 0.0
        wait = bucket.wait(now, 0.0)
        bucket.take(size)
        return wait and bucket.wait(now, 0.0)  # they are owed, too: sooner it is too much again

    def request(self, now: float, count: int = 1, delay: float = 0.0) -> float:
        """Count requests that come together, unless they are refused.

        Args:
            count: of requests, or messages; all pass or none.
            delay: seconds for which they may be kept waiting instead.

        Returns:
            Seconds after which they may come; above `delay` they are refused.
        """
        bucket = self._requests
        if bucket is None:
            return 0.0
        wait = bucket.wait(now, 1.0)
        if wait <= delay:
            bucket.take(count)
        return wait


def _bucket(
    per_second: float, least: float, now: float, before: TokenBucket | None
) -> TokenBucket | None:
    if per_second == math.inf:
        return None
    burst = max(per_second * _BURST, least)
    if before is None:
        return TokenBucket(per_second, burst, now, burst)
    before.wait(now, 0.0)
    return TokenBucket(per_second, burst, now, min(burst, before.left))


@attrs.define(eq=False)
class SessionAllowance:
    """A session's part in the allowance of its token.

    Attributes:
        of_all: that of the token.
        refused: requests that were refused, less those that passed since.
    """

    of_all: Allowance
    refused: int = 0


class LimitedSession(Protocol):
    """A session that may have limits.

    Attributes:
        allowance: None where its token has none.
        record: of its token.
    """

    allowance: SessionAllowance | None
    record: Record | None


class TokenLimits:
    """The allowances of all tokens that have limits.

    Args:
        clock: seconds.

    Attributes:
        refusals: by the limit that was reached: `rate`, `bytes`, `connections`.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self.refusals: Counter[str] = Counter()
        self._clock = clock
        # Those in use, and beside them the last ones that were: a token whose sessions come and
        # go has no full bucket each time.
        self._all: WeakValueDictionary[str, Allowance] = WeakValueDictionary()
        self._recent: dict[str, Allowance] = {}

    def of(self, record: Record) -> Allowance | None:
        """The allowance of a token; None where it has no limits."""
        if not record.attributes.others or LIMITS.isdisjoint(record.attributes.others):
            return None
        found = self._all.get(record.id)
        if found is None:
            found = self._all[record.id] = Allowance(record.attributes, self._clock())
        elif found.attributes != record.attributes:
            found.change(record.attributes, self._clock())
        self._recent.pop(record.id, None)
        self._recent[record.id] = found
        if len(self._recent) > _KEPT:
            del self._recent[next(iter(self._recent))]
        return found

    def session(
        self, record: Record, before: SessionAllowance | None = None
    ) -> SessionAllowance | None:
        """The part of a session that has a token, or has another record of it, from now on.

        Args:
            before: that it had.
        """
        found = self.of(record)
        if found is None:
            return None
        return SessionAllowance(found, 0 if before is None else before.refused)

    def is_full(
        self, record: Record, count: Callable[[str], int], session: LimitedSession | None = None
    ) -> bool:
        """Whether a token has as many sessions as it may. Counts the refusal.

        Args:
            count: sessions of a token, by its id.
            session: one that may have the token already, and so is none more.
        """
        found = self.of(record)
        if found is None or found.connections == math.inf:
            return False
        if session is not None and session.record is not None and session.record.id == record.id:
            return False
        if count(record.id) < found.connections:
            return False
        self.refusals["connections"] += 1
        return True

    def request(self, record: Record, size: int, delay: float = 0.0) -> float:
        """Count a request that is no session's, unless it is refused.

        Args:
            size: bytes that it brings.
            delay: as in `Allowance.request`.

        Returns:
            As there.
        """
        found = self.of(record)
        if found is None:
            return 0.0
        now = self._clock()
        over = found.over(now)
        if over > delay:
            self.refusals["bytes"] += 1
            return over
        wait = found.request(now, 1, delay)
        if wait > delay:
            self.refusals["rate"] += 1
        else:
            found.receive(now, size)
        return max(over, wait)

    def charge(self, record: Record, count: int) -> None:
        """Count messages of a request that has passed, beside the one that it is."""
        found = self.of(record)
        if found is not None and count > 0:
            found.request(self._clock(), count, math.inf)

    def commands(
        self, session: LimitedSession, size: int, commands: Iterator[Command]
    ) -> Iterator[Command]:
        """The commands of a read, those refused that are more than a token may have.

        As with `commands`, each takes effect before what stands behind it is looked at.

        Args:
            session: that sent them; it may get another token on the way.
            size: bytes of the read.
        """
        part = session.allowance
        over = 0.0
        if part is not None and (over := part.of_all.receive(self._clock(), size)):
            self.refusals["bytes"] += 1
            part.refused += 1  # whatever comes in it
        for command in commands:
            part = session.allowance
            if part is None:
                yield command
                continue
            if part.refused > _REFUSED:
                yield Hangup("too many requests", 4429)
                return
            if isinstance(command, _FREE):
                yield command
                continue
            count = command.batch.count if isinstance(command, Publish) else 1
            wait = over or part.of_all.request(self._clock(), count)
            if wait:
                if not over:
                    self.refusals["rate"] += 1
                part.refused += 1
                yield Refused(command, TooManyRequests(wait))
            else:
                part.refused = max(0, part.refused - 1)
                yield command
