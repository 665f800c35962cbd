"""Tokens and what they grant: the registry, its records, and the contract of its stores.

    Registry        the tokens of a server, in memory; see `registry`. Its members: `local`, over a
                    `TokenStore`, and `shared_registry`, over a store that servers share; see
                    `shared`
    Record, Grant   one registered token; what its tags allow
    Change          a change of one token; see `changes`
    TokenStore      the contract of what makes a registry durable. Its members, by URL:
                    memory://                     lasts as long as the process
                    sqlite:///relative.db         a file, and a key file beside it
                    sqlite:////absolute.db

`opening` finds the member for a URL. A store is read once, when the server starts, and written
before each change takes effect; it answers no lookup. So a member has four short methods, and
one that is slow or fails delays changes, never a lookup.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

from mist.auth.changes import Amend, Change, Enroll, Outcome, Remove
from mist.auth.grant import Grant
from mist.auth.record import Record

__all__ = [
    "Amend",
    "Change",
    "Enroll",
    "Grant",
    "Outcome",
    "Record",
    "Remove",
    "TokenStore",
]


class TokenStore(ABC):
    """What a registry's records are kept in.

    Used by one thread at a time, though not always the same one. Only one process at a time
    may have a store open, since that process answers from memory; a member that other
    processes can reach has to refuse the second.

    Attributes:
        key: 32 bytes, the key of the records' digests. The same each time the store is
            opened, random where the store is new, kept apart from the records.
        blocking: whether the methods may wait for a disk or a network, and so have to be
            called in a thread.
    """

    blocking: ClassVar[bool] = True
    key: bytes

    @classmethod
    @abstractmethod
    def open(cls, location: str) -> Self:
        """Open the store at `location`, what follows `scheme://` in its URL; create it where
        there is none.

        Raises:
            StartupError: it can't be used. What is there is left unchanged.
        """

    @abstractmethod
    def load(self) -> Iterable[Record]:
        """Every record, in any order.

        Raises:
            StartupError: they can't be read.
        """

    @abstractmethod
    def write(self, changes: Mapping[bytes, Record | None]) -> None:
        """Store changes of some tokens: all of them or none, durably on return.

        Args:
            changes: digest to the new record (which may have another id than the old one),
                or to None where the token is removed. Never empty. Removing an unknown
                one is no error.

        Raises:
            RegistryUnavailable: nothing was stored. A later call may succeed: no failure
                is permanent.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything held. Idempotent; no other method may be called after it."""
