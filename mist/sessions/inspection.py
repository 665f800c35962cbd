"""Lists for operators: a page of a server's connections, subscriptions or tags.

Each page scans everything, in slices with checkpoints between them, and no state is kept between
pages; so memory is bounded by the page size, even with a million subscriptions. Pages follow a
fixed order, and each begins behind the last key of the one before: an entry whose key does not
change is shown once, whatever else changes meanwhile.

The order is that of a number and a text: the number in a connection's name; how many subscribers a
tag set has, and how many tag sets a tag is in, most first, then their names.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
import trio

from mist.broker.broker import Broker
from mist.broker.groups import Group
from mist.sessions.session_table import ConnectedSession, SessionTable

__all__ = ["Connection", "Entry", "Kind", "Page", "describe_session", "list_page"]

_SLICE: Final = 500  # entries between two checkpoints; about 1 ms

T = TypeVar("T")
# The first entry has the lowest key.
_Key = tuple[int, str]
_Keyed = tuple[_Key, Any]
_GONE: Final[_Key] = (0, "")


class Kind(StrEnum):
    """What is listed."""

    CONNECTIONS = "connections"
    SUBSCRIPTIONS = "subscriptions"
    TAGS = "tags"


class Connection(msgspec.Struct, frozen=True):
    """One session.

    Attributes:
        token: the token's registry id; None for a service.
        subscriptions: tag sets.
        queued, queued_bytes: messages and bytes waiting for the peer now.
        sent, sent_bytes: handed to the kernel since it connected.
        dropped: messages lost because the peer was slow, or can't take such data.
        behind: whether it is recovering from the history.
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


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a page.

    Attributes:
        number, text: its key. For a connection the number in its name; else how many, and the tags
            or the tag.
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
        subscriptions=len(session.subscriptions),
        queued=counts.queued,
        queued_bytes=counts.queued_bytes,
        sent=counts.sent,
        sent_bytes=counts.sent_bytes,
        dropped=counts.dropped_full + counts.dropped_unframable,
        behind=session.outbox.paused,
    )


async def list_page(
    broker: Broker,
    sessions: SessionTable,
    kind: Kind,
    after: tuple[int, str] | None,
    limit: int,
    *,
    inclusive: bool = False,
) -> Page:
    """A page of a list. O(all), with checkpoints, and O(limit) memory.

    Args:
        after: the key behind which it begins; None is the first page.
        limit: most entries of it.
        inclusive: whether the entry with that key is part of it.
    """
    place = None if after is None else _placed(kind, after)
    if kind is Kind.CONNECTIONS:
        found, more = await _page(_all(sessions), _session_key, place, limit, inclusive)
        listed = [Entry(number, "", describe_session(each)) for (number, _), each in found]
        return Page(listed, sessions.connected, more)
    if kind is Kind.SUBSCRIPTIONS:
        found, more = await _page(broker.groups(), _group_key, place, limit, inclusive)
        count = broker.tag_sets()
    else:
        found, more = await _page(broker.tag_uses(), _tag_key, place, limit, inclusive)
        count = broker.statistics().tags
    return Page([Entry(-fewer, text) for (fewer, text), _ in found], count, more)


def _placed(kind: Kind, after: tuple[int, str]) -> _Key:
    number, text = after
    return (number if kind is Kind.CONNECTIONS else -number, text)


async def _page(
    slices: Iterable[Sequence[T]],
    key: Callable[[T], _Key],
    after: _Key | None,
    limit: int,
    inclusive: bool,
) -> tuple[list[_Keyed], bool]:
    """The `limit` entries with the lowest keys above `after`, and whether there are more.

    Args:
        key: the sort key of an entry; `_GONE` for one that no longer exists.
    """
    lowest: list[_Keyed] = []
    for some in slices:
        for start in range(0, len(some), _SLICE):
            keyed = [(key(each), each) for each in some[start : start + _SLICE]]
            keyed = [each for each in keyed if each[0] is not _GONE]
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
    return lowest[:limit], len(lowest) > limit


def _first(keyed: _Keyed) -> _Key:
    return keyed[0]


def _all(sessions: Iterable[ConnectedSession]) -> Iterator[list[ConnectedSession]]:
    yield list(sessions)


def _session_key(session: ConnectedSession) -> _Key:
    return (int(session.name.rpartition("-")[2]), "")


def _group_key(group: Group) -> _Key:
    subscribers = group.subscribers
    return (-subscribers, group.tag_list.decode()) if subscribers else _GONE


def _tag_key(use: tuple[str, int]) -> _Key:
    tag, uses = use
    return (-uses, tag) if uses else _GONE
