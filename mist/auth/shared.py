"""The contract of a store of tokens that several servers share.

    await store.enter(fingerprint)
    snapshot = await store.load()
    version = await store.write(changes, snapshot.version, name)    # compare-and-set
    updates = await store.news(snapshot.version, wait=0.25)         # what others have written

The store has one version for all of its tokens. Each write states the version that it was planned
on, and is refused where another one came before it. So of two servers that register the same token
at once, one is refused, and all servers take in the same writes in the same order.

A store keeps values as they are, under the digests of tokens: it can't read either. What a value
means, and whether it is genuine, is known only with the key, which the store has only a
fingerprint of; see `mist.auth.codec`.

Members, by URL; `mist.engine.tokens` finds them:

    memory://NAME                       servers in one process; for tests
    redis://…, rediss://…               `mist.engine.redis.tokens`
    postgresql://…                      `mist.engine.postgres.tokens`
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from mist.errors import MistError

__all__ = [
    "KEPT_CHANGES",
    "Changes",
    "ForgottenVersion",
    "SharedStore",
    "Snapshot",
    "StaleVersion",
    "Update",
    "Version",
    "WrongKey",
]

KEPT_CHANGES: Final = 50_000
"""Changes of tokens that a store keeps for `SharedStore.news`: a version that so many have come
behind is still known, and one that more have may be forgotten."""

Changes: TypeAlias = Mapping[bytes, bytes | None]
"""New values by the digests of tokens, 32 bytes; None where a token is removed."""


class StaleVersion(MistError):
    """The tokens have another version by now. Nothing was written; take in the news, and plan
    again.
    """

    code = "stale_version"
    message = "The tokens have changed"


class ForgottenVersion(MistError):
    """What was written since a version is not known any more, or the version is not one of this
    registry's: it was removed and made anew, or has lost writes. Load it.
    """

    code = "forgotten_version"
    message = "The changes since this version are not kept"


class WrongKey(MistError):
    """The registry was made by a server with another key."""

    code = "wrong_key"
    message = "The key is not that of this registry"


@attrs.frozen
class Version:
    """A version of a registry.

    Attributes:
        number: one more than that of the version before it. A new registry begins at the
            milliseconds since 1970, and so above any that was in its place; hence 0 is before all.
        write: the name of the write that made it, which tells it from that of another registry
            with the same number.
    """

    number: int
    write: str


@attrs.frozen
class Update:
    """What one write has changed.

    Attributes:
        version: that it has made.
        changes: see there.
    """

    version: Version
    changes: Changes = attrs.field(repr=False)


@attrs.frozen
class Snapshot:
    """All that a registry holds at a version."""

    version: Version
    values: Mapping[bytes, bytes] = attrs.field(repr=False)


class SharedStore(ABC):
    """See the module. Every method may be called by any number of tasks at once.

    Every method raises `RegistryUnavailable` where the store fails, can't be reached, or does not
    answer in a bounded time; its `__cause__` says why. No failure is permanent. Cancelled, what was
    asked may have been done or not.
    """

    @abstractmethod
    async def enter(self, fingerprint: bytes) -> None:
        """Make the registry if it isn't there, and check the key of this server.

        Args:
            fingerprint: of the key; 32 bytes.

        Raises:
            WrongKey: the registry has that of another key. It is left unchanged.
        """

    @abstractmethod
    async def load(self) -> Snapshot:
        """All that it holds. O(tokens); no other call waits for it."""

    @abstractmethod
    async def write(self, changes: Changes, after: Version, name: str) -> Version:
        """Store changes: all of them or none, durably on return.

        Repeated with the same arguments it is not done again, and returns the same. So after
        `RegistryUnavailable` the same call finds out what became of it.

        Args:
            changes: never empty. Removing what isn't there is no error.
            after: the version that they were planned on.
            name: of this write, which no other has: 32 random hexadecimal digits.

        Returns:
            The next version, named so.

        Raises:
            StaleVersion: another write came first. Nothing was written.
        """

    @abstractmethod
    async def news(self, after: Version, *, wait: float = 0.0) -> Sequence[Update]:
        """What was written behind a version: each write once, in order, none left out.

        Every write that had returned before this call is among them.

        Args:
            wait: for so many seconds, where there is none yet.

        Returns:
            All there are; none where none came in time.

        Raises:
            ForgottenVersion: see there.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Release everything held, and end calls under way. Idempotent."""
