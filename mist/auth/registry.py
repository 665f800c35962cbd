"""The token registry: every token a server accepts, in memory, made durable by a store.

Operations: `lookup` for each peer that presents a token, `tags`, `find` and `page` for the
admin API, `execute` for changes. Goals: a lookup that needs no await, so that no revocation
can come between finding a token and attaching a session to it; a change that is durable before
anything acts on it; bulk changes that wait for the disk once.

Plan: `execute` works out what the changes come to and has the store write that as one
transaction; only then, without an await in between, it changes memory and calls the
watchers, change by change. Cost: a lookup is an HMAC and a dict lookup, some microseconds
for any number of tokens; memory holds every record.

Refused: asking the database at each lookup (an await, a thread and a disk for each peer),
and changing memory first (a revocation that a crash takes back).
"""

import hashlib
import hmac
import logging
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self, assert_never

import attrs
import trio

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth import TokenStore
from mist.auth.changes import Amend, ById, Change, Enroll, Outcome, Remove
from mist.auth.record import Record
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.errors import (
    CommandError,
    InvalidAudience,
    InvalidToken,
    RegistryUnavailable,
    TokenExists,
    TokenNotFound,
    TooManyTags,
)
from mist.message import TagSet, check_token

__all__ = ["MAX_TAGS", "Registry", "RegistryStatistics", "Watcher"]

MAX_TAGS: Final = 1_000  # tags that one token may have in all


Watcher = Callable[[Record, Record | None], None]
"""Called as `watcher(old, new)` when a token has changed; `new` is None where it was removed."""

log = logging.getLogger("mist.auth")


@attrs.frozen
class RegistryStatistics:
    """Counts.

    Attributes:
        tokens: registered now.
        changes: that took effect, since the start.
        failed_writes: calls of `execute` that the store failed, since the start.
    """

    tokens: int
    changes: int
    failed_writes: int


@attrs.frozen
class _Step:
    """One change that changes something."""

    digest: bytes
    old: Record | None
    new: Record | None


