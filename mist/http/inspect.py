"""Inspection for operators: lists of connections, subscriptions and tags.

Each page scans everything, in slices with checkpoints between them, and no state is kept between
pages; so memory is bounded by the page size, even with a million subscriptions. Pages follow a
fixed order, and each names the last key as the start of the next: an entry whose key does not
change is shown once, whatever else changes meanwhile.
"""

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.broker.groups import Group
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Operation, Operations
from mist.http.paging import LIMIT, Paging, after_parameter
from mist.http.stats import Connection, describe_session
from mist.sessions.session_table import ConnectedSession

__all__ = ["OPERATIONS", "routes"]

_SLICE: Final = 500  # entries between two checkpoints; about 1 ms

T = TypeVar("T")
# The first entry has the lowest key.
Key = tuple[int, str]
Keyed = tuple[Key, Any]
_GONE: Final[Key] = (0, "")

_NAME: Final = re.compile(r"[a-z]{1,16}-([0-9]{1,15})")
_PLACE: Final = re.compile(r"([0-9]{1,15}):([^\x00-\x1f\x7f-\x9f]{1,5000})")


class ConnectionList(msgspec.Struct, frozen=True):
    """A page of connections, oldest first; `next` is None on the last, `count` is of all."""

    connections: list[Connection]
    count: int
    next: str | None


class Subscription(msgspec.Struct, frozen=True):
    """A tag set, and how many sessions are subscribed to it."""

    tags: list[str]
    subscribers: int


class SubscriptionList(msgspec.Struct, frozen=True):
    """A page of tag sets, those with the most subscribers first."""

    subscriptions: list[Subscription]
    count: int
    next: str | None


class TagUse(msgspec.Struct, frozen=True):
    """A tag, and how many of the subscribed tag sets contain it."""

    tag: str
    subscriptions: int


class TagList(msgspec.Struct, frozen=True):
    """A page of tags, those in the most tag sets first."""

    tags: list[TagUse]
    count: int
    next: str | None


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/connections`, `/v1/subscriptions`, `/v1/tags`."""
    hub = context.hub
    broker = hub.broker

    async def connections(request: Request) -> Response:
        await context.access.service(request)
        paging = Paging.of(request, _NAME)
        after = None if paging.after is None else _connected(paging.after)
        found, more = await _page(_sessions(hub.sessions), _session_key, after, paging.limit)
        page = [describe_session(each) for _, each in found]
        return answer(ConnectionList(page, hub.sessions.connected, page[-1].name if more else None))

    async def subscriptions(request: Request) -> Response:
        await context.access.service(request)
        paging = Paging.of(request, _PLACE)
        found, more = await _page(broker.groups(), _group_key, _place(paging), paging.limit)
        page = [Subscription(tags.split(","), -fewer) for (fewer, tags), _ in found]
        return answer(SubscriptionList(page, broker.tag_sets(), _next(found, more)))

    async def tags(request: Request) -> Response:
        await context.access.service(request)
        paging = Paging.of(request, _PLACE)
        found, more = await _page(broker.tag_uses(), _tag_key, _place(paging), paging.limit)
        page = [TagUse(tag, -fewer) for (fewer, tag), _ in found]
        return answer(TagList(page, broker.statistics().tags, _next(found, more)))

    return [
        Route("/v1/connections", connections),
        Route("/v1/subscriptions", subscriptions),
        Route("/v1/tags", tags),
    ]


async def _page(
    slices: Iterable[Sequence[T]], key: Callable[[T], Key], after: Key | None, limit: int
) -> tuple[list[Keyed], bool]:
    """The `limit` entries with the lowest keys above `after`, and whether there are more.

    O(n) and O(limit) memory.

    Args:
        key: the sort key of an entry; `_GONE` for one that no longer exists.
    """
    lowest: list[Keyed] = []
    for some in slices:
        for start in range(0, len(some), _SLICE):
            keyed = [(key(each), each) for each in some[start : start + _SLICE]]
            keyed = [each for each in keyed if each[0] is not _GONE]
            if after is not None:
                keyed = [each for each in keyed if each[0] > after]
            if len(lowest) > limit:  # most entries are beyond the page
                highest = lowest[-1][0]
                keyed = [each for each in keyed if each[0] < highest]
            if keyed:
                lowest = heapq.nsmallest(limit + 1, lowest + keyed, key=_first)
            await trio.lowlevel.checkpoint()
    return lowest[:limit], len(lowest) > limit


def _first(keyed: Keyed) -> Key:
    return keyed[0]


# connections: in the order of the numbers in their names


def _sessions(sessions: Iterable[ConnectedSession]) -> Iterator[list[ConnectedSession]]:
    yield list(sessions)


def _session_key(session: ConnectedSession) -> Key:
    return _connected(session.name)


def _connected(name: str) -> Key:
    return (int(name.rpartition("-")[2]), "")


# tag sets and tags: by number, highest first, then by name


def _group_key(group: Group) -> Key:
    subscribers = group.subscribers
    return (-subscribers, group.tag_list.decode()) if subscribers else _GONE


def _tag_key(use: tuple[str, int]) -> Key:
    tag, uses = use
    return (-uses, tag) if uses else _GONE


def _place(paging: Paging) -> Key | None:
    if paging.after is None:
        return None
    count, _, name = paging.after.partition(":")
    return (-int(count), name)


def _next(found: list[Keyed], more: bool) -> str | None:
    if not more:
        return None
    fewer, name = found[-1][0]
    return f"{-fewer}:{name}"


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
    "pattern": r"^[0-9]{1,15}:[^\u0000-\u001F\u007F-\u009F]{1,5000}$",
}

OPERATIONS: Final[Operations] = {
    "/v1/connections": {
        "get": Operation(
            summary="List connections",
            who=SERVICE,
            parameters=[
                LIMIT,
                after_parameter(
                    {"type": "string", "pattern": "^[a-z]{1,16}-[0-9]{1,15}$"}, "ws-17"
                ),
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
            parameters=[LIMIT, after_parameter(_AFTER, "40:news,room:1")],
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
            parameters=[LIMIT, after_parameter(_AFTER, "40:news")],
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
