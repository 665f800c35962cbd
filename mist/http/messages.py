"""Messages: publishing, and reading the history.

POST /v1/messages       all of a request's messages or none; durable when answered, if there is a
                        history
GET /v1/messages        a page of messages that match any of some tag sets, by ascending ids
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Final

import attrs
import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.audience import Audience
from mist.broker.attribute_index import for_site
from mist.commands import Since
from mist.errors import HistoryOff, NotGranted
from mist.history import Key, Selection, StoredMessage
from mist.history.cursor import Cursor
from mist.history.visibility import visible_to
from mist.http.access import Caller
from mist.http.bodies import NDJSON, answer, media_type, whole_body
from mist.http.context import Context
from mist.http.idempotency import KEY, conflict, key_of
from mist.http.openapi import EITHER, NO_LATEST, Answer, Operation, Operations
from mist.http.paging import LIMIT, limit_of
from mist.http.problems import Problem
from mist.http.publications import BODY, Reading
from mist.http.queries import LATEST, SINCE, TAGS, Query, Wanted
from mist.http.reading import check_reading
from mist.message import Envelope
from mist.sessions.batching import Checked
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer
from mist.turns import emptying

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
        # Who may not publish is told so before anything is read, let alone looked at; unless it
        # may be the repeat of something that was published while it might.
        caller = await context.access.caller(request)
        if not (caller.publishes or "idempotency-key" in request.headers):
            raise NotGranted
        check_room(context.hub)
        body = await whole_body(request)
        kind = media_type(request)
        key = key_of(request, caller, body, kind)
        return await _Publishing(context, request, caller).publish(body, key, lines=kind == NDJSON)

    async def read(request: Request) -> Response:
        caller = await context.access.caller(request)
        sequencer = context.hub.sequencer
        if sequencer is None:
            raise HistoryOff
        wanted = Wanted.of(request, context.hub.limits)
        limit = limit_of(Query(request))
        since = wanted.since or Since(after=0)
        selection = Selection.asked(wanted.tag_sets)
        while True:
            await check_reading(context.hub, request, caller, wanted.tag_sets)
            page = await _read(sequencer, selection, since, limit, caller)
            before, caller = caller, context.access.again(caller, request)
            if caller.record == before.record:
                return answer(page)
            # The token has changed meanwhile.

    async def either(request: Request) -> Response:
        return await (publish if request.method == "POST" else read)(request)

    # One route, so that the answer to any other method names both.
    return [Route("/v1/messages", either, methods=["GET", "POST"])]


# publishing


class _Publishing:
    """One request to publish.

    Args:
        context: of the server.
        request: with its body read.
        caller: of it.
    """

    def __init__(self, context: Context, request: Request, caller: Caller) -> None:
        self._hub = context.hub
        self._access = context.access
        self._request = request
        self._caller = caller
        self._account = context.access.account(caller, request)
        grant = None if caller.record is None else caller.record.grant
        self._found = Reading(context.hub.limits, grant)
        self._envelopes: list[Envelope | None] = []
        self._site: str | None = None  # for which these were made

    async def publish(self, body: bytes, key: Key | None, *, lines: bool) -> Response:
        """Publish a body's messages, and answer."""
        hub, found = self._hub, self._found
        await hub.turns.drive(found.steps(body, lines=lines), self._account)
        del body
        count = len(found.messages)
        self._access.charge(self._caller, count)
        if hub.sequencer is None:
            if not await self._publish_live(key):
                raise conflict()
            return answer({}, 202)
        first = await (
            self._store(None)
            if key is None
            else hub.sequencer.keys_in_flight.once(key, lambda: self._store(key))
        )
        if first is None:
            raise conflict()
        if found.is_list:
            return answer(Published(ids=[first, first + count - 1], count=count))
        return answer(Published(id=first))

    async def _publish_live(self, key: Key | None) -> bool:
        """Publish where there is no history; False where the key was used for something else."""
        hub = self._hub
        with Checked(hub.broker) as checked:
            await self._check(checked)
            # From here to the first message without an await. Once that is published all will be.
            fresh: list[Key] = []
            if key is not None and not hub.keys_in_memory.once(key, lambda: fresh.append(key)):
                return False
            if key is None or fresh:
                await hub.publish_checked(checked, self._envelopes, self._account)
            await self._let_go(checked)
        return True

    async def _store(self, key: Key | None) -> int:
        """Publish durably; the id of the first."""
        hub = self._hub
        with Checked(hub.broker) as checked:
            await self._check(checked)
            first = await hub.store_checked(checked, self._caller.name, key, self._envelopes)
            await self._let_go(checked)
        return first

    async def _check(self, checked: Checked) -> None:
        """Check the messages, in turns, and then the right to publish them: see `_authorize`.

        Args:
            checked: takes them in.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, TooManyMatches: of the first invalid one.
            NotGranted, Problem: as `_authorize`; or too much waits for the disk (503).
        """
        await self._hub.check(checked, self._found.messages, self._account)
        await self._authorize(checked)
        check_room(self._hub)

    async def _let_go(self, checked: Checked) -> None:
        """Free the messages, in turns."""
        await self._hub.let_go(checked, self._account)
        found = self._found
        await self._hub.turns.drive(emptying(found.messages), self._account)

    async def _authorize(self, checked: Checked) -> None:
        """Check the right to publish all of it, and make the batches, in turns.

        When this returns the token is as it was when the last message was checked, and its site as
        it is in the batches; it stays so until the next await.

        Raises:
            NotGranted: the token may not publish one of them.
            Problem: the token was revoked (401).
        """
        found = self._found
        while True:
            caller = self._caller = self._access.again(self._caller, self._request)
            record = caller.record
            if record is not None and found.grant != record.grant:  # the token has changed since
                await self._hub.turns.drive(found.ask(record.grant), self._account)
                continue
            if not found.granted:
                raise NotGranted
            site = "" if record is None else record.attributes.site
            if site == self._site:
                return
            traced = self._traced()
            if traced is None and not site and not any(found.audiences):
                self._envelopes, self._site = [], site  # nothing beside, as nearly always
                return
            await self._hub.turns.drive(self._address(site, traced, checked), self._account)

    def _address(self, site: str, traced: Envelope | None, checked: Checked) -> Iterator[None]:
        """Address all messages, in steps; neighbours with one audience have one envelope."""
        self._site = None
        audiences = self._found.audiences
        if not site and not any(audiences):
            self._envelopes = [traced] * len(audiences)
        else:
            self._envelopes = []
            for audience, same in groupby(audiences):
                bound = for_site(audience, site) if site else audience
                envelope = traced
                if bound is not None:
                    bound.text  # noqa: B018  # kept, as by `Reading`
                    envelope = attrs.evolve(traced or Envelope(), audience=bound)
                self._envelopes += [envelope] * len(list(same))
                yield
        yield from checked.address(self._envelopes)
        self._site = site

    def _traced(self) -> Envelope | None:
        """What tells consumers the trace; None where the publisher doesn't know it either."""
        tracing = self._hub.tracing
        if tracing is None or "traceparent" not in self._request.headers:
            return None
        from mist.protocols.subjects.forms import HEADERS, header_block  # only to trace

        return Envelope(meta={HEADERS: header_block(tracing.headers())})


def check_room(hub: Hub) -> None:
    """Refuse a publish (503) where too much waits for the disk, which is backpressure.

    And where the server shuts down and stores nothing: subscribers, whose sessions end, would
    miss it.
    """
    if hub.ending and hub.sequencer is None:
        raise Problem(503, "draining", "the server is shutting down", {"Retry-After": "1"})
    if hub.sequencer is not None and hub.sequencer.congested:
        raise Problem(503, "busy", "too much is waiting to be stored", {"Retry-After": "1"})


# reading


async def _read(
    sequencer: Sequencer, selection: Selection | None, since: Since, limit: int, caller: Caller
) -> MessagePage:
    await sequencer.reach(since)
    cursor, newest = Cursor(sequencer.history), sequencer.newest
    attributes = None if caller.record is None else caller.record.attributes
    recovered = await cursor.begin(since, selection, newest, lambda: attributes)
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
            parameters=[TAGS, SINCE, LATEST, LIMIT],
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
            problems={409: NO_LATEST, 503: _UNAVAILABLE},
        ),
    },
}
