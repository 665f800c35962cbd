"""Lists for operators: a page of a server's connections, subscriptions or tags.

Each page scans everything, in slices with checkpoints between them, and no state is kept between
pages; so memory is bounded by the page size, even with a million subscriptions. Pages follow a
fixed order, and each begins behind the last key of the one before: an entry whose key does not
change is shown once, whatever else changes meanwhile.

The order is that of a number and a text: the number in a connection's name, or what connections are
sorted by, see `mist.sessions.finding`; how many subscribers a tag set has, and how many tag sets a
tag is in, most first, then their names.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
import trio

from mist.broker.broker import Broker
from mist.broker.groups import Group
from mist.sessions.finding import ALL, ConnectionQuery
from mist.sessions.session_table import ConnectedSession, SessionTable

__all__ = [
    "GONE",
    "Connection",
    "Entry",
    "Kind",
    "Page",
    "describe_session",
    "is_ascending",
    "list_page",
    "page_of",
]

_SLICE: Final = 500  # entries between two checkpoints; about 1 ms

T = TypeVar("T")
# The first entry has the lowest key.
_Key = tuple[int, str]
_Keyed = tuple[_Key, Any]

GONE: Final[_Key] = (0, "")
"""The key of what is not listed. It is this object that says so, not its value."""


class Kind(StrEnum):
    """What is listed."""

    CONNECTIONS = "connections"
    SUBSCRIPTIONS = "subscriptions"
    TAGS = "tags"


class Connection(msgspec.Struct, frozen=True):
    """One session.

    Attributes:
        token: the token's registry id; None for a service.
        subscriptions: tag sets, and named subscriptions.
        queued, queued_bytes: messages and bytes waiting for the peer now.
        sent, sent_bytes: handed to the kernel since it connected.
        dropped: messages lost because the peer was slow, or can't take such data.
        behind: whether it is recovering from the history.
        since: when it connected, Unix seconds; 0 where a node of an earlier version does not say.
        token_name: of the registry; empty for none.
    """

    name: str
    transport: str
    peer: str
    token: str | None
    subscriptions: int
    queued: int
    queued_bytes: int
    sent: int
    sent_bytes: int
    dropped: int
    behind: bool
    since: float = 0.0
    token_name: str = ""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a page.

    Attributes:
        number, text: its key. For a connection the number in its name, or what it is sorted by with
            that number; else how many, and the tags or the tag.
        connection: None in the other lists.
    """

    number: int
    text: str
    connection: Connection | None = None


class Page(msgspec.Struct, frozen=True, array_like=True):
    """A page: entries in their order, how many there are in all, and whether more come behind."""

    entries: list[Entry]
    count: int
    more: bool


def describe_session(session: ConnectedSession) -> Connection:
    """The current state of a session."""
    counts = session.outbox.statistics()
    return Connection(
        name=session.name,
        transport=session.transport,
        peer=session.peer,
        token=None if session.record is None else session.record.id,
        subscriptions=len(session.subscriptions) + len(session.named_subscriptions),
        queued=counts.queued,
        queued_bytes=counts.queued_bytes,
        sent=counts.sent,
        sent_bytes=counts.sent_bytes,
        dropped=counts.dropped_full + counts.dropped_unframable,
        behind=session.outbox.paused,
        since=session.since,
        token_name="" if session.record is None else session.record.name,
    )


def is_ascending(kind: Kind, query: ConnectionQuery) -> bool:
    """Whether the first entry of a list is the one with the lowest number."""
    return kind is Kind.CONNECTIONS and query.ascends


async def list_page(
    broker: Broker,
    sessions: SessionTable,
    kind: Kind,
    after: tuple[int, str] | None,
    limit: int,
    *,
    inclusive: bool = False,
    query: ConnectionQuery = ALL,
) -> Page:
    """A page of a list. O(all), with checkpoints, and O(limit) memory.

    Args:
        after: the key behind which it begins; None is the first page.
        limit: most entries of it.
        inclusive: whether the entry with that key is part of it.
        query: which connections.
    """
    sign = 1 if is_ascending(kind, query) else -1
    place = None if after is None else (sign * after[0], after[1])
    if kind is Kind.CONNECTIONS:
        key = _session_key(query, sign)
        found, more, count = await page_of([list(sessions)], key, place, limit, inclusive)
        listed = [
            Entry(sign * number, text, describe_session(each)) for (number, text), each in found
        ]
        return Page(listed, count, more)
    if kind is Kind.SUBSCRIPTIONS:
        found, more, _ = await page_of(broker.groups(), _group_key, place, limit, inclusive)
        count = broker.tag_sets()
    else:
        found, more, _ = await page_of(broker.tag_uses(), _tag_key, place, limit, inclusive)
        count = broker.statistics().tags
    return Page([Entry(-fewer, text) for (fewer, text), _ in found], count, more)


async def page_of(
    slices: Iterable[Sequence[T]],
    key: Callable[[T], _Key],
    after: _Key | None,
    limit: int,
    inclusive: bool = False,
) -> tuple[list[_Keyed], bool, int]:
    """The `limit` entries with the lowest keys above `after`. O(all), with checkpoints.

    Args:
        key: the sort key of an entry; `GONE` for one that no longer exists, or isn't asked for.

    Returns:
        The entries with their keys, whether there are more, and how many there are in all.
    """
    lowest: list[_Keyed] = []
    count = 0
    for some in slices:
        for start in range(0, len(some), _SLICE):
            keyed = [(key(each), each) for each in some[start : start + _SLICE]]
            keyed = [each for each in keyed if each[0] is not GONE]
            count += len(keyed)
            if after is not None:
                keyed = [
                    each for each in keyed if each[0] > after or (inclusive and each[0] == after)
                ]
            if len(lowest) > limit:  # most entries are beyond the page
                highest = lowest[-1][0]
                keyed = [each for each in keyed if each[0] < highest]
            if keyed:
                lowest = heapq.nsmallest(limit + 1, lowest + keyed, key=_first)
            await trio.lowlevel.checkpoint()
    return lowest[:limit], len(lowest) > limit, count


def _first(keyed: _Keyed) -> _Key:
    return keyed[0]


def _session_key(query: ConnectionQuery, sign: int) -> Callable[[ConnectedSession], _Key]:
    matches, placed = query.matcher(), query.placer()

    def key(session: ConnectedSession) -> _Key:
        if session.ended is not None or not matches(session):
            return GONE
        number, text = placed(session)
        return (sign * number, text)

    return key


def _group_key(group: Group) -> _Key:
    subscribers = group.subscribers
    return (-subscribers, group.tag_list.decode()) if subscribers else GONE


def _tag_key(use: tuple[str, int]) -> _Key:
    tag, uses = use
    return (-uses, tag) if uses else GONE
