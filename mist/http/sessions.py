"""`/v1/connections`: all connections, searched and sorted; one of them; and its end. For services.

A name is that of a node's connection, so with an engine one of another node is asked for with that
node's name: `/v1/connections/ws-17?node=eu-2`. See `mist.sessions.finding` for what is searched.
"""

import re
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.inspect import WHICH_NODES, Lists, Place, prefix_of
from mist.http.openapi import SERVICE, Answer, Operation, Operations, Parameter, parameter
from mist.http.paging import LIMIT, Paging, after_parameter, limit_of
from mist.http.problems import Problem
from mist.http.queries import Query
from mist.sessions.connection_details import ConnectionDetails, detail_connection, end_connection
from mist.sessions.finding import ConnectionQuery, Order
from mist.sessions.inspection import Connection, Kind
from mist.sessions.known_nodes import KnownNode
from mist.sessions.realm_connections import (
    NodeSilent,
    end_connection_at,
    find_node,
    look_at_connection,
)

if TYPE_CHECKING:
    from mist.sessions.nodes import Nodes

__all__ = ["OPERATIONS", "routes"]

T = TypeVar("T")

_PLACE: Final = re.compile(r"(?:([0-9a-f]{1,32})/)?(?:[a-z]{1,16}-|([0-9]{1,18}):)([0-9]{1,15})")
_NAME: Final = re.compile(r"[a-z]{1,16}-[0-9]{1,15}")
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_MAX_SEARCH: Final = 200  # characters
_MAX_PLACE: Final = 6_500  # bytes; tags and a name, which fit into a question of a node


class ListedConnection(Connection, frozen=True, omit_defaults=True):
    """A connection; `node` is the name of the node that it is to, absent without an engine."""

    node: str | None = None


class ConnectionList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of connections; `next` is None on the last, `count` is of all that are found.

    With an engine, `missing` has the names of nodes that did not answer: what is theirs is not
    counted.
    """

    connections: list[ListedConnection]
    count: int
    next: str | None
    missing: list[str] | None = None


class OneConnection(ConnectionDetails, frozen=True, kw_only=True):
    """A connection, with a page of what it is subscribed to; `node` as in lists."""

    node: str | None = None


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/connections`, `/v1/connections/{name}`."""
    lists = Lists(context)
    sessions = context.hub.sessions

    async def many(request: Request) -> Response:
        await context.access.service(request)
        query = _query_of(request)
        paging = Paging.of(request, _PLACE)
        place = None if paging.after is None else _place(query, paging.after)
        listed = await lists.page(request, Kind.CONNECTIONS, place, paging.limit, query)
        page = [
            ListedConnection(**msgspec.structs.asdict(entry.connection), node=node)
            for node, entry in listed.entries
            if entry.connection is not None
        ]
        following = listed.next_place
        if listed.next is not None and query.by_age:
            following = prefix_of(listed.next[0]) + page[-1].name
        return answer(ConnectionList(page, listed.count, following, listed.missing))

    async def one(request: Request) -> Response:
        await context.access.service(request)
        name = request.path_params["name"]
        if not _NAME.fullmatch(name):
            raise _not_found()
        other = await _other_node(context, request)
        if request.method == "DELETE":
            if not await _end(name, other):
                raise _not_found()
            return Response(status_code=204, headers={"Cache-Control": "no-store"})
        query = Query(request)
        after, limit = query.one("after"), limit_of(query)
        if after is not None and not 0 < len(after.encode("utf-8", "replace")) <= _MAX_PLACE:
            raise Problem(400, "invalid_position", "after is not a position in this list")
        if other is None:
            async with lists.scans:
                found = await detail_connection(sessions, name, after, limit)
        else:
            found = await _asked(look_at_connection(*other, name, after, limit))
        if found is None:
            raise _not_found()
        return answer(OneConnection(**msgspec.structs.asdict(found), node=_name(context, other)))

    async def _end(name: str, other: "tuple[Nodes, KnownNode] | None") -> bool:
        if other is None:
            return await end_connection(sessions, name)
        return await _asked(end_connection_at(*other, name))

    return [
        Route("/v1/connections", many),
        Route("/v1/connections/{name}", one, methods=["GET", "DELETE"]),
    ]


def _query_of(request: Request) -> ConnectionQuery:
    """Which connections a request asks for, in which order. Raises Problem (400)."""
    query = Query(request)
    search, sort = query.one("search") or "", query.one("sort")
    if len(search) > _MAX_SEARCH:
        raise Problem(400, "invalid_query", f"search has at most {_MAX_SEARCH} characters")
    if sort is None:
        sort = Order.OLDEST
    elif sort not in list(Order):
        raise Problem(400, "invalid_query", f"sort is one of {', '.join(Order)}")
    return ConnectionQuery(search, Order(sort))


