"""Sessions of HTTP subscribers: what event streams and waiting polls have in common."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive

from mist.auth import Record
from mist.http.access import Caller
from mist.http.context import Context
from mist.http.problems import Problem
from mist.http.tickets import bearer
from mist.replies import Resumed, Revoked
from mist.sessions.close_reason import CloseReason
from mist.sessions.session import Session
from mist.wire import WireForm

__all__ = [
    "REFUSED",
    "UNAVAILABLE",
    "StreamSession",
    "asker",
    "opened",
    "subscriber_route",
    "until_gone",
    "why_refused",
]

UNAVAILABLE: Final = "The server is going away, or the history can't be read."
REFUSED: Final = CloseReason(1000, "no subscription is left")


class StreamSession(Session):
    """A session that ends with its last subscription, since it can't make another."""

    __slots__ = ()

    def token_changed(self, record: Record | None) -> None:
        """As a `Session` does."""
        subscribed = bool(self.subscriptions)
        super().token_changed(record)
        if subscribed and not self.subscriptions:
            self.end(REFUSED)


def subscriber_route(path: str, serve: Callable[[Request], ASGIApp]) -> Route:
    """The route of a subscription.

    Args:
        serve: makes what answers a request, nothing of whose body is read yet.
    """

    async def answer(request: Request) -> ASGIApp:
        if request.method == "HEAD":  # which starlette takes for a GET, and may have no end here
            raise Problem(405, "method_not_allowed", "method not allowed", {"Allow": "GET"})
        return serve(request)

    return Route(path, answer, methods=["GET"])


async def asker(context: Context, request: Request, receive: Receive) -> Caller | None:
    """Who wants to subscribe; None where the client is gone.

    Open its session without an await, so that no change of the token comes in between.

    Raises:
        Problem: as `mist.http.tickets.bearer`; or the server is going away (503).
    """
    if not await _take_body(receive):
        return None
    if context.is_draining():
        raise _draining()
    return await bearer(context, request)


@asynccontextmanager
async def opened(
    context: Context,
    request: Request,
    caller: Caller,
    form: WireForm,
    notify: Callable[[Revoked | Resumed], bytes],
    *,
    transport: str,
) -> AsyncIterator[StreamSession]:
    """A session for as long as the block runs. Nothing else runs before the block does.

    Args:
        form, notify, transport: see `Session`.

    Raises:
        Problem: the token has too many (429).
    """
    with context.streams.counted(caller.record):
        session = StreamSession(
            context.hub, form, notify, transport=transport, peer=request.state.peer
        )
        if caller.record is None:
            context.hub.sessions.attach(session)
        else:
            session.adopt(caller.record)
        try:
            yield session
        finally:
            await session.aclose()


def why_refused(ending: CloseReason) -> Problem:
    """What a request is told whose session ended before there was an answer."""
    match ending.code:
        case 4401:
            return Problem(401, "unauthorized", ending.reason, {"WWW-Authenticate": "Bearer"})
        case 1000:
            return Problem(403, "not_granted", ending.reason)
        case 1011:
            return Problem(503, "history_unavailable", ending.reason, {"Retry-After": "1"})
        case _:
            return _draining()


async def until_gone(receive: Receive) -> None:
    """Wait until the client has hung up; what it sends meanwhile is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _take_body(receive: Receive) -> bool:
    """Read a body that means nothing, so that no bound of it strikes later.

    Returns:
        Whether the client is still there.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        if not message.get("more_body", False):
            return True


def _draining() -> Problem:
    """The answer of a server that goes away."""
    return Problem(503, "draining", "the server is going away", {"Retry-After": "1"})
