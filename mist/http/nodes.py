"""`/v1/nodes`: the nodes of the engine, as this one knows them; without an engine, itself."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Operation, Operations
from mist.sessions.known_nodes import KnownNode

__all__ = ["OPERATIONS", "routes"]


class NodeInfo(msgspec.Struct, frozen=True):
    """A node.

    Attributes:
        id: a random name, new with each start; empty without an engine.
        name: as given with `--node`.
        here: whether it is the one that answers.
        status: `ready`, `not_ready`, or `silent`: it has died, is cut off from the engine, or
            stands still. What a silent one has said of itself is as old as `age`.
        reason: the code of why it is not ready, as `/readyz` has it; None where it is.
        age: seconds since its last heartbeat.
        advertise: the URL at which it is reached; None where it has not been given one.
        uptime: seconds.
        lag: seconds that it is behind the engine's log.
        offset: of the last record of that log that it has applied.
        newest: the highest id that it has delivered.
        registry: the version of its tokens.
        sealing: whether it seals the archive.
        sessions, lifetime: connected now, and since its start.
        tag_sets: distinct ones that its sessions are subscribed to.
        connections: now, by transport.
    """

    id: str
    name: str
    here: bool
    status: str
    reason: str | None
    age: float
    version: str
    advertise: str | None
    uptime: float
    lag: float
    offset: int
    newest: int
    registry: int
    sealing: bool
    sessions: int
    lifetime: int
    tag_sets: int
    connections: dict[str, int]


class NodeList(msgspec.Struct, frozen=True):
    """All nodes, by name. `engine`: whether there is one; else the server is the only node."""

    engine: bool
    nodes: list[NodeInfo]


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/nodes`."""

    async def nodes(request: Request) -> Response:
        await context.access.service(request)
        known = context.hub.nodes
        if known is None:
            alone = KnownNode("", context.describe(), 0.0, is_self=True)
            return answer(NodeList(engine=False, nodes=[_info(alone)]))
        return answer(NodeList(engine=True, nodes=[_info(each) for each in await known.all()]))

    return [Route("/v1/nodes", nodes)]


def _info(node: KnownNode) -> NodeInfo:
    state = node.state
    status = "not_ready" if state.not_ready else "ready"
    return NodeInfo(
        id=node.id,
        name=state.name,
        here=node.is_self,
        status="silent" if node.is_silent else status,
        reason=state.not_ready or None,
        age=round(node.age, 3),
        version=state.version,
        advertise=state.advertise,
        uptime=state.uptime,
        lag=state.lag,
        offset=state.offset,
        newest=state.newest,
        registry=state.registry,
        sealing=state.sealing,
        sessions=state.sessions,
        lifetime=state.lifetime,
        tag_sets=state.tag_sets,
        connections={name: count for name, count in state.connections.items() if count},
    )


_EXAMPLE: Final = {
    "id": "5f3c9a0d1b2e4f67",
    "name": "eu-1",
    "here": True,
    "status": "ready",
    "reason": None,
    "age": 0.0,
    "version": "0.1.0",
    "advertise": "https://eu-1.example",
    "uptime": 86400.0,
    "lag": 0.0,
    "offset": 1024,
    "newest": 65536,
    "registry": 0,
    "sealing": True,
    "sessions": 2,
    "lifetime": 40,
    "tag_sets": 3,
    "connections": {"tcp": 1, "ws": 1},
}

OPERATIONS: Final[Operations] = {
    "/v1/nodes": {
        "get": Operation(
            summary="List nodes",
            details="The nodes of the engine; without an engine, this server. A node that has sent "
            "no heartbeat for 2 s is silent, and after 10 s it is left out.",
            who=SERVICE,
            answers={
                200: Answer("All nodes, by name.", NodeList, {"engine": True, "nodes": [_EXAMPLE]})
            },
            problems={503: "The engine does not answer."},
        )
    },
}
