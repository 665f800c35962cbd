"""Messages: publishing, and reading the history.

POST /v1/messages       all of a request's messages or none; durable when answered, if there is a
                        history
GET /v1/messages        a page of messages that match any of some tag sets, by ascending ids
"""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.commands import Since
from mist.errors import HistoryOff, NotGranted
from mist.history import Selection
from mist.http.bodies import NDJSON, answer, media_type, whole_body
from mist.http.context import Context
from mist.http.idempotency import KEY, key_of
from mist.http.message_pages import EXAMPLE, Message, MessagePage, read_page
from mist.http.openapi import EITHER, NO_LATEST, Answer, Operation, Operations
from mist.http.paging import LIMIT, limit_of
from mist.http.publications import BODY
from mist.http.publishing import Published, Publishing, check_room
from mist.http.queries import LATEST, SINCE, TAGS, Query, Wanted
from mist.http.read_turns import ReadTurns
from mist.http.reading import check_reading

__all__ = ["OPERATIONS", "routes"]

_UNAVAILABLE: Final = "The history can't be read or written; nothing was stored."


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/messages`."""
    turns = ReadTurns()

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
        return await Publishing(context, request, caller).publish(body, key, lines=kind == NDJSON)

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
            await sequencer.reach(since)
            async with turns.turn(caller.name or request.state.peer):
                page = await read_page(sequencer, selection, since, limit, caller)
            before, caller = caller, context.access.again(caller, request)
            if caller.record == before.record:
                return answer(page)
            # The token has changed meanwhile.

    async def either(request: Request) -> Response:
        return await (publish if request.method == "POST" else read)(request)

    # One route, so that the answer to any other method names both.
    return [Route("/v1/messages", either, methods=["GET", "POST"])]


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
                    parts=[Message],
                )
            },
            problems={409: NO_LATEST, 503: _UNAVAILABLE},
        ),
    },
}
