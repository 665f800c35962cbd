"""`LocalRegistry`: tokens that this server alone changes, made durable by a `TokenStore`."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import trio

from mist.auth import TokenStore
from mist.auth.changes import Change, Outcome
from mist.auth.planning import MAX_TAGS, Step, net_changes
from mist.auth.record import Record
from mist.auth.registry import Registry
from mist.errors import RegistryUnavailable

__all__ = ["LocalRegistry"]

log = logging.getLogger("mist.auth")


class LocalRegistry(Registry):
    """See the module.

    Args:
        store: what makes it durable. The registry owns it from now on, and closes it.
        records: what the store holds. `open_registry` does both; a test may leave it out:
            `LocalRegistry(MemoryStore())`.
        max_tags, clock: as for a `Registry`.
    """

    def __init__(
        self,
        store: TokenStore,
        records: Iterable[Record] = (),
        *,
        max_tags: int = MAX_TAGS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(store.key, records, max_tags=max_tags, clock=clock)
        self._store = store
        self._closed = False
        # Held from planning to notifying: what one call plans must still hold when it takes
        # effect.
        self._lock = trio.Lock()
        # Of our own: a disk that hangs must not use up trio's shared threads.
        self._limiter = trio.CapacityLimiter(1)

    async def execute(self, changes: Sequence[Change]) -> list[Outcome]:
        """See `Registry.execute`. Watchers are called for each change on its own.

        Cancellation: none of it is done, or all of it. Once writing has begun the call runs
        to its end, since memory and disk must agree.
        """
        async with self._lock:
            if self._closed:
                raise RegistryUnavailable
            outcomes, steps = self._planner.plan(changes, self._records, self._digests, self.now())
            with trio.CancelScope(shield=True):
                await self._persist(steps)
            self._apply(steps)
        return outcomes

    async def _persist(self, steps: list[Step]) -> None:
        changed = net_changes(steps, self._records)
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

    def _apply(self, steps: list[Step]) -> None:
        for step in steps:
            self._put(step)
            if step.old is not None:
                self._notify(step.old, step.new)

    async def aclose(self) -> None:
        """See `Registry.aclose`: after a change that is being written has taken effect.

        `lookup` answers as before.
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
