"""The tokens that a server knows. The truth is in memory; a store makes it last.

Operations: `lookup` for each peer that comes with a token, `tags`, `find` and `page` for an
admin who asks, `execute` for changes. Goals: a lookup that needs no await, so that finding a
token and attaching a session to it can't be torn apart by a revocation; a change that is
durable before anybody acts on it; bulk changes that wait for the disk once.

Plan: `execute` works out what the changes come to, has the store write that as one
transaction, and only then, without an await in between, changes memory and tells the
watchers, change by change. Cost: a lookup is an HMAC and a dict lookup, some microseconds
for any number of tokens; memory holds every record.

Refused: asking the database at each lookup (an await, a thread and a disk for each peer),
and changing memory first (a revocation that a crash takes back).
"""

import hmac
import logging
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Self, assert_never

import attrs
import trio

from mist.audience import NO_ATTRIBUTES, Attributes
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

if TYPE_CHECKING:
    from mist.auth import TokenStore

__all__ = ["MAX_TAGS", "Registry", "RegistryStatistics", "Watcher"]

MAX_TAGS = 1_000  # tags that one token may have in all


Watcher = Callable[[Record, Record | None], None]
"""Called as `watcher(old, new)` when a token has changed; `new` is None where it is gone."""

log = logging.getLogger("mist.auth")


@attrs.frozen
class RegistryStatistics:
    """Counts.

    Attributes:
        tokens: registered now.
        changes: that took effect, since the start.
        failed_writes: calls of `execute` that the store could not carry out, since the start.
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
        store: what makes it last. Belongs to the registry from now on.
        records: what the store holds. `open_registry` does both; a test may leave it out:
            `Registry(MemoryStore())`.
        max_tags: most tags that one token may get.
        clock: the time for `Record.created`, Unix seconds.
    """

    def __init__(
        self,
        store: "TokenStore",
        records: Iterable[Record] = (),
        *,
        max_tags: int = MAX_TAGS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._key = store.key
        self._records = {record.digest: record for record in records}
        self._digests = {record.id: digest for digest, record in self._records.items()}
        self._ids: list[str] | None = None  # in order; None where that has to be found again
        self._max_tags = max_tags
        self._clock = clock
        self._watchers: list[Watcher] = []
        self._changes = 0
        self._failed_writes = 0
        self._closed = False
        # From planning to announcing, changes have the registry for themselves: what one
        # call plans must still hold when it takes effect.
        self._lock = trio.Lock()
        # Of our own: a disk that hangs shall not use up the threads that others wait for.
        self._limiter = trio.CapacityLimiter(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.aclose()

    # questions

    def lookup(self, token: str) -> Record | None:
        """The record of the token that a peer presents; None for any text that is not one.

        Never awaits: whoever acts on the answer without an await of his own comes before a
        revocation, or after it, never around it. A record without tags lets nobody in;
        refusing it is the caller's affair.
        """
        digest = self._digest(token)
        record = None if digest is None else self._records.get(digest)
        if digest is None or record is None:
            return None
        # The dict has compared already, and in a time that depends on the digests. That gives
        # nothing away, since without the key nobody can choose a digest; the comparison in
        # constant time is for the day when the lookup is another.
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
        """The next records in the order of their ids. Ids are random, so that tells nothing.

        O(limit), and after changes once O(tokens): 25 ms for a million.

        Args:
            limit: most of them.
            after: an id; where it is gone, what would stand behind it comes all the same.
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
        exception of it is logged and goes no further. A token's registration is no change
        of one: nobody can have held it. `new` has the same `id` as `old`, or is None.
        """
        self._watchers.append(watcher)

    # changes

    async def execute(self, changes: Sequence[Change]) -> list[Outcome]:
        """Carry out changes in order: durable first, then known here, then announced.

        All are stored in one transaction, then take effect together, without a task switch
        between them; each is announced on its own, as if it had come alone. One that is
        refused doesn't stop the others. One that changes nothing writes and announces
        nothing.

        Tags, and names of attributes to unset, are taken as they are; whoever made the changes
        has checked them (`mist.message.parse_tags`, `mist.audience.parse_change`).

        Returns:
            An outcome for each change, in order. An unknown token is no error to
            `Unregister`, an unknown id is one to `Remove`. InvalidToken, TokenExists,
            TokenNotFound, TooManyTags (more than `max_tags` in all) and InvalidAudience (more
            attributes in all than there may be) are returned, not raised.

        Raises:
            RegistryUnavailable: the store failed. Nothing was changed, of any of them.

        Cancellation: none of it was done, or all of it. Once writing has begun the call runs
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
        # still lose tags, and be told again what it has.
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
                self._file(step)
            self._changes += 1
            if step.old is not None:
                self._announce(step.old, step.new)

    def _file(self, step: _Step) -> None:
        """Take note of an id that has come or gone."""
        if step.old is not None:
            del self._digests[step.old.id]
        if step.new is not None:
            self._digests[step.new.id] = step.digest
        self._ids = None

    def _announce(self, old: Record, new: Record | None) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher(old, new)
            except Exception:
                log.exception("a watcher of the token registry failed", extra={"token": old.id})

    # end

    async def aclose(self) -> None:
        """Close the store, once a change that is being written has taken effect.

        Idempotent, and done even where it is cancelled. Afterwards `lookup` answers as
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
        """What a token is known by; None for a text that can't be a token."""
        try:
            check_token(token)
        except InvalidToken:
            return None
        return hmac.digest(self._key, token.encode(), "sha256")


def _amended(old: Record, given: Attributes, unset: frozenset[str]) -> Outcome:
    try:
        return attrs.evolve(old, attributes=old.attributes.amended(given, unset))
    except InvalidAudience as error:
        return error.with_traceback(None)
