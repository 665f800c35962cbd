"""The token registry: every token a server accepts, in memory.

Operations: `lookup` for each peer that presents a token, `tags`, `find` and `page` for the
admin API, `execute` for changes. Goals: a lookup that needs no await, so that no revocation
can come between finding a token and attaching a session to it; a change that is durable before
anything acts on it; bulk changes that wait for the disk once.

Two members make it durable:

    LocalRegistry     a store that this server has for itself; see `local`
    SharedRegistry    a store that other servers change, too; see `shared_registry`

Either works out what the changes come to (`planning`) and has the store write that as one
transaction; only then, without an await in between, it changes memory and calls the watchers.
Cost: a lookup is an HMAC and a dict lookup, some microseconds for any number of tokens; memory
holds every record.

Refused: asking the database at each lookup (an await, a thread and a disk for each peer),
and changing memory first (a revocation that a crash takes back).
"""

import hmac
import logging
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

import attrs
import trio

from mist.attributes import Attributes
from mist.auth.changes import Change, Discard, Outcome
from mist.auth.digests import Digests
from mist.auth.planning import MAX_TAGS, Planner, Step
from mist.auth.record import Record
from mist.deadlines import Deadlines
from mist.errors import TokenNotFound
from mist.message import TagSet

__all__ = ["KEPT_EXPIRED", "MAX_TAGS", "Registry", "RegistryStatistics", "Watcher"]


Watcher = Callable[[Record, Record | None], None]
"""Called as `watcher(old, new)` when a token has changed; `new` is None where it was removed."""

log = logging.getLogger("mist.auth")

KEPT_EXPIRED: Final = 600.0
"""Seconds for which an expired token is kept."""

_DISCARDED: Final = 200  # expired tokens removed in one write


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