def _place(query: ConnectionQuery, text: str) -> Place:
    """Where a page begins. A place of a list in another order is one in this as well."""
    match = _PLACE.fullmatch(text)
    assert match is not None
    node, value, number = match[1] or "", int(match[2] or 0), int(match[3])
    return (number, "", node) if query.by_age else (value, f"{number:015}", node)


async def _other_node(context: Context, request: Request) -> "tuple[Nodes, KnownNode] | None":
    """The node whose connection is asked for; None for this one.

    Raises:
        Problem: there is no such node (404), or the name is none (400).
        EngineUnavailable: it can't be told.
    """
    name, nodes = Query(request).one("node"), context.hub.nodes
    if name is None:
        return None
    if not _NODE_NAME.fullmatch(name):
        raise Problem(400, "invalid_query", "node is the name of a node")
    if nodes is None:
        raise _no_node()
    node = await find_node(nodes, name)
    if node is None:
        raise _no_node()
    return None if node.is_self else (nodes, node)


async def _asked(asking: Awaitable[T]) -> T:
    try:
        return await asking
    except NodeSilent:
        detail = "the node has not answered in time; what was asked of it may have been done"
        raise Problem(503, "node_silent", detail, {"Retry-After": "1"}) from None


def _name(context: Context, other: "tuple[Nodes, KnownNode] | None") -> str | None:
    if other is not None:
        return other[1].state.name
    return None if context.hub.nodes is None else context.describe().name


def _no_node() -> Problem:
    return Problem(404, "node_not_found", "there is no node of this name")


def _not_found() -> Problem:
    return Problem(404, "connection_not_found", "there is no such connection, or it has ended")


_CONNECTION: Final = {
    "name": "ws-17",
    "transport": "ws",
    "peer": "203.0.113.9",
    "token": "9f86d081884c7d65",
    "subscriptions": 2,
    "queued": 0,
    "queued_bytes": 0,
    "sent": 1024,
    "sent_bytes": 98304,
    "dropped": 0,
    "behind": False,
    "since": 1767225600.0,
    "token_name": "nightly export",
}
_SEARCH: Final = parameter(
    "search",
    "Those that have this text in their name, transport, address, token id or token name, in "
    "whatever case.",
    {"type": "string", "maxLength": _MAX_SEARCH},
    example="203.0.113.",
)
_SORT: Final = parameter(
    "sort",
    "By age, or those with the most first; of these, one that changes between two pages may be "
    "shown twice, or not at all.",
    {"type": "string", "enum": list(Order), "default": Order.OLDEST},
)
_A_NAME: Final = parameter(
    "name",
    "As lists have it.",
    {"type": "string", "pattern": "^[a-z]{1,16}-[0-9]{1,15}$"},
    place="path",
    example="ws-17",
)
_AT: Final[Parameter] = parameter(
    "node",
    "With an engine: the name or id of the node that has it; without it, the one that answers.",
    {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"},
)
_NOT_FOUND: Final = "There is no such connection, or no such node."
_NO_ANSWER: Final = "The engine or the node does not answer, or too much is asked of it."

OPERATIONS: Final[Operations] = {
    "/v1/connections": {
        "get": Operation(
            summary="List connections",
            who=SERVICE,
            problems={503: "The engine does not answer, or too much is asked of it."},
            parameters=[
                LIMIT,
                after_parameter(
                    {
                        "type": "string",
                        "pattern": "^([0-9a-f]{1,32}/)?([a-z]{1,16}-|[0-9]{1,18}:)[0-9]{1,15}$",
                    },
                    "ws-17",
                ),
                _SEARCH,
                _SORT,
                WHICH_NODES,
            ],
            answers={
                200: Answer(
                    "A page of connections.",
                    ConnectionList,
                    {"connections": [_CONNECTION], "count": 1, "next": None},
                )
            },
        )
    },
    "/v1/connections/{name}": {
        "get": Operation(
            summary="Show a connection",
            details="With a page of its subscriptions, by their tags.",
            who=SERVICE,
            parameters=[
                _A_NAME,
                _AT,
                LIMIT,
                after_parameter({"type": "string", "minLength": 1}, "news,room:1"),
            ],
            answers={
                200: Answer(
                    "The connection.",
                    OneConnection,
                    {
                        **_CONNECTION,
                        "attributes": {"user": "7"},
                        "expires": None,
                        "is_issued": False,
                        "owed": 0,
                        "subscribed": [{"tags": ["news", "room:1"]}],
                        "next": None,
                    },
                )
            },
            problems={404: _NOT_FOUND, 503: _NO_ANSWER},
        ),
        "delete": Operation(
            summary="End a connection's session",
            details="The client is told so, where its protocol has a form for that: a WebSocket is "
            "closed with 4410. Its credential is as good as before, and it may connect again at "
            "once: to keep it away, revoke its token.",
            who=SERVICE,
            parameters=[_A_NAME, _AT],
            answers={204: Answer("It has ended.")},
            problems={404: _NOT_FOUND, 503: _NO_ANSWER},
        ),
    },
}
