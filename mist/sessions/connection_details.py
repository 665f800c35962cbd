"""One connection, as operators see it: its counts, its token, its subscriptions; and its end.

The subscriptions of a session come in pages, in the order of their tags. A service may have a
million, so a page is computed with checkpoints, as in `mist.sessions.inspection`.
"""

import logging
from collections.abc import Iterator
from typing import Final

import msgspec

from mist.auth.issued import IssuedRecord
from mist.broker.groups import Group
from mist.broker.named_subscriptions import NamedSubscription
from mist.sessions.close_reason import ENDED_BY_OPERATOR
from mist.sessions.finding import find_session
from mist.sessions.inspection import GONE, Connection, describe_session, page_of
from mist.sessions.session_table import ConnectedSession, SessionTable

__all__ = ["ConnectionDetails", "SubscriptionOf", "detail_connection", "end_connection"]

log = logging.getLogger("mist.sessions")

_Subscribed = Group | NamedSubscription
_MAX_NAME: Final = 255  # characters shown; a place has to fit into a question of another node


class SubscriptionOf(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription of a session.

    Attributes:
        tags: that a message must carry, sorted.
        name: as the peer calls it, where the dialect has names (NATS).
    """

    tags: list[str]
    name: str | None = None


class ConnectionDetails(Connection, frozen=True, kw_only=True):
    """A session, with what more is known of it than in a list.

    Attributes:
        attributes: that targeted delivery chooses by, the client id among them.
        expires: when its token does, Unix seconds; None for never.
        is_issued: whether its token is not of the registry: a JWT, or of `--auth-url`. `token` is
            then the id of the user that it was issued to, whom `attributes` name.
        owed: messages that it is behind: left to the history, and not replayed yet.
        subscribed: a page of what it is subscribed to, by tags.
        next: where the next page begins; None on the last.
    """

    attributes: dict[str, str | list[str]]
    expires: float | None
    is_issued: bool
    owed: int
    subscribed: list[SubscriptionOf]
    next: str | None


async def detail_connection(
    sessions: SessionTable, name: str, after: str | None, limit: int
) -> ConnectionDetails | None:
    """The session of this name; None where there is none. O(sessions + subscriptions).

    Args:
        after: `next` of the page before.
        limit: most subscriptions of the page.
    """
    session = await find_session(sessions, name)
    if session is None:
        return None
    place = None if after is None else (0, after)
    slices = [list(_subscribed(session))]
    found, more, _ = await page_of(slices, _key, place, limit)
    record = session.record
    return ConnectionDetails(
        **msgspec.structs.asdict(describe_session(session)),
        attributes=session.attributes.as_json(),
        expires=None if record is None else record.expires,
        is_issued=isinstance(record, IssuedRecord),
        owed=session.outbox.owed,
        subscribed=[_of(each) for _, each in found],
        next=found[-1][0][1] if more else None,
    )


async def end_connection(sessions: SessionTable, name: str) -> bool:
    """End a session for good; its peer may connect again. O(sessions).

    Returns:
        Whether there was one.
    """
    session = await find_session(sessions, name)
    if session is None:
        return False
    session.end(ENDED_BY_OPERATOR)
    log.info(
        "a session was ended by an operator",
        extra={
            "session": session.name,
            "peer": session.peer,
            "token": "" if session.record is None else session.record.id,
        },
    )
    return True


def _subscribed(session: ConnectedSession) -> Iterator[_Subscribed]:
    yield from session.subscriptions
    yield from session.named_subscriptions


def _key(each: _Subscribed) -> tuple[int, str]:
    if isinstance(each, Group):
        return (0, each.tag_list.decode())
    if each.group is None:
        return GONE
    return (0, f"{each.group.tag_list.decode()} {_name_of(each)}")


def _name_of(named: NamedSubscription) -> str:
    return named.name.decode("utf-8", "backslashreplace")[:_MAX_NAME]


def _of(each: _Subscribed) -> SubscriptionOf:
    if isinstance(each, Group):
        return SubscriptionOf(each.tag_list.decode().split(","))
    assert each.group is not None
    return SubscriptionOf(each.group.tag_list.decode().split(","), _name_of(each))
