"""Keys: what tells a repeated publication from a new one.

A publisher that has lost an answer asks again with the same key. It is kept with what the first
attempt came to, in the log and by the same append, so that a crash leaves both or neither; or
in memory where there is no log.

    Key         what a publication is marked with
    Kept        what is known of one afterwards
    Keys        those kept in memory; `KeysInMemory` is all there is where no log is
    Repeats     carries a publication out once, however often it is asked for, also at once

So many keys are kept of each owner, and so many in all: one who is busy loses the oldest of
their own, long before others lose any.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

import attrs
import trio

from mist.errors import HistoryUnavailable
from mist.history import History
from mist.history.record import Key, KeyRecord

__all__ = [
    "KEY_SECONDS",
    "MAX_KEYS",
    "MAX_KEYS_OF_OWNER",
    "OWNER_BYTES",
    "KeyRecords",
    "KeysInFlight",
    "KeysInMemory",
    "key_name",
]

KEY_SECONDS: Final = 24 * 3600.0  # for which a key is kept
MAX_KEYS_OF_OWNER: Final = 100_000  # kept of one owner; beyond that its oldest go early
MAX_KEYS: Final = 400_000  # kept in all, likewise
OWNER_BYTES: Final = 8  # of a key's name, with which all names of one owner begin
_STEP: Final = 1_000  # keys forgotten at a time


def key_name(owner: str, key: str) -> bytes:
    """What stands for somebody's key.

    Args:
        owner: whose it is: a credential, or all who are bounded together.
        key: as given; two owners may use the same.
    """
    whose = hashlib.sha256(owner.encode()).digest()
    # Of both, and not of the key alone: where two owners should have the same beginning, they
    # share a bound and nothing else.
    which = hashlib.sha256(whose + key.encode()).digest()
    return whose[:OWNER_BYTES] + which[: 32 - OWNER_BYTES]


class KeyRecords:
    """Keys in memory, oldest first. Their `first` ascends."""

    def __init__(self) -> None:
        self._kept: dict[bytes, KeyRecord] = {}
        self._by_owner: dict[bytes, dict[bytes, None]] = {}  # names, oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: KeyRecord) -> None:
        """Keep one, in the place of an older one of that name."""
        if kept.name in self._kept:
            self._drop(kept.name)  # so that it stands last
        self._kept[kept.name] = kept
        self._by_owner.setdefault(kept.name[:OWNER_BYTES], {})[kept.name] = None

    def get(self, name: bytes) -> KeyRecord | None:
        """The one with that name."""
        return self._kept.get(name)

    def outdated(self, before: int, most: int, step: int) -> int:
        """See `BlockStore.outdated`."""
        excess = len(self._kept) - most
        upto = 0
        for place, kept in enumerate(islice(self._kept.values(), step)):
            if kept.time >= before and place >= excess:
                break
            upto = kept.first
        return upto

    def crowding(self, most: int, step: int) -> tuple[bytes, int] | None:
        """See `BlockStore.crowding`. O(owners), where there are more than `most` keys."""
        if len(self._kept) <= most:
            return None
        for owner, names in self._by_owner.items():
            if len(names) > most:
                return owner, self._excess(names, most, step)
        return None

    def crowding_of(self, name: bytes, most: int) -> tuple[bytes, int] | None:
        """The same for the owner of the key with this name."""
        owner = name[:OWNER_BYTES]
        names = self._by_owner.get(owner, {})
        return (owner, self._excess(names, most, _STEP)) if len(names) > most else None

    def forget(self, upto: int, owner: bytes = b"") -> None:
        """See `BlockStore.forget`."""
        names = self._by_owner.get(owner, {}) if owner else self._kept
        while names:
            name = next(iter(names))
            if self._kept[name].first > upto:
                break
            self._drop(name)

    def _excess(self, names: dict[bytes, None], most: int, step: int) -> int:
        last = min(len(names) - most, step) - 1
        return self._kept[next(islice(names, last, None))].first

    def _drop(self, name: bytes) -> None:
        del self._kept[name]
        owner = name[:OWNER_BYTES]
        names = self._by_owner[owner]
        del names[name]
        if not names:
            del self._by_owner[owner]


@attrs.define
class _Attempt:
    digest: bytes
    done: trio.Event = attrs.field(factory=trio.Event)
    first: int | None = None
    error: Exception | None = None


class KeysInMemory:
    """Carries out what has a key once, where there is no history: for as long as the process.

    Args:
        clock: Unix seconds.
        most, most_of_owner: keys that are kept.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        most: int = MAX_KEYS,
        most_of_owner: int = MAX_KEYS_OF_OWNER,
    ) -> None:
        self._clock = clock
        self._most = most
        self._most_of_owner = most_of_owner
        self._keys = KeyRecords()
        self._count = 0

    def once(self, key: Key, publish: Callable[[], object]) -> bool:
        """Publish, unless that was done within the last day.

        Args:
            publish: what it raises is passed on, and the next one to ask tries again.

        Returns:
            False where the key was used for another publication.
        """
        now = self._clock()
        oldest = round((now - KEY_SECONDS) * 1_000_000)
        self._keys.forget(self._keys.outdated(oldest, self._most, _STEP))
        kept = self._keys.get(key.name)
        if kept is not None and kept.time >= oldest:
            return kept.digest == key.digest
        publish()
        self._count += 1
        self._keys.add(KeyRecord(self._count, round(now * 1_000_000), key.name, key.digest))
        crowding = self._keys.crowding_of(key.name, self._most_of_owner)
        if crowding is not None:
            owner, upto = crowding
            self._keys.forget(upto, owner)
        self._keys.forget(self._keys.outdated(oldest, self._most, _STEP))
        return True


class KeysInFlight:
    """See the module.

    Args:
        history: where the keys are kept.
        start_soon: runs a task that outlives whoever asked. A publication that is on its way
            is stored although its publisher has gone, and its repeat has to know of it.
        clock: Unix seconds.
    """

    def __init__(
        self,
        history: History,
        start_soon: Callable[[Callable[[], Awaitable[None]]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._history = history
        self._start_soon = start_soon
        self._clock = clock
        self._underway: dict[bytes, _Attempt] = {}

    async def once(self, key: Key, store: Callable[[], Awaitable[int]]) -> int | None:
        """Store a publication unless that was done within the last day.

        Args:
            store: marks it with the key, and returns the first id. What it raises is passed on,
                and the next one to ask tries again.

        Returns:
            The id of its first message; None where the key was used for another publication.

        Raises:
            HistoryUnavailable: nobody can tell whether it was done.
        """
        while (attempt := self._underway.get(key.name)) is not None:
            if attempt.digest != key.digest:
                return None
            await attempt.done.wait()
            if attempt.first is not None:
                return attempt.first
        attempt = self._underway[key.name] = _Attempt(key.digest)

        async def run() -> None:
            try:
                kept = await self._recall(key.name)
                if kept is None:
                    attempt.first = await store()
                else:
                    attempt.digest, attempt.first = kept.digest, kept.first
            except Exception as error:
                attempt.error = error  # for the one who asked
            finally:
                if attempt.first is None and attempt.error is None:  # cancelled: the end of all
                    attempt.error = HistoryUnavailable()
                del self._underway[key.name]
                attempt.done.set()

        self._start_soon(run)
        await attempt.done.wait()
        if attempt.error is not None:
            raise attempt.error
        return attempt.first if attempt.digest == key.digest else None

    async def _recall(self, name: bytes) -> KeyRecord | None:
        kept = await self._history.recall(name)
        if kept is None or kept.time < (self._clock() - KEY_SECONDS) * 1_000_000:
            return None
        return kept
