"""`/v1/presence`: who is subscribed to a tag set, once or as an event stream.

    GET /v1/presence?tags=room:7           who is there now
    GET /v1/presence/stream?tags=room:7    then who joins and leaves, as Server-Sent Events

See `mist.sessions.presence`. A stream is a session without subscriptions, which ends with its
token, or with the token's right.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive

from mist.errors import CommandError, EmptyTag, NotGranted, PresenceOff
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.event_streams import EventStream
from mist.http.openapi import (
    CLIENT,
    EITHER,
    Answer,
    Operation,
    Operations,
    Parameter,
)
from mist.http.queries import TAGS, Query
from mist.http.subscribers import (
    REFUSED,
    StreamSession,
    disconnected,
    subscriber_route,
)
from mist.message import ASK, Limits, TagSet, parse_tag_list
from mist.protocols.event_forms import notice_event
from mist.protocols.presence_forms import as_fields
from mist.replies import PresenceEnded
from mist.sessions.session import Notice

if TYPE_CHECKING:
    from mist.sessions.presence import PresenceService

__all__ = ["OPERATIONS", "routes"]

_OFF: Final = "Presence is off for these tags; see --presence."


class PresentOne(msgspec.Struct, frozen=True):
    """One who is there, with all sessions; `since` in Unix seconds."""

    since: float
    user: str = ""
    client: str = ""


class PresentList(msgspec.Struct, frozen=True):
    """Who is there.

    Attributes:
        listed: whether there is a list; above 1,000 sessions they are only counted.
        count: entries of the list; without one, sessions.
        present: the list, the first to come first.
    """

    tags: list[str]
    listed: bool
    count: int
    present: list[PresentOne] | msgspec.UnsetType = msgspec.UNSET


def _wanted(request: Request, limits: Limits) -> TagSet:
    """The tag set that a request names.

    Raises:
        Problem: the query can't be understood (400).
        EmptyTag, InvalidTag, TooManyTags: the tags can't.
    """
    given = Query(request).one("tags")
    if given is None:
        raise EmptyTag
    return parse_tag_list(given.encode(), limits.subscription_tags, ASK)


def _service(context: Context) -> "PresenceService":
    if context.hub.presence is None:
        raise PresenceOff
    return context.hub.presence


class _PresenceStream(EventStream):
    """A stream of who is there, and who joins and leaves."""

    _tags: TagSet
    _session: StreamSession | None = None

    def read(self) -> None:
        self._tags = _wanted(self.request, self.context.hub.limits)
        _service(self.context)

    async def serve(self, session: StreamSession, receive: Receive) -> None:
        self._session = session
        try:
            present = await _service(self.context).watch(session, self._tags)
            self.begin(session, notice_event(present))
            await disconnected(session, receive)
        except CommandError as error:
            self.refuse(session, error)
        finally:
            self._session = None

    def notify(self, notice: Notice) -> bytes:
        if isinstance(notice, PresenceEnded):
            if self._session is not None:
                self._session.end(REFUSED)
            return b""
        return super().notify(notice)


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/presence`, `/v1/presence/stream`."""

    async def present(request: Request) -> Response:
        caller = await context.access.caller(request)
        tags = _wanted(request, context.hub.limits)
        before = caller.record
        told = await _service(context).look(before, tags)
        # Meanwhile the token may have changed.
        record = context.access.again(caller, request).record
        if record is not None and before is not None:
            is_same_site = record.attributes.site == before.attributes.site
            if not (is_same_site and record.grant.may_see(tags)):
                raise NotGranted
        return answer(as_fields(told))

    return [
        Route("/v1/presence", present),
        subscriber_route("/v1/presence/stream", lambda request: _PresenceStream(context, request)),
    ]


_TAGS: Final = Parameter(
    "tags",
    "query",
    "A tag list: those are present whose subscription names all of these.",
    TAGS.schema["items"],
    required=True,
    example="room:7",
)
_EXAMPLE: Final = {
    "tags": ["room:7"],
    "listed": True,
    "count": 1,
    "present": [{"user": "1", "client": "tab", "since": 1_700_000_000.5}],
}

OPERATIONS: Final[Operations] = {
    "/v1/presence": {
        "get": Operation(
            summary="Who is subscribed to a tag set",
            details="A token needs the right to ask, such as `@room:*`.",
            who=EITHER,
            parameters=[_TAGS],
            answers={200: Answer("Who is there.", PresentList, _EXAMPLE)},
            problems={409: _OFF},
        )
    },
    "/v1/presence/stream": {
        "get": Operation(
            summary="Presence as Server-Sent Events",
            details="Events `presence`: first the list, then who `joined` and `left`, each a list, "
            "with `count`; who is gone for 5 s has left. Above 1,000 sessions only `count`. "
            "`end` as the last word. A comment every 15 s.",
            who=CLIENT,
            parameters=[_TAGS],
            answers={200: Answer("Events.", media_type="text/event-stream")},
            problems={409: _OFF},
        )
    },
}
