"""What is said to all nodes, and given up on the way."""

import pytest
import trio

from mist.auth.opening import open_registry
from mist.engine.entries import QueueLeft
from mist.engine.node import open_node
from mist.history import Durability
from mist.sessions.hub import Hub
from mist.sessions.node_sequencer import NodeSequencer


async def test_what_was_given_up_before_it_was_appended_is_not_waited_for(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(await open_registry("memory://"))
    async with await open_node("memory://", "memory://", durability=Durability.PROCESS) as node:
        hub.sequencer = sequencer = await NodeSequencer.following(hub.broker, node)
        nursery.start_soon(sequencer.run)
        await hub.store(frozenset({"a"}), b"x")
        append = node.engine.append

        async def hang(*record: object) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(node.engine, "append", hang)
        with trio.move_on_after(0.01):
            await sequencer.say(QueueLeft("other"))
        monkeypatch.setattr(node.engine, "append", append)
        await hub.store(frozenset({"a"}), b"x")
        assert not sequencer._appender
        await sequencer.say(QueueLeft("other"))
        nursery.cancel_scope.cancel()
