"""guble's REST: publish to a topic, and see who is subscribed to it.

    POST /api/message/{topic}       the body as it is; who published it, as which message and for
                                    whom stand in the query, headers of its own in the request's
    GET  /api/subscribers/{topic}   users and applications

What isn't allowed is said as everywhere (`mist.http.problems`), but for methods that there are
not: those are refused in guble's words.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from mist.audience import Audience
from mist.broker.attribute_index import for_site
from mist.errors import DataTooLong, NotGranted
from mist.http.access import Caller
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import EITHER, SERVICE, Answer, Body, Operation, Operations, parameter
from mist.http.problems import Problem
from mist.http.publishing import check_room
from mist.http.queries import Query
from mist.message import PUBLISH, Envelope, Limits, TagSet, parse_tags
from mist.protocols.topics import TopicProtocol
from mist.protocols.topics.commands import check_field
from mist.protocols.topics.forms import APPLICATION, HEADERS, MESSAGE_ID, USER
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.sessions.session_table import ConnectedSession
from mist.turns import outcome_of

__all__ = ["OPERATIONS", "routes"]

_MESSAGE: Final = "/api/message/{topic:path}"
_SUBSCRIBERS: Final = "/api/subscribers/{topic:path}"
_HEADER: Final = "x-guble-"
_FILTER: Final = "filter"
_USER_ID: Final = "userId"
_MESSAGE_ID: Final = "messageId"
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SLICE: Final = 1_000  # sessions looked at between two checkpoints; 1 ms or so


class Subscriber(msgspec.Struct, frozen=True, order=True):
    """Who gets what is published to a topic; empty where it isn't known."""

    user_id: str
    application_id: str


class _Route(Route):
    """A route that refuses other methods in guble's words."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        methods = self.methods or set()
        if scope["method"] in methods:
            await super().handle(scope, receive, send)
            return
        allowed = {"Allow": ", ".join(sorted(methods))}
        response = Response("Method not allowed", 405, allowed, "text/plain")
        await response(scope, receive, send)


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/api/message`, `/api/subscribers`."""
    hub = context.hub

    async def publish(request: Request) -> Response:
        if request.method == "HEAD":
            return Response()
        caller = await context.access.caller(request)
        tags = _topic(request, hub.limits)
        _check_grant(caller, tags)  # before the body is read
        check_room(hub)
        body = await request.body()
        if len(body) > hub.limits.data:
            raise DataTooLong
        check_room(hub)
        # Without an await from here on: what the token may, it still may.
        caller = context.access.again(caller, request)
        _check_grant(caller, tags)
        envelope = _envelope(request, caller, hub.now())
        if hub.sequencer is None:
            hub.publish_all([(tags, body)], caller.name, [envelope])
        else:
            await hub.store_all([(tags, body)], caller.name, envelopes=[envelope])
        return Response("OK", media_type="text/plain")

    async def subscribers(request: Request) -> Response:
        if request.method == "HEAD":
            return Response()
        await context.access.service(request)
        return answer(sorted(await _subscribers(hub, _topic(request, hub.limits))))

    return [
        _Route(_MESSAGE, publish, methods=["POST", "HEAD"]),
        _Route(_SUBSCRIBERS, subscribers, methods=["GET"]),
    ]


def _topic(request: Request, limits: Limits) -> TagSet:
    topic: str = request.path_params["topic"]
    if not topic:
        raise Problem(404, "not_found", "a topic is needed")
    return parse_tags([f"/{topic}"], limits.message_tags, PUBLISH)


def _check_grant(caller: Caller, tags: TagSet) -> None:
    if caller.record is not None and not caller.record.grant.may_publish(tags):
        raise NotGranted