class Registry:
    """See the module. Also an async context manager that closes itself.

    Args:
        store: what makes it durable. The registry owns it from now on, and closes it.
        records: what the store holds. `open_registry` does both; a test may leave it out:
            `Registry(MemoryStore())`.
        max_tags: most tags that one token may get.
        clock: the time for `Record.created`, Unix seconds.
    """

    def __init__(
        self,
        store: TokenStore,
        records: Iterable[Record] = (),
        *,
        max_tags: int = MAX_TAGS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._hmac = _Hmac(store.key)
        self._records = {record.digest: record for record in records}
        self._digests = {record.id: digest for digest, record in self._records.items()}
        self._ids: list[str] | None = None  # sorted; None where they have to be sorted again
        self._max_tags = max_tags
        self._clock = clock
        self._watchers: list[Watcher] = []
        self._changes = 0
        self._failed_writes = 0
        self._closed = False
        # Held from planning to notifying: what one call plans must still hold when it takes
        # effect.
        self._lock = trio.Lock()
        # Of our own: a disk that hangs must not use up trio's shared threads.
        self._limiter = trio.CapacityLimiter(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.aclose()

    # lookups

    def lookup(self, token: str) -> Record | None:
        """The record of the token that a peer presents; None for any text that is not one.

        Never awaits: a caller that acts on the answer without an await of its own does so
        entirely before a revocation or entirely after it. A record without tags grants nothing;
        the caller has to refuse it.
        """
        digest = self._digest(token)
        record = None if digest is None else self._records.get(digest)
        if digest is None or record is None:
            return None
        # The dict has compared already, in a time that depends on the digests. That leaks
        # nothing, since nobody can choose a digest without the key; the comparison in constant
        # time keeps it so should the lookup change.
        return record if hmac.compare_digest(record.digest, digest) else None

    def tags(self, token: str) -> TagSet:
        """The tags of a token, which may be none.

        Raises:
            TokenNotFound: no such token.
        """
        return self._known(token).tags

    def attributes(self, token: str) -> Attributes:
        """The attributes of a token.

        Raises:
            TokenNotFound: no such token.
        """
        return self._known(token).attributes

    def _known(self, token: str) -> Record:
        record = self.lookup(token)
        if record is None:
            raise TokenNotFound
        return record

    def find(self, record_id: str) -> Record | None:
        """The record with this id; None where there is none."""
        digest = self._digests.get(record_id)
        return None if digest is None else self._records[digest]

    def page(self, limit: int, after: str = "") -> list[Record]:
        """The next records in the order of their ids. Ids are random, so the order means nothing.

        O(limit), and after changes once O(tokens): 25 ms for a million.

        Args:
            limit: most records returned.
            after: an id, which need not exist any more; records with greater ids follow.
        """
        if self._ids is None:
            self._ids = sorted(self._digests)
        start = bisect_right(self._ids, after)
        ids = self._ids[start : start + limit]
        return [self._records[self._digests[each]] for each in ids]

    def statistics(self) -> RegistryStatistics:
        """A frozen copy of the counts."""
        return RegistryStatistics(len(self._records), self._changes, self._failed_writes)

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher(old, new)` called for each change of a token, from now on.

        It runs inside the change, before anything else does, so it must not block. An
        exception it raises is logged and not passed on. A registration calls no watcher: nobody
        can have used the token yet. `new` has the same `id` as `old`, or is None.
        """
        self._watchers.append(watcher)

    # changes

    async def execute(self, changes: Sequence[Change]) -> list[Outcome]:
        """Apply changes in order: stored first, then in effect here, then told to watchers.

        All are stored in one transaction, then take effect together, without a task switch
        between them; watchers are called for each on its own. One that is refused doesn't stop
        the others. One that changes nothing writes nothing and calls no watcher.

        Tags, and names of attributes to unset, are taken as they are; the caller has
        checked them (`mist.message.parse_tags`, `mist.attributes.parse_change`).

        Returns:
            An outcome for each change, in order. An unknown token is no error to
            `Unregister`, an unknown id is one to `Remove`. InvalidToken, TokenExists,
            TokenNotFound, TooManyTags (more than `max_tags` in all) and InvalidAudience (more
            attributes in all than there may be) are returned, not raised.

        Raises:
            RegistryUnavailable: the store failed. Nothing was changed, of any of them.

        Cancellation: none of it is done, or all of it. Once writing has begun the call runs
        to its end, since memory and disk must agree.
        """
        async with self._lock:
            if self._closed:
                raise RegistryUnavailable
            outcomes, steps = self._plan(changes)
            with trio.CancelScope(shield=True):
                await self._persist(steps)
            self._apply(steps)
        return outcomes

    def _plan(self, changes: Sequence[Change]) -> tuple[list[Outcome], list[_Step]]:
        outcomes: list[Outcome] = []
        steps: list[_Step] = []
        planned: dict[bytes, Record | None] = {}
        unknown: CommandError
        for change in changes:
            if isinstance(change, ById):
                digest, unknown = self._digests.get(change.id), TokenNotFound()
            else:
                digest, unknown = self._digest(change.token), InvalidToken()
            if digest is None:
                outcomes.append(unknown)
                continue
            old = planned[digest] if digest in planned else self._records.get(digest)
            if isinstance(change, ById) and old is not None and old.id != change.id:
                old = None  # unregistered and registered anew before it
            outcome = self._outcome(change, digest, old)
            outcomes.append(outcome)
            if not isinstance(outcome, CommandError) and outcome != old:
                planned[digest] = outcome
                steps.append(_Step(digest, old, outcome))
        return outcomes, steps

    # Errors are returned rather than raised and caught: a raised one keeps its frames, and
    # they hold the token's text.
    def _outcome(self, change: Change, digest: bytes, old: Record | None) -> Outcome:
        match change:
            case Unregister():
                return None
            case Register(tags=tags):
                return TokenExists() if old is not None else self._new(digest, tags)
            case Enroll(tags=tags, attributes=given):
                return TokenExists() if old is not None else self._new(digest, tags, given)
            case AddTags(tags=tags):
                return TokenNotFound() if old is None else self._retagged(old, old.tags | tags)
            case RemoveTags(tags=tags):
                return TokenNotFound() if old is None else self._retagged(old, old.tags - tags)
            case SetAttributes(attributes=given, unset=unset):
                return TokenNotFound() if old is None else _amended(old, given, unset)
            case Amend(add=add, remove=remove, attributes=given, unset=unset):
                if old is None:
                    return TokenNotFound()
                new = self._retagged(old, (old.tags | add) - remove)
                return _amended(new, given, unset) if isinstance(new, Record) else new
            case Remove():
                return TokenNotFound() if old is None else None
            case _:
                assert_never(change)

    def _new(self, digest: bytes, tags: TagSet, attributes: Attributes = NO_ATTRIBUTES) -> Outcome:
        if len(tags) > self._max_tags:
            return TooManyTags(self._max_tags)
        return Record(secrets.token_hex(8), digest, tags, self._clock(), attributes)

    def _retagged(self, old: Record, tags: TagSet) -> Outcome:
        # Only growth is refused: where the limit was lowered, a token that is over it can
        # still lose tags, and be given again those it has.
        if len(tags) > max(self._max_tags, len(old.tags)):
            return TooManyTags(self._max_tags)
        return attrs.evolve(old, tags=tags)

    async def _persist(self, steps: list[_Step]) -> None:
        after = {step.digest: step.new for step in steps}  # the last step on a token counts
        changed = {
            digest: record
            for digest, record in after.items()
            if record != self._records.get(digest)
        }
        if not changed:
            return
        try:
            if self._store.blocking:
                await trio.to_thread.run_sync(self._store.write, changed, limiter=self._limiter)
            else:
                self._store.write(changed)
        except RegistryUnavailable as error:
            self._failed_writes += 1
            log.error(  # noqa: TRY400  # a full disk needs no traceback
                "token changes could not be stored", extra={"reason": str(error.__cause__)}
            )
            raise

    def _apply(self, steps: list[_Step]) -> None:
        for step in steps:
            if step.new is None:
                del self._records[step.digest]
            else:
                self._records[step.digest] = step.new
            if step.old is None or step.new is None:
                self._index_id(step)
            self._changes += 1
            if step.old is not None:
                self._notify(step.old, step.new)

    def _index_id(self, step: _Step) -> None:
        """Update the index of ids after a record was added or removed."""
        if step.old is not None:
            del self._digests[step.old.id]
        if step.new is not None:
            self._digests[step.new.id] = step.digest
        self._ids = None

    def _notify(self, old: Record, new: Record | None) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher(old, new)
            except Exception:
                log.exception("a watcher of the token registry failed", extra={"token": old.id})

    # closing

    async def aclose(self) -> None:
        """Close the store, after a change that is being written has taken effect.

        Idempotent; completes even when cancelled. Afterwards `lookup` answers as
        before, and changes are refused as RegistryUnavailable.
        """
        with trio.CancelScope(shield=True):
            async with self._lock:
                if self._closed:
                    return
                self._closed = True
                if self._store.blocking:
                    await trio.to_thread.run_sync(self._store.close, limiter=self._limiter)
                else:
                    self._store.close()

    def _digest(self, token: str) -> bytes | None:
        """The digest that a token is stored under; None for a text that can't be a token."""
        try:
            check_token(token)
        except InvalidToken:
            return None
        return self._hmac.digest(token.encode())


class _Hmac:
    """HMAC-SHA-256 (RFC 2104) under one key, whose part of the work is done once.

    `hmac.digest` sets up two hash functions, and hashes the key into both, for each message: that
    is more than half of its time for a token.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = hashlib.sha256().block_size
        if len(key) > block:
            key = hashlib.sha256(key).digest()
        key = key.ljust(block, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def digest(self, message: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


def _amended(old: Record, given: Attributes, unset: frozenset[str]) -> Outcome:
    try:
        return attrs.evolve(old, attributes=old.attributes.amended(given, unset))
    except InvalidAudience as error:
        return error.with_traceback(None)
