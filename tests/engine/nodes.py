"""Nodes for tests: servers of one realm in this process, each with a hub of its own."""

from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from mist.engine.node import Node
from mist.sessions.hub import Hub
from mist.sessions.node_sequencer import NodeSequencer
from tests.engine.flaky import FlakyEngine
from tests.history.messages import replay
from tests.waiting import until

__all__ = ["Server", "Start", "same"]


@attrs.define(eq=False)
class Server:
    """A node, with a hub over it."""

    node: Node
    engine: FlakyEngine
    hub: Hub
    sequencer: NodeSequencer
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        with self.scope:
            await self.sequencer.run()
        self.ended.set()

    async def stop(self) -> None:
        self.scope.cancel()
        await self.ended.wait()
        await self.node.close()


Start = Callable[..., Awaitable[Server]]
"""Starts another node of the realm."""


def _is_same(ids: Sequence[int], least: int) -> bool:
    return min(ids) >= least and len(set(ids)) == 1


async def same(*servers: Server) -> list[tuple[int, float, bytes]]:
    """What all of them have stored, once all have what the engine has now."""
    newest = await servers[0].sequencer.latest()
    await until(lambda: _is_same([server.sequencer.newest for server in servers], newest))
    logs = [await replay(server.node.history) for server in servers]
    assert all(log == logs[0] for log in logs)
    positions = [await server.node.history.position() for server in servers]
    assert len({(each.epoch, each.newest) for each in positions}) == 1
    return [(each.id, each.time, each.data) for each in logs[0]]
