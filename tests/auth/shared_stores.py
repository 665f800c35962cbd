"""A shared store between which and its server things go wrong, as a test sets."""

from collections.abc import Sequence

import trio

from mist.auth.shared import Changes, SharedStore, Snapshot, Update, Version
from mist.change import Change
from mist.errors import RegistryUnavailable

__all__ = ["FlakyStore"]


class FlakyStore(SharedStore):
    """As the store behind it, but for what is set.

    Attributes:
        down: whether everything fails at once.
        lose_requests, lose_replies: how many of the next writes don't get there, or of which the
            answer doesn't get back.
        frozen: whether nothing is answered.
        deaf: whether waiting for news is in vain: only calls without a wait bring them.
        writes, questions: calls so far.
    """

    def __init__(self, store: SharedStore) -> None:
        self.down = self.deaf = False
        self.lose_requests = self.lose_replies = 0
        self.writes = self.questions = 0
        self._frozen = False
        self._thawed = Change()
        self._store = store

    @property
    def frozen(self) -> bool:
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self._frozen = frozen
        self._thawed.notify()

    async def _check(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._frozen:
            await self._thawed.wait()
        if self.down:
            raise RegistryUnavailable from OSError("no route to host")

    async def enter(self, fingerprint: bytes) -> None:
        await self._check()
        await self._store.enter(fingerprint)

    async def load(self) -> Snapshot:
        await self._check()
        snapshot = await self._store.load()
        await self._check()
        return snapshot

    async def write(self, changes: Changes, after: Version, name: str) -> Version:
        self.writes += 1
        await self._check()
        if self.lose_requests:
            self.lose_requests -= 1
            raise RegistryUnavailable from OSError("lost")
        version = await self._store.write(changes, after, name)
        if self.lose_replies:
            self.lose_replies -= 1
            raise RegistryUnavailable from OSError("lost")
        return version

    async def news(self, after: Version, *, wait: float = 0.0) -> Sequence[Update]:
        self.questions += 1
        await self._check()
        if self.deaf and wait:
            await trio.sleep(wait)
            return []
        updates = await self._store.news(after, wait=wait)
        await self._check()
        return updates

    async def aclose(self) -> None:
        await self._store.aclose()
