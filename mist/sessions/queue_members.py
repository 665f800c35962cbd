"""Members of queue groups, over all nodes: other nodes are told in time who comes and leaves.

    a member comes     the node tells all, and the session goes on once they know: whatever is
                       published after its answer, the member is counted for
    a member leaves    likewise; until all know, it gets what is for it
    a session ends     the node tells all; what is for its members until they know is dropped
    a server stops     as if all members left, before any session ends
    a node dies        the others tell that it has gone, after some seconds

See `mist.broker.queue_shares`.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from mist.broker.queue_shares import QueueShares
from mist.change import Change
from mist.engine.contract import EngineUnavailable
from mist.engine.entries import QueueLeft, QueueSizes
from mist.errors import HistoryUnavailable

__all__ = ["QueueMembers"]

log = logging.getLogger("mist.nodes")

_AT_ONCE: Final = 1_000  # queue groups in a record
_WAIT: Final = 1.0  # seconds for which a session, or the end of a server, waits
_LOOK: Final = 0.5  # seconds
_GONE: Final = 1.0  # seconds for which a node is silent, and seen to be, before it has gone
_RETRY: Final = 0.1  # seconds

_Say = Callable[[QueueSizes | QueueLeft], Awaitable[object]]


class QueueMembers:
    """See the module.

    Args:
        shares: what is known of queue groups.
        say: tells all nodes; returns once this one has heard it, too. Raises `HistoryUnavailable`.
        living: the nodes that are not silent, by the names that they have in `shares`. Raises
            `EngineUnavailable`.
    """

    def __init__(
        self, shares: QueueShares, say: _Say, living: Callable[[], Awaitable[Iterable[str]]]
    ) -> None:
        self._shares = shares
        self._say = say
        self._living = living
        self._said = 0  # the version that all have heard
        self._told = Change()
        self._changed = Change()
        shares.on_changed = self._changed.notify

    async def run(self) -> None:
        """Tell all, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            nursery.start_soon(self._bury)

    async def settled(self) -> None:
        """Wait until all nodes know which members are here now; for a second at most."""
        goal = self._shares.version
        with trio.move_on_after(_WAIT):
            while self._said < goal:
                await self._told.wait()

    async def leave(self) -> None:
        """Tell all nodes that all members here are about to go; for a second at most."""
        self._shares.leave_all()
        await self.settled()

    async def _tell(self) -> None:
        shares = self._shares
        while True:
            # Up to here: others may come and go all the time.
            version, left = shares.version, shares.unsaid
            while left:
                sizes = shares.take(min(left, _AT_ONCE))
                try:
                    await self._say(QueueSizes(shares.node, sizes))
                except HistoryUnavailable:
                    shares.put_back(sizes)
                    await trio.sleep(_RETRY)
                else:
                    left -= len(sizes)
            self._said = version
            self._told.notify()
            while shares.version == version:
                await self._changed.wait()

    async def _bury(self) -> None:
        """Tell all which nodes have gone, where this one is the first of those that live."""
        shares = self._shares
        missed: dict[str, float] = {}
        while True:
            await trio.sleep(_LOOK)
            if not any(node != shares.node for node in shares.nodes):
                missed.clear()
                continue
            try:
                living = {*await self._living(), shares.node}
            except EngineUnavailable:
                missed.clear()
                continue
            now = trio.current_time()
            missed = {node: missed.get(node, now) for node in shares.nodes if node not in living}
            for node, since in missed.items():
                if now - since >= _GONE and shares.node == min(living):
                    told = "a node has gone, with its members of queue groups"
                    log.info(told, extra={"node": node})
                    try:
                        await self._say(QueueLeft(node))
                    except HistoryUnavailable:
                        break
