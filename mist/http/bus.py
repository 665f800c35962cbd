"""`POST /message-bus/{client_id}/poll`: channels, for MessageBus's own client in a browser.

A poll is a session, as a stream is; it reads as `mist.bus.feed` does. What is particular here is
the form of questions and answers, which that client expects to the byte:

    plain       one JSON array, as soon as there is something; `[]` where nothing comes
    chunked     arrays as they come, a separator behind each, to the end of the poll's time

A client has one poll at a time. Its polls are numbered, and a lower number is an older one,
whose answer nobody waits for any more.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mist.bus.feed import Feed, Reader
from mist.bus.messages import BusMessage
from mist.bus.shown import BacklogLimits, Window
from mist.bus.wakeups import NUDGES, Nudged
from mist.errors import HistoryUnavailable
from mist.http.bus_polls import SUPERSEDED, Polls
from mist.http.bus_questions import MAX_BODY, MAX_CHANNELS, Question, read_question
from mist.http.context import Context
from mist.http.openapi import EITHER, Answer, Body, Operation, Operations, parameter
from mist.http.problems import Problem
from mist.http.subscribers import StreamSession, opened, until_gone, why_refused
from mist.replies import Resumed, Revoked
from mist.sessions.close_reason import DISCONNECTED, HISTORY_LOST, CloseReason
from mist.sessions.sequencer import Sequencer

__all__ = ["OPERATIONS", "routes"]

_PATH: Final = "/message-bus/{client_id}/poll"
_LONGEST: Final = 25.0  # seconds
_FIRST_CHUNK: Final = 1.0  # seconds; the client takes three for a proxy that holds chunks back
_SEPARATOR: Final = b"\r\n|\r\n"
_ESCAPED: Final = b"\r\n||\r\n"
_HEADERS: Final = {
    "cache-control": "must-revalidate, private, max-age=0",
    "pragma": "no-cache",
    "expires": "0",
}
_PLAIN: Final = "application/json; charset=utf-8"  # the client drops anything else in silence
_CHUNKED: Final = "text/plain; charset=utf-8"
_ANSWERED: Final = CloseReason(1000, "answered")


def _encode(messages: Sequence[BusMessage], status: Mapping[str, int]) -> bytes:
    """An answer, to the byte."""
    pieces = [message.json for message in messages]
    if status:
        pieces.append(
            b'{"global_id":-1,"message_id":-1,"channel":"/__status","data":%b}'
            % msgspec.json.encode(status)
        )
    return b"[%b]" % b",".join(pieces)


class _Chunks:
    """A chunked answer on its way."""

    def __init__(self, send: Send) -> None:
        self.started = False
        self._send = send
        self._turn = trio.Lock()

    async def start(self) -> None:
        """Say that there is nothing yet, unless something was said."""
        if not self.started:
            await self.give(b"[]")

    async def give(self, json: bytes) -> None:
        """Send an array."""
        async with self._turn:
            if not self.started:
                headers = {**_HEADERS, "content-type": _CHUNKED}
                pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
                pairs.append((b"x-accel-buffering", b"no"))  # nginx would hold chunks back
                await self._send({"type": "http.response.start", "status": 200, "headers": pairs})
                self.started = True  # not before: who is cancelled in there has not started
            body = json.replace(_SEPARATOR, _ESCAPED) + _SEPARATOR
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self) -> None:
        """Say that this is all."""
        async with self._turn:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class _Poll:
    """One request, and its answer: an ASGI application."""

    def __init__(self, endpoint: "_Endpoint", request: Request) -> None:
        self._endpoint = endpoint
        self._context = endpoint.context
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, request = self._context, self._request
        caller = await context.access.caller(request)
        body = await _body(receive)
        if body is None:
            return
        question = read_question(body, request.headers.get("content-type", ""))
        # No await from here on until the token's changes reach the session.
        caller = context.access.again(caller, request)
        if context.is_draining():
            raise why_refused(CloseReason(1001, ""))
        sequencer = context.hub.sequencer
        if sequencer is None:
            raise Problem(503, "history_off", "this server keeps no history, so no channels either")
        if not question.places:
            await _answer(b"[]")(scope, receive, send)
            return
        waits = request.query_params.get("dlp") != "t"
        is_chunked = (
            waits and scope["http_version"] == "1.1" and not request.headers.get("dont-chunk")
        )
        chunks = _Chunks(send) if is_chunked else None
        nudges: list[Nudged] = []

        def notify(notice: Revoked | Resumed) -> bytes:
            for each in nudges:
                each.nudge()
            return b""

        async with opened(context, request, caller, NUDGES, notify, transport="bus") as session:
            nudges.append(Nudged(session.outbox))
            session.set_client_id(request.path_params["client_id"])
            client = (caller.name, request.path_params["client_id"])
            with self._endpoint.polls.only(client, question.number, session):
                session.subscribe_all([frozenset({f"={name}"}) for name in question.places])
                feed = self._endpoint.feed(sequencer, session, question)
                started = trio.current_time()
                deadline = started + (_LONGEST if waits else 0.0)
                await self._run(session, feed, nudges[0], deadline, chunks, receive)
            session.outbox.mute()
            await self._end(session, feed, chunks, scope, receive, send)
            session.end(_ANSWERED)

    async def _run(
        self,
        session: StreamSession,
        feed: Feed,
        nudged: Nudged,
        deadline: float,
        chunks: _Chunks | None,
        receive: Receive,
    ) -> None:
        """Read until there is an answer, time is over, or the session has ended."""
        with session.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_when_gone, session, receive)
                if chunks is not None:
                    nursery.start_soon(_start_in_time, chunks)
                try:
                    await feed.begin()
                    await self._read(session, feed, nudged, deadline, chunks)
                except HistoryUnavailable:
                    session.end(HISTORY_LOST)
                nursery.cancel_scope.cancel()

    async def _read(
        self,
        session: StreamSession,
        feed: Feed,
        nudged: Nudged,
        deadline: float,
        chunks: _Chunks | None,
    ) -> None:
        while True:
            nudged.arm()
            more = await feed.read()
            if feed.full or (feed.has_news and not more):
                if chunks is None:
                    return
                await self._give(session, feed, chunks)
            if more:
                if trio.current_time() >= deadline + _LONGEST:  # it never ends
                    return
                continue
            if trio.current_time() >= deadline:
                return
            if chunks is not None:
                await chunks.start()
            await nudged.wait(deadline)

    async def _give(
        self, session: StreamSession, feed: Feed, chunks: _Chunks, *, final: bool = False
    ) -> None:
        messages, status = feed.take(final=final)
        if messages or status:
            json = _encode(messages, status)
            await chunks.give(json)
            session.outbox.sent_messages += len(messages)
            session.outbox.sent_bytes += len(json)

    async def _end(
        self,
        session: StreamSession,
        feed: Feed,
        chunks: _Chunks | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        ending = session.ended
        if ending is DISCONNECTED:
            if chunks is not None and chunks.started:
                await chunks.finish()
            return
        if chunks is not None and chunks.started:
            if ending is None:
                await self._give(session, feed, chunks, final=True)
            await chunks.finish()
            return
        if ending is SUPERSEDED:
            await _answer(b"[]", {"connection": "close"})(scope, receive, send)
            return
        if ending is not None and ending.code != 1001:
            raise why_refused(ending)
        messages, status = feed.take(final=True)
        response = _answer(_encode(messages, status))
        session.outbox.sent_messages += len(messages)
        session.outbox.sent_bytes += len(response.body)
        await response(scope, receive, send)


class _Endpoint:
    """What all polls share.

    Args:
        context: of the server.
    """

    def __init__(self, context: Context) -> None:
        config = context.config
        self.context = context
        self.polls = Polls()
        self._limits = BacklogLimits(
            config.bus_backlog_size, config.bus_backlog_total, config.bus_backlog_age
        )
        self._window: Window | None = None

    def feed(self, sequencer: Sequencer, session: StreamSession, question: Question) -> Feed:
        """What answers a question."""
        if self._window is None:
            self._window = Window(sequencer.history, self._limits.total)
        reader = Reader(
            lambda: {
                tag.removeprefix("=") for tags in session.subscriptions.tag_sets() for tag in tags
            },
            lambda: session.attributes,
            self.context.hub.client_filters,
        )
        return Feed(sequencer, question.places, reader, self._limits, self._window, time.time)


def _answer(json: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json, headers={**_HEADERS, "content-type": _PLAIN, **(headers or {})})


async def _body(receive: Receive) -> bytes | None:
    """A request's body; None where the client is gone.

    Raises:
        Problem: it is too long (413).
    """
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY:
            raise Problem(413, "payload_too_large", f"a poll has at most {MAX_BODY} bytes")
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _end_when_gone(session: StreamSession, receive: Receive) -> None:
    await until_gone(receive)
    session.end(DISCONNECTED)


async def _start_in_time(chunks: _Chunks) -> None:
    await trio.sleep(_FIRST_CHUNK)
    await chunks.start()


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/message-bus/{client_id}/poll`."""
    endpoint = _Endpoint(context)

    async def poll(request: Request) -> ASGIApp:
        if request.method == "OPTIONS":
            return Response(b"OK", headers=_HEADERS, media_type="text/plain")
        return _Poll(endpoint, request)

    return [Route(_PATH, poll, methods=["POST", "OPTIONS"])]


