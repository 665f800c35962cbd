"""Tokens: who may subscribe to what, known at once and kept for good.

    Registry        the tokens. The truth, in memory; see `registry`
    Record, Grant   one token; what its tags allow
    Change          what can be done to one; see `changes`
    TokenStore      the contract of what makes the registry last, and its members:
                    memory://                     lasts as long as the process
                    sqlite:///relative.db         a file, and a key file beside it
                    sqlite:////absolute.db

A store answers no question while the server runs: it is read once at the start, and
written before each change. So a member has four short methods, and a slow or failing one
costs changes, never a lookup.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

import trio

from mist.auth.changes import Amend, Change, Enroll, Outcome, Remove
from mist.auth.grant import Grant
from mist.auth.record import Record
from mist.auth.registry import MAX_TAGS, Registry, RegistryStatistics
from mist.errors import StartupError

__all__ = [
    "MAX_TAGS",
    "Amend",
    "Change",
    "Enroll",
    "Grant",
    "Outcome",
    "Record",
    "Registry",
    "RegistryStatistics",
    "Remove",
    "TokenStore",
    "open_registry",
    "open_store",
]


class TokenStore(ABC):
    """What a registry's records are kept in.

    Used by one thread at a time, though not always by the same one. One process at a time
    may have a store open, since the registry's truth is in that process's memory; a member
    that others can reach has to refuse the second.

    Attributes:
        key: 32 bytes, the key of the records' digests. The same each time the store is
            opened, random where the store is new, kept apart from the records.
        blocking: whether the methods may wait for a disk or a network, so that they have to
            be called in a thread.
    """

    blocking: ClassVar[bool] = True
    key: bytes

    @classmethod
    @abstractmethod
    def open(cls, location: str) -> Self:
        """Open the store at `location`, what follows `scheme://` in its URL; make a new one
        where there is none.

        Raises:
            StartupError: it can't be used. Whatever was there is left as it was.
        """

    @abstractmethod
    def load(self) -> Iterable[Record]:
        """Every record, in any order.

        Raises:
            StartupError: they can't be read.
        """

    @abstractmethod
    def write(self, changes: Mapping[bytes, Record | None]) -> None:
        """Store what becomes of some tokens: all of it or nothing, durably on return.

        Args:
            changes: digest to the new record (which may have another id than the old one),
                or to None where the token is gone. Never empty. Removing an unknown one is
                no error.

        Raises:
            RegistryUnavailable: nothing was stored. A later call may succeed: no failure
                is for good.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Idempotent; the other methods must not be called after it."""


def _find(url: str) -> tuple[type[TokenStore], str]:
    scheme, separator, location = url.partition("://")
    match scheme.lower() if separator else "":
        # Imported here, so that a member's dependencies hurt only who asks for it.
        case "memory":
            from mist.auth.memory import MemoryStore

            return MemoryStore, location
        case "sqlite":
            from mist.auth.sqlite import SqliteStore

            return SqliteStore, location
        case _:
            # Not the whole URL: that of a shared store may hold a password.
            raise StartupError(
                f"token registry: no such kind of URL: {scheme!r}"
                if separator
                else "token registry: not a URL; try sqlite:///tokens.db or memory://"
            )


def open_store(url: str) -> TokenStore:
    """Open the member of the family that `url`'s scheme names. Blocks.

    Raises:
        StartupError: an unknown scheme, or see `TokenStore.open`.
    """
    member, location = _find(url)
    return member.open(location)


async def open_registry(url: str, *, max_tags: int = MAX_TAGS) -> Registry:
    """Open a registry with all that its store holds. Close it with `aclose`.

    Args:
        url: where it is kept: `memory://`, `sqlite:///tokens.db`.
        max_tags: most tags that one token may get.

    Cancellation leaves nothing open.

    Raises:
        StartupError: one line that says why not: an unknown scheme, a folder that can't be
            written, a file that is damaged, in use, of another program or another version.
    """
    await trio.lowlevel.checkpoint()
    member, location = _find(url)

    def read() -> tuple[TokenStore, Iterable[Record]]:
        store = member.open(location)
        try:
            return store, store.load()
        except BaseException:
            store.close()
            raise

    # The last await: no cancellation can come between the open store and its owner.
    store, records = await trio.to_thread.run_sync(read) if member.blocking else read()
    return Registry(store, records, max_tags=max_tags)
