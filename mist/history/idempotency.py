"""Idempotency: a publication is done once, however often it is asked for.

A publisher that has lost an answer asks again with the same key. The key is stored with what the
first attempt came to, in the log and by the same append, so that a crash leaves both or neither;
or in memory where there is no log. With the key stands a digest of what was published: the same
key with something else is a conflict, whether the first is stored or still in flight.

    Key, KeyRecord  what marks a publication, and what is known of it afterwards
    KeyRecords      records in memory
    KeysInMemory    once, where there is no log
    KeysInFlight    once, where there is: a repeat waits for an attempt that is in flight
    KeyUsed         where two attempts are in flight at two nodes: the second was left out

So many records are kept of each owner, and so many in all: an owner who publishes much loses its
own oldest, long before others lose any.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Final

import attrs

from mist.change import Change
from mist.errors import HistoryUnavailable, MistError
from mist.history import History
from mist.history.record import KEY_SECONDS, Key, KeyRecord

__all__ = [
    "KEY_SECONDS",
    "MAX_KEYS",
    "MAX_KEYS_OF_OWNER",
    "OWNER_BYTES",
    "KeyRecords",
    "KeyUsed",
    "KeysInFlight",
    "KeysInMemory",
    "key_name",
]

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


class KeyUsed(MistError):
    """A publication was not stored, since its key was known by the time it was its turn.

    Attributes:
        record: of the one that was stored under that key.
    """

    code = "key_used"
    message = "The key was used for another publication"

    def __init__(self, record: KeyRecord) -> None:
        super().__init__()
        self.record = record


class KeyRecords:
    """Keys in memory, oldest first. Their `first` ascends."""

    def __init__(self) -> None:
        self._records: dict[bytes, KeyRecord] = {}
        self._by_owner: dict[bytes, dict[bytes, None]] = {}  # names, oldest first

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: KeyRecord) -> None:
        """Keep one, in the place of an older one of that name."""
        if record.name in self._records:
            self._drop(record.name)  # so that it stands last
        self._records[record.name] = record
        self._by_owner.setdefault(record.name[:OWNER_BYTES], {})[record.name] = None

    def copy(self) -> "KeyRecords":
        """A copy."""
        copy = KeyRecords()
        copy._records = self._records.copy()
        copy._by_owner = {owner: names.copy() for owner, names in self._by_owner.items()}
        return copy

    def above(self, first: int, limit: int) -> list[KeyRecord]:
        """The first `limit` records whose `first` is higher. O(records)."""
        return list(islice((each for each in self._records.values() if each.first > first), limit))

    def get(self, name: bytes) -> KeyRecord | None:
        """The one with that name."""
        return self._records.get(name)

    def outdated(self, before: int, most: int, step: int) -> int:
        """See `BlockStore.outdated`."""
        excess = len(self._records) - most
        upto = 0
        for place, record in enumerate(islice(self._records.values(), step)):
            if record.time >= before and place >= excess:
                break
            upto = record.first
        return upto

    def crowding(self, most: int, step: int) -> tuple[bytes, int] | None:
        """See `BlockStore.crowding`. O(owners), where there are more than `most` keys."""
        if len(self._records) <= most:
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
        names = self._by_owner.get(owner, {}) if owner else self._records
        while names:
            name = next(iter(names))
            if self._records[name].first > upto:
                break
            self._drop(name)

    def _excess(self, names: dict[bytes, None], most: int, step: int) -> int:
        last = min(len(names) - most, step) - 1
        return self._records[next(islice(names, last, None))].first

    def _drop(self, name: bytes) -> None:
        del self._records[name]
        owner = name[:OWNER_BYTES]
        names = self._by_owner[owner]
        del names[name]
        if not names:
            del self._by_owner[owner]


@attrs.define
class _Attempt:
    """A publication in flight.

    Attributes:
        digest: of what is stored under its key, or is being stored; None until the log was asked.
        done: whether there is an outcome.
        first, error: the outcome, one of them.
        changed: notified of each step.
    """

    digest: bytes | None = None
    done: bool = False
    first: int | None = None
    error: Exception | None = None
    changed: Change = attrs.field(factory=Change)


class KeysInMemory:
    """Publishes once what has a key, where there is no history: for as long as the process lives.

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
        record = self._keys.get(key.name)
        if record is not None and record.time >= oldest:
            return record.digest == key.digest
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
    """Stores once what has a key, also where it is asked for several times at once.

    Args:
        history: where the records are kept.
        start_soon: runs a task that outlives the request. A publication that is in flight
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
        self._in_flight: dict[bytes, _Attempt] = {}

    async def once(self, key: Key, store: Callable[[], Awaitable[int]]) -> int | None:
        """Store a publication unless that was done within the last day.

        Cancelled, it is stored all the same.

        Args:
            store: marks it with the key, and returns the first id. What it raises is passed on,
                and the next one to ask tries again.

        Returns:
            The id of its first message; None where the key was used for another publication.

        Raises:
            HistoryUnavailable: nobody can tell whether it was done.
        """
        while (attempt := self._in_flight.get(key.name)) is not None:
            # First what the log has under the key: it may be what this one asks for, though
            # the attempt is another.
            while attempt.digest is None and not attempt.done:
                await attempt.changed.wait()
            while attempt.digest == key.digest and not attempt.done:
                await attempt.changed.wait()
            if not attempt.done or attempt.first is not None:
                return attempt.first if attempt.digest == key.digest else None
        attempt = _Attempt()
        self._start_soon(partial(self._run, attempt, key, store))
        self._in_flight[key.name] = attempt
        while not attempt.done:
            await attempt.changed.wait()
        if attempt.error is not None:
            raise attempt.error
        return attempt.first if attempt.digest == key.digest else None

    async def _run(self, attempt: _Attempt, key: Key, store: Callable[[], Awaitable[int]]) -> None:
        try:
            record = await self._recall(key.name)
            if record is None:
                attempt.digest = key.digest
                attempt.changed.notify()
                attempt.first = await store()
            else:
                attempt.digest, attempt.first = record.digest, record.first
        except KeyUsed as error:  # meanwhile, at another node
            attempt.digest, attempt.first = error.record.digest, error.record.first
        except Exception as error:
            attempt.error = error  # for the one who asked
        finally:
            if attempt.first is None and attempt.error is None:  # cancelled: the server stops
                attempt.error = HistoryUnavailable()
            attempt.done = True
            del self._in_flight[key.name]
            attempt.changed.notify()

    async def _recall(self, name: bytes) -> KeyRecord | None:
        record = await self._history.recall(name)
        if record is None or record.time < (self._clock() - KEY_SECONDS) * 1_000_000:
            return None
        return record
