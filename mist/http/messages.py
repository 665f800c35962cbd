"""Messages: publishing, and reading the history.

POST /v1/messages       all of a request's messages or none; durable when answered, if there is a
                        history
GET /v1/messages        a page of messages that match any of some tag sets, by ascending ids
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.audience import Audience
from mist.auth import Record
from mist.broker.attribute_index import for_site
from mist.commands import Since
from mist.errors import HistoryOff, NotGranted
from mist.history import Key, Selection, StoredMessage
from mist.history.cursor import Cursor
from mist.history.visibility import visible_to
from mist.http.access import Caller
from mist.http.bodies import NDJSON, answer, whole_body
from mist.http.context import Context
from mist.http.idempotency import KEY, conflict, key_of
from mist.http.openapi import EITHER, NO_HISTORY, Answer, Operation, Operations
from mist.http.paging import LIMIT, limit_of
from mist.http.problems import Problem
from mist.http.publications import BODY, Publications, read_publications
from mist.http.queries import SINCE, TAGS, Query, Wanted
from mist.message import Envelope, TagSet
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer

__all__ = ["EXAMPLE", "OPERATIONS", "Message", "check_room", "routes"]

_PAGE: Final = 1 << 20  # bytes of messages, after which a page ends
_MOST_LOST: Final = 100  # ranges, after which a page ends

_UNAVAILABLE: Final = "The history can't be read or written; nothing was stored."
EXAMPLE: Final = {"keys": ["news"], "id": 17, "data": "hello", "time": 1767225600.0}
"""A message, as the OpenAPI page shows one."""


class Published(msgspec.Struct, frozen=True):
    """The id of one message; of a list the ids of its first and last message, and their number."""

    id: int | UnsetType = UNSET
    ids: Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)] | UnsetType = UNSET
    count: int | UnsetType = UNSET


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message: `data64` instead of `data` where it isn't UTF-8; `time` in Unix seconds."""

    keys: list[str]
    data: str | UnsetType = UNSET
    data64: bytes | UnsetType = UNSET
    id: int
    time: float | UnsetType = UNSET
    publisher: str | UnsetType = UNSET
    to: dict[str, str | list[str]] | UnsetType = UNSET


class LostRange(msgspec.Struct, frozen=True):
    """Ids from `first` to `last` that can't be read: the log is damaged there."""

    first: int
    last: int


