"""`GET /v1/stream`: Server-Sent Events.

A stream is a session like any other: its deliveries, limits and rights are those of a
WebSocket, and so is its recovery from the history. Its outbox writes on the connection as a
WebSocket's does, without a task and without a copy: an event is encoded once for all streams.

A stream that the server ends says why in its last event (`event: end`). Its connection ends with
it.
"""

from collections.abc import Sequence
from typing import Final

import trio
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from mist.errors import CommandError, HistoryUnavailable
from mist.http.context import Context
from mist.http.exchange import HandedOver, HandsOver
from mist.http.openapi import CLIENT, NO_LATEST, Answer, Operation, Operations
from mist.http.queries import CLIENT_ID, LAST, LATEST, SINCE, TAGS, Wanted
from mist.http.subscribers import (
    REFUSED,
    UNAVAILABLE,
    StreamSession,
    authenticated,
    disconnected,
    open_stream,
    refusal_of,
    subscriber_route,
)
from mist.protocols.event_forms import end_event, notice_event, ready_event
from mist.replies import Resumed
from mist.sessions.close_reason import DISCONNECTED, HISTORY_LOST
from mist.sessions.session import Notice

__all__ = ["HEADERS", "OPERATIONS", "routes"]

HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
    (b"connection", b"close"),
]


class _EventStream:
    """One request for a stream, and its answer: an ASGI application.

    Args:
        context: what the routes share.
        request: with nothing of its body read.
    """

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._form = context.streams.form_for(request.scope["http_version"])
        self._body: HandedOver | None = None  # until there is an answer
        self._early: list[Notice] = []  # notices from before there was one
        self._failure: CommandError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        caller = await authenticated(context, self._request, receive)
        if caller is None:
            return
        # No await from here on until the token's changes reach the session.
        wanted = Wanted.of(self._request, context.hub.limits)
        async with open_stream(context, self._request, caller, self._form, self._notify) as session:
            try:
                with session.scope:
                    await self._serve(session, wanted, receive)
            finally:
                context.streams.remove(session)
            session.end(DISCONNECTED)
            reason = session.ended
            assert reason is not None
            if self._body is not None and reason is not DISCONNECTED:
                form = self._form
                event = end_event(reason.code, reason.reason)
                session.outbox.reply(form.frame(event) + form.ending)
                session.outbox.close()
                await self._body.finish(reason.grace)
        if self._body is None and reason is not DISCONNECTED:
            raise self._failure or refusal_of(reason)

    async def _serve(self, session: StreamSession, wanted: Wanted, receive: Receive) -> None:
        """Subscribe, and wait until the client has disconnected."""
        if wanted.since is None:
            await self._subscribe(session, wanted)
            await disconnected(session, receive)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._subscribe, session, wanted)
            await disconnected(session, receive)
            nursery.cancel_scope.cancel()

    async def _subscribe(self, session: StreamSession, wanted: Wanted) -> None:
        """Subscribe; where the stream begins in the history, replay that first."""

        def answer(resumed: Resumed | None) -> None:
            self._begin(session, ready_event(resumed, is_place=wanted.since is None))

        try:
            wanted.describe(session)
            if session.hub.subscription_callout is not None:
                await session.hub.subscription_callout.allow(session, wanted.tag_sets)
            if wanted.since is not None:
                await session.resume(wanted.tag_sets, wanted.since, answer)
                return
            session.subscribe_all(wanted.tag_sets)
            sequencer = session.hub.sequencer
            if sequencer is None:
                answer(None)
            else:
                answer(Resumed(sequencer.epoch, sequencer.newest, True, 0))
        except HistoryUnavailable:  # its text is for those who run the server
            session.end(HISTORY_LOST)
        except CommandError as error:
            self._failure = error
            session.end(REFUSED)

    def _begin(self, session: StreamSession, ready: bytes) -> None:
        """Answer. From now on the outbox, in which nothing is queued yet, writes the body."""
        exchange: HandsOver = self._request.scope["extensions"]["mist.connection"]
        self._body = exchange.hand_over(session.outbox, HEADERS, chunked=self._form.is_chunked)
        session.outbox.reply(self._form.frame(ready))
        for notice in self._early:
            session.outbox.reply(self._notify(notice))
        self._context.streams.add(session, self._form)
        session.outbox.flush()

    def _notify(self, notice: Notice) -> bytes:
        """See `Session`. The head of the answer comes first."""
        if self._body is None:
            self._early.append(notice)
            return b""
        event = notice_event(notice)
        return self._form.frame(event) if event else b""


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/stream`."""
    return [subscriber_route("/v1/stream", lambda request: _EventStream(context, request))]


OPERATIONS: Final[Operations] = {
    "/v1/stream": {
        "get": Operation(
            summary="Subscribe: Server-Sent Events",
            details="First `ready`; then a message each, with `id: EPOCH:ID` where there is a "
            "history; `gap`, `revoked`, and `end` as the last word. A comment every 15 s.",
            who=CLIENT,
            parameters=[TAGS, SINCE, LATEST, LAST, CLIENT_ID],
            answers={200: Answer("Events, without end.", media_type="text/event-stream")},
            problems={409: NO_LATEST, 503: UNAVAILABLE},
        )
    },
}