def _envelope(request: Request, caller: Caller, now: float) -> Envelope:
    """What stands beside the topic and the body.

    Raises:
        Problem: it can't be understood (400), or the token is another user's (403).
        BadRequest, InvalidAudience: it can't be said.
    """
    query = Query(request)
    filters: dict[str, str] = {}
    for name in query.names:
        if name in (_USER_ID, _MESSAGE_ID):
            continue
        attribute = _WORD.sub("_", name.removeprefix(_FILTER)).lower()
        # One that is passed over may be a filter that was meant.
        if not name.startswith(_FILTER) or attribute in filters:
            raise Problem(400, "invalid_query", "expected userId, messageId and filters, each once")
        filters[attribute] = query.one(name) or ""
    attributes = None if caller.record is None else caller.record.attributes
    fields = {
        USER: _user(query.one(_USER_ID) or "", "" if attributes is None else attributes.user),
        APPLICATION: "" if attributes is None else attributes.client,
        MESSAGE_ID: query.one(_MESSAGE_ID) or "",
        HEADERS: _headers(request),
    }
    check_field("user id", fields[USER])
    check_field("message id", fields[MESSAGE_ID])
    audience = _audience(filters) if filters else None
    if attributes is not None and attributes.site:
        audience = for_site(audience, attributes.site)
    meta = {name: text.encode() for name, text in fields.items() if text}
    return Envelope(time=now, audience=audience, meta=meta)


def _user(named: str, own: str) -> str:
    """The publisher: the token's user if it has one, even if another one is named."""
    if own and named not in ("", own):
        raise Problem(403, "not_granted", "the token is another user's")
    return own or named


def _audience(filters: Mapping[str, str]) -> Audience:
    """Sessions that have all of these attributes."""
    others = dict(filters)
    user, client = others.pop("user_id", None), others.pop("application_id", None)
    return Audience.of(
        users=None if user is None else [user],
        clients=None if client is None else [client],
        others=others,
    )


def _headers(request: Request) -> str:
    """The headers of the message as JSON, names as Go writes them; empty where there are none."""
    found = {
        "-".join(map(str.capitalize, name.removeprefix(_HEADER).split("-"))): value
        for name, value in reversed(request.headers.items())
        if name.startswith(_HEADER) and name != _HEADER
    }
    text = {
        name: value.encode("latin-1").decode("utf-8", "replace") for name, value in found.items()
    }
    return msgspec.json.encode(dict(reversed(text.items()))).decode() if text else ""


async def _subscribers(hub: Hub, tags: TagSet) -> list[Subscriber]:
    receivers = await outcome_of(hub.broker.receivers(tags))
    sessions = list(hub.sessions)
    found: list[Subscriber] = []
    for start in range(0, len(sessions), _SLICE):
        some = sessions[start : start + _SLICE]
        found += [_subscriber(each) for each in some if each.outbox in receivers]
        await trio.lowlevel.checkpoint()
    return found


def _subscriber(session: ConnectedSession) -> Subscriber:
    user = session.attributes.user
    if isinstance(session, CommandSession) and isinstance(session.protocol, TopicProtocol):
        user = session.protocol.user  # the name that other clients see
    return Subscriber(user, session.attributes.client)


_TOPIC: Final = parameter(
    "topic",
    "A topic without its first slash; it may have more of them.",
    {"type": "string", "minLength": 1},
    place="path",
    example="foo",
)

OPERATIONS: Final[Operations] = {
    "/api/message/{topic}": {
        "post": Operation(
            summary="Publish to a topic, as with guble",
            details="The body is the message's, of any type where no page sends it. "
            "`X-Guble-Key: v` is a header of it. `filterUserID=u` has it reach that user only, "
            "`filterApplicationID` that client, any other `filterFooBar` who has the attribute "
            "`foo_bar`; all of them hold. A token needs the right to publish. Other methods are "
            "refused with `Method not allowed`.",
            who=EITHER,
            parameters=[
                _TOPIC,
                parameter("userId", "Who publishes it.", {"type": "string"}, example="marvin"),
                parameter("messageId", "As which message.", {"type": "string"}, example="42"),
            ],
            body=Body({"type": "string"}, "hello", media_type="text/plain"),
            answers={
                200: Answer(
                    "Stored, where there is a history, and delivered.", media_type="text/plain"
                )
            },
            problems={404: "There is no topic.", 503: "The history can't be written."},
        )
    },
    "/api/subscribers/{topic}": {
        "get": Operation(
            summary="Who is subscribed to a topic",
            who=SERVICE,
            parameters=[_TOPIC],
            answers={
                200: Answer(
                    "Who gets what is published to it.",
                    list[Subscriber],
                    [{"user_id": "marvin", "application_id": "phone1"}],
                )
            },
            problems={404: "There is no topic."},
        )
    },
}
