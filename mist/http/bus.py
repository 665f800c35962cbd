"""`POST /message-bus/{client_id}/poll`: channels, for MessageBus's own client in a browser.

Long polling. A poll is a session, as a stream is, and reads the history with `mist.bus.feed`. Its
answers are what that client expects, to the byte:

    plain       one JSON array, as soon as there is something; `[]` where nothing comes
    chunked     arrays as they come, a separator behind each, to the end of the poll's time;
                written by the session's outbox, as deliveries to a WebSocket are

A client has one poll at a time. Its polls are numbered, and a lower number is an older one,
whose answer the client does not wait for any more.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mist.bus.feed import Feed, Reader
from mist.bus.messages import BusMessage
from mist.bus.shown import BacklogLimits, Window
from mist.bus.wakeups import WakeupOutbox
from mist.errors import HistoryUnavailable
from mist.http.bus_answers import NOTHING_YET, ChunkForm, encode_answer
from mist.http.bus_polls import SUPERSEDED, OpenPoll, Polls
from mist.http.bus_questions import MAX_BODY, MAX_CHANNELS, Question, read_question
from mist.http.context import Context
from mist.http.exchange import HandedOver, HandsOver
from mist.http.openapi import EITHER, Answer, Body, Operation, Operations, parameter
from mist.http.problems import Problem
from mist.http.rates import MAX_POLL_DELAY
from mist.http.read_turns import ReadTurns
from mist.http.subscribers import PollSession, end_when_disconnected, open_poll, refusal_of
from mist.sessions.close_reason import DISCONNECTED, HISTORY_LOST, CloseReason
from mist.sessions.sequencer import Sequencer
from mist.sessions.session import Notice

__all__ = ["OPERATIONS", "routes"]

_PATH: Final = "/message-bus/{client_id}/poll"
_MAX_SECONDS: Final = 25.0
_GRACE: Final = 10.0  # seconds for a client to take the rest of a chunked answer
_FIRST_CHUNK: Final = 1.0  # seconds; the client takes three for a proxy that holds chunks back
_HEADERS: Final = {
    "cache-control": "must-revalidate, private, max-age=0",
    "pragma": "no-cache",
    "expires": "0",
}
_PLAIN: Final = "application/json; charset=utf-8"  # the client drops anything else in silence
_CHUNKED_HEADERS: Final = [
    *((name.encode(), value.encode()) for name, value in _HEADERS.items()),
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # nginx would hold chunks back
]
_ANSWERED: Final = CloseReason(1000, "answered")


class _ChunkedAnswer:
    """A chunked answer, which the outbox of its session writes.

    Args:
        outbox: with nothing queued.
        form: shared by all polls.
        exchange: of the request.

    Attributes:
        body: None until the answer has started.
    """

    def __init__(self, outbox: WakeupOutbox, form: ChunkForm, exchange: HandsOver) -> None:
        self.body: HandedOver | None = None
        self._outbox = outbox
        self._form = form
        self._exchange = exchange

    def start(self) -> None:
        """Say that there is nothing yet, unless something was said."""
        if self.body is None:
            self._queue(NOTHING_YET, 0)

    async def start_in_time(self) -> None:
        """Start, though it may take the history longer to find something."""
        await trio.sleep(_FIRST_CHUNK)
        self.start()

    def queue(self, messages: Sequence[BusMessage], status: Mapping[str, int]) -> None:
        """Queue an array, however much is queued; mind `WakeupOutbox.wait_for_room`."""
        if messages or status:
            self._queue(self._form.join(messages, status), len(messages))

    def _queue(self, wire: bytes, count: int) -> None:
        outbox = self._outbox
        if self.body is None:
            self.body = self._exchange.hand_over(outbox, _CHUNKED_HEADERS, chunked=True)
        if not outbox.closed:
            outbox.note_replayed(count, owed=False)
            outbox.append(wire, count)
            outbox.flush()


class _Poll:
    """One request, and its answer: an ASGI application."""

    def __init__(self, endpoint: "_Endpoint", request: Request) -> None:
        self._endpoint = endpoint
        self._context = endpoint.context
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, request = self._context, self._request
        caller = await context.access.caller(request, MAX_POLL_DELAY)
        body = await _body(receive)
        if body is None:
            return
        question = read_question(body, request.headers.get("content-type", ""))
        # No await from here on until the token's changes reach the session.
        caller = context.access.again(caller, request)
        if context.is_draining():
            raise refusal_of(CloseReason(1001, ""))
        sequencer = context.hub.sequencer
        if sequencer is None:
            raise Problem(503, "history_off", "this server keeps no history, so no channels either")
        if not question.places:
            await _answer(b"[]")(scope, receive, send)
            return
        waits = request.query_params.get("dlp") != "t"

        def notify(notice: Notice) -> bytes:
            session.outbox.wake()
            return b""

        async with open_poll(context, request, caller, notify, transport="bus") as session:
            session.set_client_id(request.path_params["client_id"])
            client = (caller.name, request.path_params["client_id"])
            chunks = self._chunks(session) if waits else None
            polls = self._endpoint.polls
            since = polls.since(client, question, sequencer.newest)
            feed = self._endpoint.feed(sequencer, session, question, since)
            poll = OpenPoll(question.number, since, session, feed)
            with polls.only(client, poll):
                channels = [frozenset({f"={name}"}) for name in question.places]
                if context.hub.subscription_callout is not None:
                    await context.hub.subscription_callout.allow(session, channels)
                session.subscribe_all(channels)
                deadline = trio.current_time() + (_MAX_SECONDS if waits else 0.0)
                await self._run(poll, deadline, chunks, receive)
            # What is published from here on, its answer doesn't tell.
            told = feed.place if session.ended is None else sequencer.newest
            polls.note_end(client, poll, told, answered=session.ended is None)
            session.outbox.mute()
            if chunks is None or chunks.body is None:
                found = self._answer_at_once(session, feed)
                if found is not None:
                    response, count = found
                    await response(scope, receive, send)
                    session.note_answered(count, len(response.body))
            elif session.ended is None:
                chunks.queue(*feed.take(final=True))
                await chunks.body.finish(_GRACE)
            elif session.ended is not DISCONNECTED:
                await chunks.body.finish(session.ended.grace)
            session.end(_ANSWERED)

    def _chunks(self, session: PollSession) -> _ChunkedAnswer | None:
        """What a client is answered with that understands chunks; None for others."""
        scope = self._request.scope
        if scope["http_version"] != "1.1" or self._request.headers.get("dont-chunk"):
            return None
        exchange = scope["extensions"]["mist.connection"]
        return _ChunkedAnswer(session.outbox, self._endpoint.form, exchange)

    async def _run(
        self,
        poll: OpenPoll,
        deadline: float,
        chunks: _ChunkedAnswer | None,
        receive: Receive,
    ) -> None:
        """Read until there is an answer, time is over, or the session has ended."""
        session = poll.session
        with session.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_when_disconnected, session, receive)
                if chunks is not None:
                    nursery.start_soon(chunks.start_in_time)
                try:
                    await poll.feed.begin()
                    await self._read(poll, deadline, chunks)
                except HistoryUnavailable:
                    session.end(HISTORY_LOST)
                nursery.cancel_scope.cancel()

    async def _read(self, poll: OpenPoll, deadline: float, chunks: _ChunkedAnswer | None) -> None:
        feed, outbox = poll.feed, poll.session.outbox
        while True:
            outbox.arm()
            async with self._endpoint.turns.turn(outbox.owner or poll.session.peer):
                more = await feed.read()
            if feed.full or (feed.has_news and not more):
                if chunks is None:
                    return
                chunks.queue(*feed.take())
                self._endpoint.polls.note_told(poll)
                await outbox.wait_for_room()
            if more:
                if trio.current_time() >= deadline + _MAX_SECONDS:  # it never ends
                    return
                continue
            if trio.current_time() >= deadline:
                return
            if chunks is not None:
                chunks.start()
            await outbox.wait(deadline)

    def _answer_at_once(self, session: PollSession, feed: Feed) -> tuple[Response, int] | None:
        """A plain answer, and its messages' number; None where the client has disconnected.

        Raises:
            Problem: the session has ended for a reason that the client has to know.
        """
        reason = session.ended
        if reason is DISCONNECTED:
            return None
        if reason is SUPERSEDED:
            return _answer(b"[]", {"connection": "close"}), 0
        if reason is not None and reason.code != 1001:
            raise refusal_of(reason)
        messages, status = feed.take(final=True)
        return _answer(encode_answer(messages, status)), len(messages)


class _Endpoint:
    """What all polls share.

    Args:
        context: of the server.
    """

    def __init__(self, context: Context) -> None:
        config = context.config
        self.context = context
        self.polls = Polls()
        self.turns = ReadTurns()
        self.form = ChunkForm()
        self._limits = BacklogLimits(
            config.bus_backlog_size, config.bus_backlog_total, config.bus_backlog_age
        )
        self._window: Window | None = None

    def feed(
        self,
        sequencer: Sequencer,
        session: PollSession,
        question: Question,
        since: Mapping[str, int],
    ) -> Feed:
        """What answers a question; `since` as for a `Feed`."""
        if self._window is None:
            self._window = Window(sequencer.history, self._limits.total)
        reader = Reader(
            lambda: {
                tag.removeprefix("=") for tags in session.subscriptions.tag_sets() for tag in tags
            },
            lambda: session.attributes,
            self.context.hub.client_filters,
        )
        return Feed(
            sequencer, question.places, reader, self._limits, self._window, sequencer.now, since
        )


def _answer(json: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json, headers={**_HEADERS, "content-type": _PLAIN, **(headers or {})})


async def _body(receive: Receive) -> bytes | None:
    """A request's body; None where the client has disconnected.

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