class MessagePage(msgspec.Struct, frozen=True):
    """A page of the history.

    Attributes:
        first, newest: ids kept.
        id: where the next page begins.
        recovered: False where part of what was requested was removed or is damaged.
        complete: whether there is no more.
        lost: damaged ranges of ids.
    """

    epoch: str
    first: int
    newest: int
    id: int
    recovered: bool
    complete: bool
    lost: list[LostRange]
    messages: list[Message]


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/messages`."""

    async def publish(request: Request) -> Response:
        caller = await context.access.caller(request)
        check_room(context.hub)
        body = await whole_body(request)
        kind = request.headers["content-type"].partition(";")[0].strip().lower()
        found = read_publications(body, context.hub.limits, lines=kind == NDJSON)
        key = key_of(request, caller, body, kind)
        return await _publish(
            context.hub, found, key, lambda: context.access.again(caller, request)
        )

    async def read(request: Request) -> Response:
        caller = await context.access.caller(request)
        sequencer = context.hub.sequencer
        if sequencer is None:
            raise HistoryOff
        wanted = Wanted.of(request, context.hub.limits)
        limit = limit_of(Query(request))
        _check_reading(context.hub, caller.record, wanted.tag_sets)
        since = wanted.since or Since(after=0)
        selection = Selection.asked(wanted.tag_sets)
        return answer(await _read(sequencer, selection, since, limit, caller))

    async def either(request: Request) -> Response:
        return await (publish if request.method == "POST" else read)(request)

    # One route, so that the answer to any other method names both.
    return [Route("/v1/messages", either, methods=["GET", "POST"])]


# publishing


async def _publish(
    hub: Hub, found: Publications, key: Key | None, caller_now: Callable[[], Caller]
) -> Response:
    def checked() -> tuple[str, list[Envelope | None]]:
        """The publisher, and the envelope of each message."""
        check_room(hub)
        caller = caller_now()
        _check_publishing(caller.record, found)
        site = "" if caller.record is None else caller.record.attributes.site
        audiences = [for_site(each, site) if site else each for each in found.audiences]
        return caller.name, [
            None if each is None else Envelope(audience=each) for each in audiences
        ]

    def publish() -> int:
        return hub.publish_all(found.messages, *checked())

    async def store() -> int:
        name, envelopes = checked()
        return await hub.store_all(found.messages, name, key, envelopes)

    if hub.sequencer is None:
        if key is None:
            publish()
        elif not hub.keys_in_memory.once(key, publish):
            raise conflict()
        return answer({}, 202)
    first = await (store() if key is None else hub.sequencer.keys_in_flight.once(key, store))
    if first is None:
        raise conflict()
    count = len(found.messages)
    if found.is_list:
        return answer(Published(ids=[first, first + count - 1], count=count))
    return answer(Published(id=first))


def check_room(hub: Hub) -> None:
    """Refuse a publish (503) where too much waits for the disk, which is backpressure.

    And where the server shuts down and stores nothing: those who are told goodbye would miss it.
    """
    if hub.ending and hub.sequencer is None:
        raise Problem(503, "draining", "the server is shutting down", {"Retry-After": "1"})
    if hub.sequencer is not None and hub.sequencer.congested:
        raise Problem(503, "busy", "too much is waiting to be stored", {"Retry-After": "1"})


def _check_publishing(record: Record | None, found: Publications) -> None:
    if record is None:
        return
    for tags in {tags for tags, _ in found.messages}:
        if not record.grant.may_publish(tags):
            raise NotGranted


# reading


async def _read(
    sequencer: Sequencer, selection: Selection | None, since: Since, limit: int, caller: Caller
) -> MessagePage:
    cursor, newest = Cursor(sequencer.history), sequencer.newest
    recovered = await cursor.begin(since, selection, newest)
    messages: list[Message] = []
    size = 0  # of what the caller gets, in bytes
    site = "" if caller.record is None else caller.record.attributes.site
    while cursor.place < newest and len(cursor.lost) < _MOST_LOST:
        # For one that is bound to a site, messages of others take no room in a page: from what is
        # missing in it one could tell how many there are.
        if messages and (not site or len(messages) >= limit or size >= _PAGE):
            break
        piece = await cursor.read(
            selection, newest, limit=limit - len(messages), max_bytes=_PAGE - size
        )
        recovered = recovered and piece.missing is None
        cursor.take(piece)
        for stored in piece.page.stored:
            may = stored if caller.record is None else visible_to(stored, caller.record.attributes)
            if may is not None:
                messages += [_message_of(each, caller) for each in may.messages()]
                size += may.size
    position = await sequencer.history.position()
    return MessagePage(
        epoch=sequencer.epoch,
        first=position.first,
        newest=newest,
        id=cursor.place,
        recovered=recovered,
        complete=cursor.place >= newest,
        lost=[LostRange(each.first, each.last) for each in cursor.lost],
        messages=messages,
    )


def _check_reading(hub: Hub, record: Record | None, tag_sets: Iterable[TagSet]) -> None:
    if record is None:
        return
    strict = hub.hub_limits.strict_grants
    if not all(record.grant.permits(tags, strict=strict) for tags in tag_sets):
        raise NotGranted


def _message_of(message: StoredMessage, caller: Caller) -> Message:
    """A message as JSON; only services learn its publisher and audience."""
    data: str | UnsetType = UNSET
    data64: bytes | UnsetType = UNSET
    try:
        data = message.data.decode()
    except UnicodeDecodeError:
        data64 = message.data  # which is written in Base64
    return Message(
        keys=sorted(message.tags),
        data=data,
        data64=data64,
        id=message.id,
        time=message.time,
        publisher=(message.publisher if caller.is_service else "") or UNSET,
        to=(
            Audience.parse(message.audience).as_json()
            if caller.is_service and message.audience
            else UNSET
        ),
    )


OPERATIONS: Final[Operations] = {
    "/v1/messages": {
        "post": Operation(
            summary="Publish",
            details="One message, or a list, all or nothing; or NDJSON. A token needs the right "
            "to publish.",
            who=EITHER,
            parameters=[KEY],
            body=BODY,
            answers={
                200: Answer("Stored, and delivered to subscribers.", Published, {"id": 17}),
                202: Answer("Delivered to subscribers; there is no history.", {}, {}),
            },
            problems={422: "The key was used with another body.", 503: _UNAVAILABLE},
        ),
        "get": Operation(
            summary="Read the history",
            who=EITHER,
            parameters=[TAGS, SINCE, LIMIT],
            answers={
                200: Answer(
                    "A page.",
                    MessagePage,
                    {
                        "epoch": "9f86d081884c7d65",
                        "first": 1,
                        "newest": 17,
                        "id": 17,
                        "recovered": True,
                        "complete": True,
                        "lost": [],
                        "messages": [EXAMPLE],
                    },
                )
            },
            problems={409: NO_HISTORY, 503: _UNAVAILABLE},
        ),
    },
}
