"""`GET /v1/poll`: what has come since a place in the history, or what comes next.

Long polling, for networks that break streams. Each answer says where the next poll goes on, and
its messages are read from the history: so nothing is lost between two polls, and nothing comes
twice. A poll that waits is a session, as a stream is: it ends with its token, and with the
server. Deliveries only wake it (`mist.bus.wakeups`).
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from mist.commands import Since
from mist.errors import HistoryOff, HistoryUnavailable
from mist.history.cursor import check_latest
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.message_pages import EXAMPLE, Message, WrittenMessage
from mist.http.openapi import (
    CLIENT,
    NO_LATEST,
    Answer,
    Operation,
    Operations,
    parameter,
)
from mist.http.problems import Problem
from mist.http.queries import CLIENT_ID, LAST, LATEST, SINCE, TAGS, Query, Wanted
from mist.http.read_turns import ReadTurns
from mist.http.search import Search
from mist.http.subscribers import (
    UNAVAILABLE,
    PollSession,
    authenticated,
    end_when_disconnected,
    open_poll,
    refusal_of,
    subscriber_route,
)
from mist.message import TagSet
from mist.replies import Revoked
from mist.sessions.close_reason import DISCONNECTED, HISTORY_LOST, CloseReason
from mist.sessions.session import Notice

__all__ = ["OPERATIONS", "routes"]

_MAX_TIMEOUT: Final = 60.0  # seconds
_DEFAULT_TIMEOUT: Final = 25.0  # seconds
_SEARCHED: Final = 1.0  # seconds that a search may take, however short the timeout
_SECONDS: Final = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?")


class Polled(msgspec.Struct, frozen=True):
    """What came; the next poll's `since` is `epoch:id`.

    Attributes:
        recovered: False where something wanted is gone that would have stood here.
        revoked: tag sets that were asked for and aren't allowed any more; the next poll had
            better leave them out, or it is refused.
    """

    epoch: str
    id: int
    recovered: bool
    messages: list[WrittenMessage]
    revoked: list[list[str]] | msgspec.UnsetType = msgspec.UNSET


class _Poll:
    """One request, and its answer: an ASGI application."""

    def __init__(self, context: Context, request: Request, turns: ReadTurns) -> None:
        self._turns = turns
        self._context = context
        self._request = request
        self._revoked: list[TagSet] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        Wanted.announce(self._request, context.hub.limits)
        caller = await authenticated(context, self._request, receive)
        if caller is None:
            return
        # No await from here on until the token's changes reach the session.
        wanted = Wanted.of(self._request, context.hub.limits)
        timeout = _timeout(Query(self._request))
        if context.hub.sequencer is None:
            raise HistoryOff
        if wanted.since is not None:
            check_latest(context.hub.sequencer.history, wanted.since)

        def notify(notice: Notice) -> bytes:
            if isinstance(notice, Revoked):
                self._revoked.append(notice.tags)
                session.outbox.wake()
            return b""

        async with open_poll(context, self._request, caller, notify, transport="poll") as session:
            wanted.describe(session)
            if context.hub.subscription_callout is not None:
                await context.hub.subscription_callout.allow(session, wanted.tag_sets)
            session.subscribe_all(wanted.tag_sets)
            search = Search(
                context.hub.sequencer,
                lambda: frozenset(session.subscriptions.tag_sets()),
                lambda: session.attributes,
            )
            await self._search(session, search, wanted.since, timeout, receive)
            session.outbox.mute()
            if session.ended is not DISCONNECTED:
                response = self._answer(session, search)
                await response(scope, receive, send)
                session.note_answered(len(search.messages), len(response.body))
            session.end(_ANSWERED)

    async def _search(
        self,
        session: PollSession,
        search: Search,
        since: Since | None,
        timeout: float,
        receive: Receive,
    ) -> None:
        """Search until there is something to tell, time is over, or the session has ended."""
        deadline = trio.current_time() + timeout
        with session.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_when_disconnected, session, receive)
                try:
                    await search.begin(since)
                    owner = session.outbox.owner or session.peer
                    await self._wait_for_news(session, search, deadline, owner)
                except HistoryUnavailable:
                    session.end(HISTORY_LOST)
                nursery.cancel_scope.cancel()

    async def _wait_for_news(
        self, session: PollSession, search: Search, deadline: float, owner: str
    ) -> None:
        started = trio.current_time()
        while True:
            session.outbox.arm()
            async with self._turns.turn(owner):
                more = await search.read()
            if search.messages:
                return
            if more:
                # A gap or a revocation doesn't wait for long, but for what is right behind it.
                search_until = started + _SEARCHED
                if trio.current_time() >= (
                    search_until if self._tells(search) else max(deadline, search_until)
                ):
                    return
                continue
            if self._tells(search):
                return
            if not await session.outbox.wait(deadline):
                search.skip()
                return

    def _tells(self, search: Search) -> bool:
        """Whether there is something to say, messages aside."""
        return not search.recovered or bool(self._revoked)

    def _answer(self, session: PollSession, search: Search) -> Response:
        ending = session.ended
        # A client of a server that shuts down is told its position, to resume elsewhere.
        if ending is not None and (ending.code != 1001 or search.place is None):
            raise refusal_of(ending)
        sequencer = self._context.hub.sequencer
        assert sequencer is not None
        assert search.place is not None
        return answer(
            Polled(
                sequencer.epoch,
                search.place,
                search.recovered,
                [msgspec.Raw(each) for each in search.messages],
                [sorted(tags) for tags in self._revoked] or msgspec.UNSET,
            )
        )


_ANSWERED: Final = CloseReason(1000, "answered")


def _timeout(query: Query) -> float:
    text = query.one("timeout")
    if text is None:
        return _DEFAULT_TIMEOUT
    if not _SECONDS.fullmatch(text) or float(text) > _MAX_TIMEOUT:
        raise Problem(400, "invalid_timeout", f"timeout is 0 to {_MAX_TIMEOUT:g} seconds")
    return float(text)


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/poll`."""
    turns = ReadTurns()
    return [subscriber_route("/v1/poll", lambda request: _Poll(context, request, turns))]


OPERATIONS: Final[Operations] = {
    "/v1/poll": {
        "get": Operation(
            summary="Subscribe: long polling",
            details="At once where there is something since, else when something comes, or when "
            "the token loses one of the subscriptions.",
            who=CLIENT,
            parameters=[
                TAGS,
                SINCE,
                LATEST,
                LAST,
                CLIENT_ID,
                parameter(
                    "timeout",
                    "Seconds to wait.",
                    {"type": "number", "minimum": 0, "maximum": 60, "default": 25},
                ),
            ],
            answers={
                200: Answer(
                    "What came; nothing where nothing did.",
                    Polled,
                    {
                        "epoch": "9f86d081884c7d65",
                        "id": 17,
                        "recovered": True,
                        "messages": [EXAMPLE],
                    },
                    parts=[Message],
                )
            },
            problems={409: NO_LATEST, 503: UNAVAILABLE},
        )
    },
}
