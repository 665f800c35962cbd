"""An answer that is an event stream: what all routes of Server-Sent Events have in common.

A stream is a session like any other: its deliveries, limits and rights are those of a
WebSocket, and so is its recovery from the history. Its outbox writes on the connection as a
WebSocket's does, without a task and without a copy: an event is encoded once for all streams.

A stream that the server ends says why in its last event (`event: end`). Its connection ends with
it.
"""

from abc import ABC, abstractmethod
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from mist.errors import CommandError
from mist.http.context import Context
from mist.http.exchange import HandedOver, HandsOver
from mist.http.subscribers import (
    REFUSED,
    StreamSession,
    authenticated,
    open_stream,
    refusal_of,
)
from mist.protocols.event_forms import end_event, notice_event
from mist.sessions.close_reason import DISCONNECTED
from mist.sessions.session import Notice

__all__ = ["EventStream"]

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
    (b"connection", b"close"),
]


class EventStream(ABC):
    """One request for a stream, and its answer: an ASGI application.

    Args:
        context: what the routes share.
        request: with nothing of its body read.

    Attributes:
        context, request: as given.
        form: of its events.
    """

    def __init__(self, context: Context, request: Request) -> None:
        self.context = context
        self.request = request
        self.form = context.streams.form_for(request.scope["http_version"])
        self._body: HandedOver | None = None  # until there is an answer
        self._early: list[Notice] = []  # notices from before there was one
        self._failure: CommandError | None = None

    @abstractmethod
    def read(self) -> None:
        """Read the query, before there is a session; what it raises is the answer."""

    @abstractmethod
    async def serve(self, session: StreamSession, receive: Receive) -> None:
        """Have the session get what was asked for, `begin`, and wait until the client has
        disconnected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, form = self.context, self.form
        caller = await authenticated(context, self.request, receive)
        if caller is None:
            return
        # No await from here on until the token's changes reach the session.
        self.read()
        async with open_stream(context, self.request, caller, form, self.notify) as session:
            try:
                with session.scope:
                    await self.serve(session, receive)
            finally:
                context.streams.remove(session)
            session.end(DISCONNECTED)
            reason = session.ended
            assert reason is not None
            if self._body is not None and reason is not DISCONNECTED:
                event = end_event(reason.code, reason.reason)
                session.outbox.reply(form.frame(event) + form.ending)
                session.outbox.close()
                await self._body.finish(reason.grace)
        if self._body is None and reason is not DISCONNECTED:
            raise self._failure or refusal_of(reason)

    def begin(self, session: StreamSession, first: bytes) -> None:
        """Answer. From now on the outbox, in which nothing is queued yet, writes the body.

        Args:
            first: event.
        """
        exchange: HandsOver = self.request.scope["extensions"]["mist.connection"]
        self._body = exchange.hand_over(session.outbox, _HEADERS, chunked=self.form.is_chunked)
        session.outbox.reply(self.form.frame(first))
        for notice in self._early:
            session.outbox.reply(self.notify(notice))
        self.context.streams.add(session, self.form)
        session.outbox.flush()

    def refuse(self, session: StreamSession, error: CommandError) -> None:
        """End the stream; the error is the answer where there is none yet."""
        self._failure = error
        session.end(REFUSED)

    def notify(self, notice: Notice) -> bytes:
        """See `Session`. The head of the answer comes first."""
        if self._body is None:
            self._early.append(notice)
            return b""
        event = notice_event(notice)
        return self.form.frame(event) if event else b""