_PLACES: Final = {
    "type": "object",
    "description": "Channel to the number behind which to begin; -1 is now, -k the last k - 1. "
    "`__seq` numbers the client's polls.",
    "maxProperties": MAX_CHANNELS,
    "additionalProperties": {"type": "integer"},
}
_MESSAGES: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["global_id", "message_id", "channel", "data"],
        "properties": {
            "global_id": {"type": "integer"},
            "message_id": {"type": "integer"},
            "channel": {"type": "string"},
            "data": {},
        },
    },
}

OPERATIONS: Final[Operations] = {
    _PATH: {
        "options": Operation(
            summary="Whether there is such an endpoint",
            answers={200: Answer("There is.", media_type="text/plain")},
        ),
        "post": Operation(
            summary="Subscribe to channels, as MessageBus does",
            details="At once where there is something, else when something comes, or after 25 s. "
            "Where the request has no `Dont-Chunk`, in chunks: arrays with `\\r\\n|\\r\\n` behind "
            "each. A form needs the token in its header. The last item may be a status: how far "
            "channels are.",
            who=EITHER,
            parameters=[
                parameter(
                    "client_id",
                    "What the client calls itself. It stays the token's that used it first.",
                    {"type": "string", "minLength": 1, "maxLength": 255},
                    place="path",
                    example="4a1f6f6e7a5b4bd1",
                ),
                parameter("dlp", "`t`: answer at once.", {"type": "string"}, example="t"),
            ],
            body=Body(
                _PLACES,
                {"/foo": 3, "/bar": -1, "__seq": 7},
                {"application/x-www-form-urlencoded": _PLACES},
            ),
            answers={
                200: Answer(
                    "What came.",
                    _MESSAGES,
                    [{"global_id": 12, "message_id": 4, "channel": "/foo", "data": "hello"}],
                )
            },
            problems={
                409: "The client id is in use with another token.",
                503: "The server is going away, keeps no history, or can't read it.",
            },
        ),
    },
}
