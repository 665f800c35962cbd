"""Leases: what only one node of a realm does at a time, such as sealing an archive.

    await run_under_lease(engine.members, "archive", lambda: node.name, seal)

A lease lasts for three seconds and is prolonged every second. It moves to another node within four
where its holder dies, stands still, or is cut off from the engine. A holder counts the three
seconds from before it asked for them, so by its own clock its lease ends earlier than by the
engine's. Where it can't be prolonged in time, the work is cancelled.

A process that was stopped does not notice in time. So what must not be done under a lease that has
ended is checked where it is done: by the fence, see `Members.holds`.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from mist.engine.contract import EngineUnavailable
from mist.engine.members import Members

__all__ = ["LEASE", "run_under_lease"]

log = logging.getLogger("mist.engine")

LEASE: Final = 3.0
"""Seconds for which a lease is taken."""

_AGAIN: Final = 1.0  # seconds until it is prolonged, and until it is tried again
_GIVE_UP: Final = 1.0  # seconds that it may take to give a lease up


async def run_under_lease(
    members: Members,
    name: str,
    node: Callable[[], str],
    work: Callable[[int], Awaitable[None]],
) -> None:
    """Do some work for as long as this node holds a lease, and again whenever it gets it.

    Runs until cancelled, or until the work raises. A lease whose work ends is given up, and taken
    again a second later at the earliest, perhaps by another node.

    Args:
        name: of the lease.
        node: the name under which the node has entered.
        work: gets the fence. It is cancelled where the lease is lost.
    """
    while True:
        holder, began = node(), trio.current_time()
        fence = None
        with suppress(EngineUnavailable):
            fence = await members.take(name, holder, LEASE)
        if fence is not None:
            log.debug("lease taken", extra={"lease": name, "fence": fence})
            try:
                await _Held(members, name, holder, fence, began).run(work)
            finally:
                with trio.move_on_after(_GIVE_UP, shield=True), suppress(EngineUnavailable):
                    await members.give_up(name, holder)
        await trio.sleep(_AGAIN)


class _Held:
    """A lease that is held.

    Args:
        began: when it was asked for, by trio's clock.
    """

    def __init__(self, members: Members, name: str, holder: str, fence: int, began: float) -> None:
        self._members = members
        self._name = name
        self._holder = holder
        self._fence = fence
        self._scope = trio.CancelScope(deadline=began + LEASE)

    async def run(self, work: Callable[[int], Awaitable[None]]) -> None:
        """Work until the lease is lost, or the work has ended."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._prolong)
                await work(self._fence)
                nursery.cancel_scope.cancel()
        if self._scope.cancelled_caught:
            log.warning("lease lost", extra={"lease": self._name, "fence": self._fence})

    async def _prolong(self) -> None:
        while True:
            await trio.sleep(_AGAIN)
            began = trio.current_time()
            with suppress(EngineUnavailable):
                fence = await self._members.take(self._name, self._holder, LEASE)
                if fence != self._fence:
                    self._scope.cancel()
                self._scope.deadline = began + LEASE