class Registry(ABC):
    """See the module. Also an async context manager that closes itself.

    Args:
        key: of the tokens' digests, 32 bytes.
        records: what the store holds.
        max_tags: most tags that one token may get.
        clock: the time for `Record.created`, Unix seconds.

    Attributes:
        now: the time by which tokens expire, Unix seconds; `clock`, unless its owner sets it.
        expired: tokens that were removed since they had expired.
    """

    def __init__(
        self,
        key: bytes,
        records: Iterable[Record] = (),
        *,
        max_tags: int = MAX_TAGS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hmac = Digests(key)
        self._planner = Planner(self._hmac, max_tags, clock)
        self._records = {record.digest: record for record in records}
        self._digests = {record.id: digest for digest, record in self._records.items()}
        self._ids: list[str] | None = None  # sorted; None where they have to be sorted again
        self._watchers: list[Watcher] = []
        self._withheld_watchers: list[Callable[[Record], None]] = []
        # Digests of tokens that expire, by the time of day; and, once they have been found to have
        # expired, by trio's.
        self._expiring = Deadlines[bytes]()
        self._removals = Deadlines[bytes]()
        for record in self._records.values():
            if record.expires is not None:
                self._expiring.set(record.digest, record.expires)
        self.now = clock
        self.expired = 0
        self._changes = 0
        self._failed_writes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.aclose()

    # lookups

    def lookup(self, token: str) -> Record | None:
        """The record of the token that a peer presents; None for any text that is not one, and
        for one that has expired.

        Never awaits: a caller that acts on the answer without an await of its own does so
        entirely before a revocation or entirely after it. A record without tags grants nothing;
        the caller has to refuse it.

        Raises:
            RegistryUnavailable: see `check_contact`.
        """
        record = self._find(token)
        if record is not None and record.expires is not None and record.expires <= self.now():
            return None
        return record

    def _find(self, token: str) -> Record | None:
        """As `lookup`; also one that has expired and is not removed yet."""
        self.check_contact()
        digest = self._hmac.of(token)
        record = None if digest is None else self._records.get(digest)
        if digest is None or record is None:
            return None
        # The dict has compared already, in a time that depends on the digests. That leaks
        # nothing, since nobody can choose a digest without the key; the comparison in constant
        # time keeps it so should the lookup change.
        return record if hmac.compare_digest(record.digest, digest) else None

    def tags(self, token: str) -> TagSet:
        """The tags of a token, which may be none. See `known`.

        Raises:
            TokenNotFound: no such token.
            RegistryUnavailable: see `check_contact`.
        """
        return self._known(token).tags

    def attributes(self, token: str) -> Attributes:
        """The attributes of a token. See `known`.

        Raises:
            TokenNotFound: no such token.
            RegistryUnavailable: see `check_contact`.
        """
        return self._known(token).attributes

    def known(self, token: str) -> Record | None:
        """The record of the token with this text; or with this id, where none has that text. Also
        of one that has expired. For those who manage tokens, and never for a peer's credential.

        Raises:
            RegistryUnavailable: see `check_contact`.
        """
        return self._find(token) or self.find(token)

    def _known(self, token: str) -> Record:
        record = self.known(token)
        if record is None:
            raise TokenNotFound
        return record

    def find(self, record_id: str) -> Record | None:
        """The record with this id; None where there is none."""
        digest = self._digests.get(record_id)
        return None if digest is None else self._records[digest]

    @property
    def fingerprint(self) -> bytes:
        """Of the key of its digests; see `Digests.fingerprint`."""
        return self._hmac.fingerprint

    def derive(self, kind: str, value: str) -> bytes:
        """A digest under the key, which is no token's; the same at all servers that share it."""
        return self._hmac.derive(kind, value)

    def withheld(self, digest: bytes) -> Record | None:
        """The record under a digest if it grants nothing; see `mist.auth.revocations`."""
        record = self._records.get(digest)
        return None if record is None or record.tags else record

    def records(self) -> list[Record]:
        """All records as of now, in any order. O(tokens): 10 ms for a million."""
        return list(self._records.values())

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

    # other servers; there are none unless a member says otherwise

    @property
    def number(self) -> int:
        """Of the version that it has of what servers share; 0 where they share nothing."""
        return 0

    @property
    def silence(self) -> float:
        """Seconds for which it has not been known what other servers change."""
        return 0.0

    def check_contact(self) -> None:
        """Check that the registry is recent enough for a login.

        Raises:
            RegistryUnavailable: tokens may have been revoked since, and this server not told.
        """

    async def refresh(self, token: str) -> None:
        """Call it before the `lookup` for a login: a token that is not known here may have been
        registered at another server, and the store is asked.

        Many calls share one question. A known token costs no await.

        Raises:
            RegistryUnavailable: the store can't be asked.
        """

    async def sync(self) -> None:
        """Take in all that other servers had written before this call.

        Raises:
            RegistryUnavailable: the store can't be asked.
        """

    async def reach(self, number: int) -> None:
        """Take in what other servers had written, up to a version or the newest there is.

        Args:
            number: of the version, see `mist.auth.shared.Version`; 0 is before all.

        Raises:
            RegistryUnavailable: the store can't be asked.
        """

    async def run(self) -> None:
        """Follow what other servers change, until cancelled."""
        await trio.sleep_forever()

    # changes

    @abstractmethod
    async def execute(self, changes: Sequence[Change]) -> list[Outcome]:
        """Apply changes in order: stored first, then in effect here, then told to watchers.

        All are stored in one transaction, then take effect together, without a task switch
        between them. One that is refused doesn't stop the others. One that changes nothing writes
        nothing and calls no watcher.

        Tags, and names of attributes to unset, are taken as they are; the caller has
        checked them (`mist.message.parse_tags`, `mist.attributes.parse_change`).

        Returns:
            An outcome for each change, in order. An unknown token is no error to
            `Unregister`, an unknown id is one to `Remove`. InvalidToken, TokenExists,
            TokenNotFound, TooManyTags (more than `max_tags` in all) and InvalidAudience (more
            attributes in all than there may be) are returned, not raised.

        Raises:
            RegistryUnavailable: the store failed. Nothing was changed, of any of them; with a
                shared store, which may have failed after it wrote, all or nothing: `run` then
                brings it.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store.

        Idempotent; completes even when cancelled. Afterwards changes are refused as
        RegistryUnavailable.
        """

    # expiry

    async def discard_expired(self) -> None:
        """Remove tokens that have expired, some hundreds at a time.

        Nobody waits for it: an expired token is refused from its second on. So it is removed only
        when it was found expired `KEPT_EXPIRED` ago, by a clock that can't be set: the time of day
        may be years ahead for a moment, and what is removed doesn't come back. Where servers share
        their tokens, any of them does it.

        Raises:
            RegistryUnavailable: the store failed; a later call goes on.
        """
        steady = trio.current_time()
        while found := self._expiring.due(self.now(), _DISCARDED):
            for digest in found:
                self._removals.set(digest, steady + KEPT_EXPIRED)
            await trio.lowlevel.checkpoint()
        while due := self._removals.due(steady, _DISCARDED):
            records = [self._records[digest] for digest in due]
            try:
                outcomes = await self.execute([Discard(record.id) for record in records])
                self.expired += outcomes.count(None)
            finally:
                for digest in due:  # what is still there is due again
                    self._note_expiry(digest, self._records.get(digest))

    def _note_expiry(self, digest: bytes, record: Record | None) -> None:
        self._removals.remove(digest)
        if record is not None and record.expires is not None:
            self._expiring.set(digest, record.expires)
        else:
            self._expiring.remove(digest)

    # revocations of what was issued elsewhere

    def keep_revocations(self, seconds: float) -> None:
        """Change for how long revocations are kept from now on: as long as what is revoked may
        be good."""
        self._planner = attrs.evolve(self._planner, revocation_life=seconds)

    def watch_withheld(self, watcher: Callable[[Record], None]) -> None:
        """Have `watcher(record)` called for each record that comes to grant nothing, also a new
        one. As for `watch`."""
        self._withheld_watchers.append(watcher)

    def limit_tags(self, max_tags: int) -> None:
        """Change how many tags a token may get. Those that have more keep them."""
        self._planner = attrs.evolve(self._planner, max_tags=max_tags)

    def _put(self, step: Step) -> None:
        """Change memory, and count the change."""
        new = step.new
        if self._expiring or self._removals or (new is not None and new.expires is not None):
            self._note_expiry(step.digest, new)
        if step.new is None:
            del self._records[step.digest]
        else:
            self._records[step.digest] = step.new
        if step.old is None or step.new is None or step.old.id != step.new.id:
            if step.old is not None:
                del self._digests[step.old.id]
            if step.new is not None:
                self._digests[step.new.id] = step.digest
            self._ids = None
        self._changes += 1
        if step.new is not None and not step.new.tags:
            self._tell_withheld(step.new)

    def _tell_withheld(self, record: Record) -> None:
        for watcher in tuple(self._withheld_watchers):
            try:
                watcher(record)
            except Exception:
                log.exception("a watcher of revocations failed", extra={"token": record.id})

    def _notify(self, old: Record, new: Record | None) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher(old, new)
            except Exception:
                log.exception("a watcher of the token registry failed", extra={"token": old.id})
