"""`GET /v1/stream`: messages as Server-Sent Events; see `mist.http.event_streams`."""

from collections.abc import Sequence
from typing import Final

import trio
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from mist.errors import CommandError, HistoryUnavailable
from mist.http.context import Context
from mist.http.event_streams import EventStream
from mist.http.openapi import CLIENT, NO_LATEST, Answer, Operation, Operations
from mist.http.queries import CLIENT_ID, LAST, LATEST, SINCE, TAGS, Wanted
from mist.http.subscribers import UNAVAILABLE, StreamSession, disconnected, subscriber_route
from mist.protocols.event_forms import ready_event
from mist.replies import Resumed
from mist.sessions.close_reason import HISTORY_LOST

__all__ = ["OPERATIONS", "routes"]


class _Messages(EventStream):
    """A stream of what was subscribed to."""

    _wanted: Wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        Wanted.announce(self.request, self.context.hub.limits)
        await super().__call__(scope, receive, send)

    def read(self) -> None:
        self._wanted = Wanted.of(self.request, self.context.hub.limits)

    async def serve(self, session: StreamSession, receive: Receive) -> None:
        if self._wanted.since is None:
            await self._subscribe(session)
            await disconnected(session, receive)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._subscribe, session)
            await disconnected(session, receive)
            nursery.cancel_scope.cancel()

    async def _subscribe(self, session: StreamSession) -> None:
        """Subscribe; where the stream begins in the history, replay that first."""
        wanted = self._wanted

        def answer(resumed: Resumed | None) -> None:
            self.begin(session, ready_event(resumed, is_place=wanted.since is None))

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
            self.refuse(session, error)


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/stream`."""
    return [subscriber_route("/v1/stream", lambda request: _Messages(context, request))]


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
