"""`SharedRegistry`: tokens that several servers change, in a store that all of them follow.

Memory has all tokens at one version of the store, and takes in each later one in order: its own
writes when they return, those of others when `run`, or a task that needs them, asks for news.

Three bounds say how far behind it may be:

    a change       is planned on the version in memory and written only where that is still the
                   newest; else it is planned again. So changes are linearizable.
    a login        with a known token may use a memory that is `MAX_SILENCE` behind; without
                   contact for longer, logins are refused. An unknown token may have been registered
                   elsewhere a moment ago: the store is asked first, once for all logins that wait.
    a delivery     waits until memory has the version that the message is stamped with; see `reach`.

A session whose token is revoked elsewhere ends as one whose token is revoked here: by a watcher.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from mist.auth.changes import Change, Outcome
from mist.auth.coalescing import Coalesced
from mist.auth.codec import Codec
from mist.auth.planning import MAX_TAGS, Step, net_changes
from mist.auth.record import Record
from mist.auth.registry import Registry
from mist.auth.shared import (
    ForgottenVersion,
    SharedStore,
    StaleVersion,
    Update,
    Version,
    WrongKey,
)
from mist.errors import RegistryUnavailable, StartupError
from mist.outage import Outage

__all__ = ["MAX_SILENCE", "SharedRegistry"]

log = logging.getLogger("mist.auth")

MAX_SILENCE: Final = 1.0
"""Seconds without contact to the store after which logins are refused."""

_TIMEOUT: Final = 5.0  # seconds for a change
_WAIT: Final = 0.25  # seconds for news; several times before the silence is too long
_FIRST_DELAY: Final = 0.02  # seconds between two attempts; then twice as long each time, up to:
_LAST_DELAY: Final = 0.5
_INTERVAL: Final = 0.01  # seconds between two questions for the sake of unknown tokens
_AT_ONCE: Final = 500  # records that are read or made without a pause: some milliseconds

_Records = Mapping[bytes, Record | None]


class SharedRegistry(Registry):
    """See the module. Made by `open`; `run` has to be running.

    Args:
        store: which it has entered. The registry owns it from now on, and closes it.
        key: of the tokens' digests; the same at all servers.
        max_tags, clock: as for a `Registry`.
        timeout: seconds for which a change is tried.
    """

    def __init__(
        self,
        store: SharedStore,
        key: bytes,
        *,
        max_tags: int = MAX_TAGS,
        clock: Callable[[], float] = time.time,
        timeout: float = _TIMEOUT,
    ) -> None:
        super().__init__(key, max_tags=max_tags, clock=clock)
        self._store = store
        self._codec = Codec(key)
        self._timeout = timeout
        self._version = Version(0, "")
        self._contact = -math.inf  # when the store was last asked what it then answered
        self._asked = -math.inf  # when it was last asked, but for waiting
        self._closed = False
        self._outage = Outage(
            log, "the token registry can't be followed", "the token registry is followed again"
        )
        self._own: dict[str, _Records] = {}  # writes under way, by name
        self._writing = trio.Lock()
        self._loading = trio.Lock()
        self._ask = Coalesced(self._take_in_news)

    @classmethod
    async def open(
        cls,
        store: SharedStore,
        key: bytes,
        *,
        max_tags: int = MAX_TAGS,
        clock: Callable[[], float] = time.time,
        timeout: float = _TIMEOUT,
    ) -> "SharedRegistry":
        """A registry with all that a store holds. Closes the store where that fails.

        Raises:
            StartupError: one line that says why not.
        """
        registry = cls(store, key, max_tags=max_tags, clock=clock, timeout=timeout)
        try:
            await store.enter(registry._codec.fingerprint)
            await registry._load(registry._version)
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await store.aclose()
            if isinstance(error, WrongKey):
                raise StartupError(
                    "token registry: it was made with another key; all servers need the same "
                    "token key file"
                ) from None
            if isinstance(error, RegistryUnavailable):
                raise StartupError(f"token registry: {error.__cause__ or error}") from None
            raise
        return registry

    @property
    def version(self) -> Version:
        """The version of the store that memory has."""
        return self._version

    # how far behind it is

    @property
    def number(self) -> int:
        return self._version.number

    @property
    def silence(self) -> float:
        return max(0.0, trio.current_time() - self._contact)

    def check_contact(self) -> None:
        if self.silence > MAX_SILENCE:
            raise RegistryUnavailable

    async def refresh(self, token: str) -> None:
        if self._outage:
            self.check_contact()
        if self.silence > MAX_SILENCE:
            # This server may have stood still itself, or the store be slow: that is soon known.
            await self.sync()
        digest = self._hmac.of(token)
        known = None if digest is None else self._records.get(digest)
        if digest is None or (known is not None and known.tags and not known.expired(self.now())):
            return
        # Rate limit: any number of wrong tokens cause two questions in an interval at most, one
        # for the first, and one for all that came meanwhile.
        await trio.sleep_until(self._asked + _INTERVAL)
        await self.sync()

    async def sync(self) -> None:
        await self._ask()

    async def reach(self, number: int) -> None:
        # After one question memory is as recent as the record that has the number, whatever the
        # store's number is: it may have been restored from a backup.
        if self._version.number < number:
            await self.sync()

    async def run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                await self._take_in_news(_WAIT)
            except RegistryUnavailable as error:
                self._note_failure(error)
                await trio.sleep(delay)
                delay = min(2 * delay, _LAST_DELAY)
            else:
                delay = _FIRST_DELAY
                self._outage.end()

    def _note_failure(self, error: RegistryUnavailable) -> None:
        self._outage.note(str(error.__cause__ or error))

    # what others have written

    async def _take_in_news(self, wait: float = 0.0) -> None:
        while True:
            after, asked = self._version, trio.current_time()
            if not wait:
                self._asked = asked
            try:
                updates = await self._store.news(after, wait=wait)
            except ForgottenVersion:
                # What is loaded may be older than this call, where another task has begun it.
                await self._load(after)
            else:
                break
        await self._take_in(after, updates)
        self._contact = max(self._contact, asked)

    async def _take_in(self, after: Version, updates: Sequence[Update]) -> None:
        """Take in updates behind a version, unless memory has them by now."""
        read: list[tuple[Version, _Records]] = []
        for update in updates:
            own = self._own.get(update.version.write)
            read.append(
                (update.version, await self._decode(update.changes) if own is None else own)
            )
        # No await from here on. Meanwhile another task may have taken in some of them, or all of
        # another registry.
        versions = [after, *[version for version, _ in read]]
        if self._version in versions:
            for version, records in read[versions.index(self._version) :]:
                self._settle(version, records)

    async def _load(self, forgotten: Version) -> None:
        """Load all, where memory still has a version that the store can't tell the news of."""
        async with self._loading:
            if self._version != forgotten:
                return
            asked = trio.current_time()
            snapshot = await self._store.load()
            records = await self._decode(snapshot.values)
            # No await from here on.
            if self._version != forgotten:
                return
            if forgotten.number:
                log.warning("the token registry was loaded anew: its changes were not known")
            gone = dict.fromkeys(self._records.keys() - records.keys())
            self._settle(snapshot.version, {**gone, **records})
            self._contact = max(self._contact, asked)

    async def _decode(self, values: Mapping[bytes, bytes | None]) -> _Records:
        """Decode values to records.

        A damaged value counts as a removed token: it grants nothing, and the token may be
        registered again.
        """
        records: dict[bytes, Record | None] = {}
        damaged = 0
        for place, (digest, value) in enumerate(values.items(), 1):
            if place % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            try:
                records[digest] = None if value is None else self._codec.decode(digest, value)
            except ValueError:
                records[digest] = None
                damaged += 1
        if damaged:
            log.error(
                "tokens of the registry are damaged, and not accepted", extra={"tokens": damaged}
            )
        return records

    def _settle(self, version: Version, records: _Records) -> None:
        """Have memory be at a version, and tell watchers what is different."""
        self._version = version
        for digest, new in records.items():
            old = self._records.get(digest)
            if new == old:
                continue
            self._put(Step(digest, old, new))
            if old is not None:
                is_same = new is not None and new.id == old.id
                self._notify(old, new if is_same else None)

    # changes

    async def execute(self, changes: Sequence[Change]) -> list[Outcome]:
        """See `Registry.execute`. Watchers are called once for each token that is different.

        Takes a bounded time. Cancellation: none of it is done, or all of it.
        """
        with trio.move_on_after(self._timeout):
            try:
                async with self._writing:
                    return await self._execute(changes)
            except RegistryUnavailable as error:
                self._note_failed_write(str(error.__cause__ or error))
                raise
        self._note_failed_write(f"no answer in {self._timeout:g} s")
        raise RegistryUnavailable

    def _note_failed_write(self, reason: str) -> None:
        self._failed_writes += 1
        log.error("token changes could not be stored", extra={"reason": reason})

    async def _execute(self, changes: Sequence[Change]) -> list[Outcome]:
        is_recent = False
        while True:
            after = self._version
            outcomes, steps = self._planner.plan(changes, self._records, self._digests, self.now())
            changed = net_changes(steps, self._records)
            if not changed and is_recent:
                return outcomes
            if changed:
                try:
                    await self._write(changed, after)
                except StaleVersion:
                    pass
                else:
                    return outcomes
            # Nothing to write, or written elsewhere meanwhile: it takes what is there now.
            await self.sync()
            is_recent = True

    async def _write(self, changed: _Records, after: Version) -> None:
        """Write changes, again and again where there is no answer.

        Raises:
            StaleVersion: nothing was written.
        """
        name, values = secrets.token_hex(16), await self._encode(changed)
        delay = _FIRST_DELAY
        self._own[name] = changed
        try:
            while True:
                asked = trio.current_time()
                try:
                    version = await self._store.write(values, after, name)
                    break
                except RegistryUnavailable as error:
                    if self._closed:
                        raise
                    self._note_failure(error)
                await trio.sleep(delay)
                delay = min(2 * delay, _LAST_DELAY)
        finally:
            del self._own[name]
        if self._version == after:  # or else it was among the news
            self._settle(version, changed)
            self._contact = max(self._contact, asked)

    async def _encode(self, records: _Records) -> dict[bytes, bytes | None]:
        values: dict[bytes, bytes | None] = {}
        for place, (digest, record) in enumerate(records.items(), 1):
            if place % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            values[digest] = None if record is None else self._codec.encode(record)
        return values

    async def aclose(self) -> None:
        """See `Registry.aclose`. A change that is being written may be stored, or not."""
        self._closed = True
        with trio.CancelScope(shield=True):
            await self._store.aclose()
