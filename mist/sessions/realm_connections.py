"""One connection of one node: looked at, or ended, from any node.

A node hears of either with its next heartbeat, a quarter of a second later at most.

What nodes ask each other is imported where it is asked, as most servers have no engine.
"""

from typing import TYPE_CHECKING

from mist.sessions.connection_details import ConnectionDetails
from mist.sessions.known_nodes import KnownNode

if TYPE_CHECKING:
    from mist.sessions.nodes import Nodes
    from mist.sessions.questions import ConnectionAt, EndConnection

__all__ = ["NodeSilent", "end_connection_at", "find_node", "look_at_connection"]


class NodeSilent(Exception):
    """The node has not answered in time. Where a session was to end, it may have ended."""


async def find_node(nodes: "Nodes", name: str) -> KnownNode | None:
    """The node of this name or id; None where there is none.

    Of two with a name the one that was heard of last: a node that is started again has another id.

    Raises:
        EngineUnavailable: the engine doesn't answer.
    """
    found = [each for each in await nodes.all() if name in (each.state.name, each.id)]
    return min(found, key=lambda each: each.age, default=None)


async def look_at_connection(
    nodes: "Nodes", node: KnownNode, name: str, after: str | None, limit: int
) -> ConnectionDetails | None:
    """A connection of a node; None where it has none of this name.

    Args:
        after, limit: see `mist.sessions.connection_details.detail_connection`.

    Raises:
        NodeSilent: it has not answered.
        EngineUnavailable, TooManyQuestions: no node can be asked.
    """
    from mist.sessions.questions import ConnectionAt, decode_details

    return decode_details(await _ask(nodes, node, ConnectionAt(node.id, name, after, limit)))


async def end_connection_at(nodes: "Nodes", node: KnownNode, name: str) -> bool:
    """End a connection of a node; whether there was one of this name.

    Raises:
        NodeSilent: it has not answered.
        EngineUnavailable, TooManyQuestions: no node can be asked.
    """
    from mist.sessions.questions import ENDED, EndConnection

    return await _ask(nodes, node, EndConnection(node.id, name)) == ENDED


async def _ask(nodes: "Nodes", node: KnownNode, question: "ConnectionAt | EndConnection") -> bytes:
    from mist.sessions.questions import encode_question

    answers, _ = await nodes.ask(encode_question(question))
    answer = answers.get(node.id)
    if answer is None:
        raise NodeSilent
    return answer
