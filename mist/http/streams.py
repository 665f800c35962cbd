"""`GET /v1/stream`: Server-Sent Events.

A stream is a session like any other: its deliveries, bounds and rights are those of a
WebSocket, and so is the way back through the history. Only its bytes go another way: ASGI's
`send` writes them, so there is a task that hands it what is queued, a piece at a time.

How it ends: with a word that says why (`event: end`) where the server ends it, and with the
connection in any case.
"""

from collections.abc import Sequence
from typing import Final

import trio
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from mist.broker.outbox import Outbox
from mist.errors import CommandError, HistoryUnavailable
from mist.http.context import Context
from mist.http.openapi import CLIENT, NO_HISTORY, Answer, Operation, Operations
from mist.http.queries import CLIENT_ID, LAST, SINCE, TAGS, Wanted
from mist.http.subscribers import (
    REFUSED,
    UNAVAILABLE,
    asker,
    opened,
    subscriber_route,
    until_gone,
    why_refused,
)
from mist.protocols.event_forms import end_event, notice_event, ready_event
from mist.replies import Resumed
from mist.sessions.close_reason import DISCONNECTED, HISTORY_LOST
from mist.sessions.session import Session

__all__ = ["OPERATIONS", "routes"]

_PIECE: Final = 65_536  # bytes handed on at a time: what is handed on can't be taken back
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
    (b"connection", b"close"),
]


class _Writer:
    """Hands on what is queued.

    Args:
        outbox: whose `flush` this becomes.
        send: takes ASGI messages, and returns when the kernel has them.

    Attributes:
        begun: whether there is something to answer.
        started: whether the answer's beginning is written.
    """

    def __init__(self, outbox: Outbox, send: Send) -> None:
        self.begun = self.started = False
        self._outbox = outbox
        self._send = send
        self._ending = self._abandoned = False
        self._wanted = trio.Event()
        self._done = trio.Event()
        outbox.flush = self._wake

    def begin(self) -> None:
        """There is an answer: from now on, write."""
        self.begun = True
        self._wake()

    def _wake(self) -> None:
        if self.begun:
            self._wanted.set()

    async def run(self) -> None:
        """Write until `finish`."""
        outbox = self._outbox
        await self._wanted.wait()
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self.started = True
        while True:
            while outbox.size:
                piece = bytes(outbox.peek()[:_PIECE])
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
                if self._abandoned:  # and the outbox emptied
                    return
                outbox.sent(len(piece))
            if self._ending:
                break
            self._wanted = trio.Event()
            await self._wanted.wait()
        self._done.set()

    async def finish(self, grace: float) -> None:
        """Write what is queued, and no more than that.

        Args:
            grace: seconds for the peer to take it.
        """
        self._ending = True
        self._wake()
        with trio.move_on_after(grace):
            await self._done.wait()

    def abandon(self) -> None:
        """Hand on nothing any more. What was is the connection's, which has its own patience."""
        self._abandoned = True


class _EventStream:
    """One request for a stream, and its answer: an ASGI application.

    Args:
        context: what the routes share.
        request: with nothing of its body read.
    """

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._failure: CommandError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        caller = await asker(context, self._request, receive)
        if caller is None:
            return
        # No await from here on until the token's changes reach the session.
        wanted = Wanted.of(self._request, context.hub.limits)
        form = context.streams.form
        async with opened(
            context, self._request, caller, form, notice_event, transport="sse"
        ) as session:
            writer = _Writer(session.outbox, send)
            await self._serve(session, wanted, writer, receive)
        assert session.ended is not None
        if writer.started:
            # Even where the client is gone: the connection is not used again then.
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif session.ended is not DISCONNECTED:
            raise self._failure or why_refused(session.ended)

    async def _serve(
        self, session: Session, wanted: Wanted, writer: _Writer, receive: Receive
    ) -> None:
        async with trio.open_nursery() as writing:
            writing.start_soon(writer.run)
            with session.scope, self._context.streams.heartbeats(session.outbox):
                async with trio.open_nursery() as reading:
                    reading.start_soon(self._subscribe, session, wanted, writer)
                    await until_gone(receive)
                    reading.cancel_scope.cancel()
            session.end(DISCONNECTED)
            ending = session.ended
            assert ending is not None
            if writer.begun and ending is not DISCONNECTED:
                session.outbox.reply(end_event(ending.code, ending.reason))
                session.outbox.close()
                await writer.finish(ending.grace)
            writer.abandon()
            # Now: the nursery may have to wait for a peer that has stopped reading.
            await session.aclose()
            writing.cancel_scope.cancel()

    async def _subscribe(self, session: Session, wanted: Wanted, writer: _Writer) -> None:
        def answer(resumed: Resumed | None) -> None:
            session.outbox.reply(ready_event(resumed, is_place=wanted.since is None))
            writer.begin()

        try:
            wanted.describe(session)
            if wanted.since is not None:
                await session.resume(wanted.tag_sets, wanted.since, answer)
                return
            session.subscribe_all(wanted.tag_sets)
            sequencer = session.hub.sequencer
            if sequencer is None:
                answer(None)
            else:
                answer(Resumed(sequencer.epoch, sequencer.newest, True, 0))
        except HistoryUnavailable:  # its text is for whoever looks after the server
            session.end(HISTORY_LOST)
        except CommandError as error:
            self._failure = error
            session.end(REFUSED)


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
            parameters=[TAGS, SINCE, LAST, CLIENT_ID],
            answers={200: Answer("Events, without end.", media_type="text/event-stream")},
            problems={409: NO_HISTORY, 503: UNAVAILABLE},
        )
    },
}
