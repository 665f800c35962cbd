"""Inspection for operators: lists of connections, subscriptions and tags, of all nodes.

Pages follow a fixed order, and each names the last key as the start of the next: an entry whose key
does not change is shown once, whatever else changes meanwhile. See `mist.sessions.inspection`, and
`mist.sessions.realm_lists` for several nodes.
"""

import re
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Operation, Operations, parameter
from mist.http.paging import LIMIT, Paging, after_parameter
from mist.http.problems import Problem
from mist.http.queries import Query
from mist.sessions.inspection import Connection, Entry, Kind, list_page
from mist.sessions.realm_lists import list_realm_page

__all__ = ["OPERATIONS", "routes"]

_NODE: Final = "(?:([0-9a-f]{1,32})/)?"
_NAME: Final = re.compile(_NODE + r"([a-z]{1,16}-([0-9]{1,15}))")
_PLACE: Final = re.compile(_NODE + r"([0-9]{1,15}):([^\x00-\x1f\x7f-\x9f]{1,5000})")
_NODES: Final = ("all", "here")


class ListedConnection(Connection, frozen=True, omit_defaults=True):
    """A connection; `node` is the name of the node that it is to, absent without an engine."""

    node: str | None = None


class ConnectionList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of connections, oldest first; `next` is None on the last, `count` is of all.

    With an engine, `missing` has the names of nodes that did not answer: what is theirs is not
    counted.
    """

    connections: list[ListedConnection]
    count: int
    next: str | None
    missing: list[str] | None = None


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tag set, and how many sessions of a node are subscribed to it."""

    tags: list[str]
    subscribers: int
    node: str | None = None


class SubscriptionList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of tag sets, those with the most subscribers first; for the rest see connections."""

    subscriptions: list[Subscription]
    count: int
    next: str | None
    missing: list[str] | None = None


class TagUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tag, and how many of the tag sets subscribed to at a node contain it."""

    tag: str
    subscriptions: int
    node: str | None = None


class TagList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of tags, those in the most tag sets first; for the rest see connections."""

    tags: list[TagUse]
    count: int
    next: str | None
    missing: list[str] | None = None


@attrs.frozen
class _Listed:
    """A page, of one node or all.

    Attributes:
        entries: with the names of their nodes.
        next: the node and key of the last entry, where more come behind.
    """

    entries: list[tuple[str | None, Entry]]
    count: int
    next: tuple[str, Entry] | None
    missing: list[str] | None = None

    @property
    def next_place(self) -> str | None:
        """Where the next page begins, by number and text."""
        if self.next is None:
            return None
        node, entry = self.next
        return f"{_prefix(node)}{entry.number}:{entry.text}"


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/connections`, `/v1/subscriptions`, `/v1/tags`."""

    async def connections(request: Request) -> Response:
        await context.access.service(request)
        listed = await _list(context, request, Kind.CONNECTIONS, _NAME)
        page = [
            ListedConnection(**msgspec.structs.asdict(entry.connection), node=node)
            for node, entry in listed.entries
            if entry.connection is not None
        ]
        following = None
        if listed.next is not None and page:
            following = _prefix(listed.next[0]) + page[-1].name
        return answer(ConnectionList(page, listed.count, following, listed.missing))

    async def subscriptions(request: Request) -> Response:
        await context.access.service(request)
        listed = await _list(context, request, Kind.SUBSCRIPTIONS, _PLACE)
        page = [
            Subscription(entry.text.split(","), entry.number, node)
            for node, entry in listed.entries
        ]
        return answer(SubscriptionList(page, listed.count, listed.next_place, listed.missing))

    async def tags(request: Request) -> Response:
        await context.access.service(request)
        listed = await _list(context, request, Kind.TAGS, _PLACE)
        page = [TagUse(entry.text, entry.number, node) for node, entry in listed.entries]
        return answer(TagList(page, listed.count, listed.next_place, listed.missing))

    return [
        Route("/v1/connections", connections),
        Route("/v1/subscriptions", subscriptions),
        Route("/v1/tags", tags),
    ]


async def _list(
    context: Context, request: Request, kind: Kind, pattern: re.Pattern[str]
) -> _Listed:
    """The page of a list that a request asks for."""
    paging = Paging.of(request, pattern)
    after = None if paging.after is None else _after(kind, pattern, paging.after)
    nodes, here = context.hub.nodes, _asks_here(request)
    if nodes is None or here:
        # Of another node's place only the key counts: its entries are not here.
        place = None if after is None else after[:2]
        hub = context.hub
        page = await list_page(hub.broker, hub.sessions, kind, place, paging.limit)
        name = None if nodes is None else context.describe().name
        last = ("", page.entries[-1]) if page.more else None
        return _Listed([(name, each) for each in page.entries], page.count, last)
    found = await list_realm_page(nodes, kind, after, paging.limit)
    names = {each.id: each.state.name for each in await nodes.all()}
    return _Listed(
        [(names.get(node, node), entry) for node, entry in found.entries],
        found.count,
        found.entries[-1] if found.more and found.entries else None,
        sorted([each.state.name for each in found.missing]),
    )


def _asks_here(request: Request) -> bool:
    value = Query(request).one("nodes") or "all"
    if value not in _NODES:
        raise Problem(400, "invalid_query", "nodes is all or here")
    return value == "here"


def _after(kind: Kind, pattern: re.Pattern[str], text: str) -> tuple[int, str, str]:
    """Number, text and node of the key at which the page before ended."""
    match = pattern.fullmatch(text)
    assert match is not None
    node = match[1] or ""
    if kind is Kind.CONNECTIONS:
        return int(match[3]), "", node
    return int(match[2]), match[3], node


def _prefix(node: str) -> str:
    return f"{node}/" if node else ""


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
}
_AFTER: Final = {
    "type": "string",
    "pattern": r"^([0-9a-f]{1,32}/)?[0-9]{1,15}:[^\u0000-\u001F\u007F-\u009F]{1,5000}$",
}

_WHICH: Final = parameter(
    "nodes",
    "With an engine: the lists of all nodes, merged, or of the one that answers.",
    {"type": "string", "enum": list(_NODES), "default": "all"},
)

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
                        "pattern": "^([0-9a-f]{1,32}/)?[a-z]{1,16}-[0-9]{1,15}$",
                    },
                    "ws-17",
                ),
                _WHICH,
            ],
            answers={
                200: Answer(
                    "A page of connections, oldest first.",
                    ConnectionList,
                    {"connections": [_CONNECTION], "count": 1, "next": None},
                )
            },
        )
    },
    "/v1/subscriptions": {
        "get": Operation(
            summary="List subscriptions",
            who=SERVICE,
            problems={503: "The engine does not answer, or too much is asked of it."},
            parameters=[LIMIT, after_parameter(_AFTER, "40:news,room:1"), _WHICH],
            answers={
                200: Answer(
                    "A page of distinct tag sets, those with the most subscribers first.",
                    SubscriptionList,
                    {
                        "subscriptions": [{"tags": ["news", "room:1"], "subscribers": 40}],
                        "count": 1,
                        "next": None,
                    },
                )
            },
        )
    },
    "/v1/tags": {
        "get": Operation(
            summary="List subscribed tags",
            who=SERVICE,
            problems={503: "The engine does not answer, or too much is asked of it."},
            parameters=[LIMIT, after_parameter(_AFTER, "40:news"), _WHICH],
            answers={
                200: Answer(
                    "A page of tags, those in the most tag sets first.",
                    TagList,
                    {"tags": [{"tag": "news", "subscriptions": 40}], "count": 1, "next": None},
                )
            },
        )
    },
}
