"""Inspection for operators: lists of subscriptions and tags, of all nodes.

Pages follow a fixed order, and each names the last key as the start of the next: an entry whose key
does not change is shown once, whatever else changes meanwhile. See `mist.sessions.inspection`, and
`mist.sessions.realm_lists` for several nodes. `mist.http.sessions` lists connections likewise.
"""

import re
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Operation, Operations, parameter
from mist.http.paging import LIMIT, Paging, after_parameter
from mist.http.problems import Problem
from mist.http.queries import Query
from mist.sessions.finding import ALL, ConnectionQuery
from mist.sessions.inspection import Entry, Kind, list_page

__all__ = ["OPERATIONS", "WHICH_NODES", "Listed", "Lists", "Place", "prefix_of", "routes"]

_NODE: Final = "(?:([0-9a-f]{1,32})/)?"
_PLACE: Final = re.compile(_NODE + r"([0-9]{1,15}):([^\x00-\x1f\x7f-\x9f]{1,5000})")
_NODES: Final = ("all", "here")
_AT_ONCE: Final = 2


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


Place = tuple[int, str, str]
"""Where a page begins: number and text of the key behind which, and the node that has it."""


@attrs.frozen
class Listed:
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
        return f"{prefix_of(node)}{entry.number}:{entry.text}"


class Lists:
    """Pages of lists, of this node or all.

    Attributes:
        scans: so many callers look through everything at once; the others wait for them. Each
            takes a slice of the event loop's time, however many there are.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.scans = trio.CapacityLimiter(_AT_ONCE)

    async def page(
        self,
        request: Request,
        kind: Kind,
        after: Place | None,
        limit: int,
        query: ConnectionQuery = ALL,
    ) -> Listed:
        """The page of a list that a request asks for; see `list_page` and `list_realm_page`.

        Raises:
            Problem: `nodes` is neither all nor here (400).
            EngineUnavailable, TooManyQuestions: no node can be asked.
        """
        hub = self._context.hub
        nodes, here = hub.nodes, _asks_here(request)
        if nodes is None or here:
            # Of another node's place only the key counts: its entries are not here.
            place = None if after is None else after[:2]
            async with self.scans:
                page = await list_page(hub.broker, hub.sessions, kind, place, limit, query=query)
            name = None if nodes is None else self._context.describe().name
            last = ("", page.entries[-1]) if page.more else None
            return Listed([(name, each) for each in page.entries], page.count, last)
        from mist.sessions.realm_lists import list_realm_page  # only for nodes of an engine

        found = await list_realm_page(nodes, kind, after, limit, query)
        names = {each.id: each.state.name for each in await nodes.all()}
        return Listed(
            [(names.get(node, node), entry) for node, entry in found.entries],
            found.count,
            found.entries[-1] if found.more and found.entries else None,
            sorted([each.state.name for each in found.missing]),
        )


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/subscriptions`, `/v1/tags`."""
    lists = Lists(context)

    async def page_of(request: Request, kind: Kind) -> Listed:
        await context.access.service(request)
        paging = Paging.of(request, _PLACE)
        return await lists.page(request, kind, _after(paging.after), paging.limit)

    async def subscriptions(request: Request) -> Response:
        listed = await page_of(request, Kind.SUBSCRIPTIONS)
        page = [
            Subscription(entry.text.split(","), entry.number, node)
            for node, entry in listed.entries
        ]
        return answer(SubscriptionList(page, listed.count, listed.next_place, listed.missing))

    async def tags(request: Request) -> Response:
        listed = await page_of(request, Kind.TAGS)
        page = [TagUse(entry.text, entry.number, node) for node, entry in listed.entries]
        return answer(TagList(page, listed.count, listed.next_place, listed.missing))

    return [
        Route("/v1/subscriptions", subscriptions),
        Route("/v1/tags", tags),
    ]


def _asks_here(request: Request) -> bool:
    value = Query(request).one("nodes") or "all"
    if value not in _NODES:
        raise Problem(400, "invalid_query", "nodes is all or here")
    return value == "here"


def _after(text: str | None) -> Place | None:
    match = None if text is None else _PLACE.fullmatch(text)
    return None if match is None else (int(match[2]), match[3], match[1] or "")


def prefix_of(node: str) -> str:
    """What names a node in a place; empty for no other."""
    return f"{node}/" if node else ""


_AFTER: Final = {
    "type": "string",
    "pattern": r"^([0-9a-f]{1,32}/)?[0-9]{1,15}:[^\u0000-\u001F\u007F-\u009F]{1,5000}$",
}

WHICH_NODES: Final = parameter(
    "nodes",
    "With an engine: the lists of all nodes, merged, or of the one that answers.",
    {"type": "string", "enum": list(_NODES), "default": "all"},
)
"""The parameter that says whose lists."""

OPERATIONS: Final[Operations] = {
    "/v1/subscriptions": {
        "get": Operation(
            summary="List subscriptions",
            who=SERVICE,
            problems={503: "The engine does not answer, or too much is asked of it."},
            parameters=[LIMIT, after_parameter(_AFTER, "40:news,room:1"), WHICH_NODES],
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
            parameters=[LIMIT, after_parameter(_AFTER, "40:news"), WHICH_NODES],
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
