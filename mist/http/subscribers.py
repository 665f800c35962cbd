"""Sessions of HTTP subscribers: what event streams and waiting polls have in common."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive

from mist.broker.broker import Group
from mist.bus.wakeups import WAKEUPS, WakeupOutbox
from mist.errors import RegistryUnavailable, SessionEnded
from mist.http.access import Caller
from mist.http.context import Context
from mist.http.problems import Problem, problem_of
from mist.http.rates import too_often
from mist.http.tickets import bearer
from mist.protocols.event_forms import EventForm
from mist.sessions.close_reason import DISCONNECTED, CloseReason
from mist.sessions.session import Notice, Session
from mist.sessions.token_limits import RETRY_CONNECTION

__all__ = [
    "REFUSED",
    "UNAVAILABLE",
    "PollSession",
    "StreamSession",
    "authenticated",
    "disconnected",
    "end_when_disconnected",
    "open_poll",
    "open_stream",
    "refusal_of",
    "subscriber_route",
]

UNAVAILABLE: Final = "The server is going away, or the history can't be read."
REFUSED: Final = CloseReason(1000, "no subscription is left")


class StreamSession(Session):
    """A session that ends with its last subscription, since it can't make another."""

    __slots__ = ()

    def _revoke(self, group: Group) -> None:
        subscribed = bool(self.subscriptions)
        super()._revoke(group)
        if subscribed and not self.subscriptions:
            self.end(REFUSED)


class PollSession(StreamSession):
    """A session that reads the history when its outbox says that there is something to read."""

    __slots__ = ()

    outbox_type = WakeupOutbox
    outbox: WakeupOutbox

    def note_answered(self, messages: int, size: int) -> None:
        """Count an answer that was written; `size` is bytes."""
        self.outbox.note_sent(messages, size)
        self.hub.broker.note_answered(messages)


def subscriber_route(path: str, serve: Callable[[Request], ASGIApp]) -> Route:
    """The route of a subscription.

    Args:
        serve: makes what answers a request, nothing of whose body is read yet.
    """

    async def answer(request: Request) -> ASGIApp:
        return serve(request)

    route = Route(path, answer, methods=["GET"])
    route.methods = {"GET"}  # starlette adds HEAD, and takes it for a GET, which has no end here
    return route


async def authenticated(context: Context, request: Request, receive: Receive) -> Caller | None:
    """Authenticate a subscriber; None where the client has disconnected.

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
async def open_stream(
    context: Context,
    request: Request,
    caller: Caller,
    form: EventForm,
    notify: Callable[[Notice], bytes],
) -> AsyncIterator[StreamSession]:
    """The session of an event stream, for as long as the block runs.

    Nothing else runs before the block does.

    Args:
        form, notify: see `Session`.

    Raises:
        Problem: the token has too many (429).
    """
    peer = request.state.peer
    session = StreamSession(context.hub, form, notify, transport="sse", peer=peer)
    async with _attached(context, caller, session):
        yield session


@asynccontextmanager
async def open_poll(
    context: Context,
    request: Request,
    caller: Caller,
    notify: Callable[[Notice], bytes],
    *,
    transport: str,
) -> AsyncIterator[PollSession]:
    """The session of a poll, likewise.

    Args:
        notify, transport: see `Session`.

    Raises:
        Problem: the token has too many (429).
    """
    peer = request.state.peer
    session = PollSession(context.hub, WAKEUPS, notify, transport=transport, peer=peer)
    async with _attached(context, caller, session):
        yield session


@asynccontextmanager
async def _attached(context: Context, caller: Caller, session: Session) -> AsyncIterator[None]:
    with context.streams.counted(caller.record):
        if caller.record is None:
            context.hub.sessions.attach(session)
        else:
            hub = context.hub
            if hub.token_limits.is_full(caller.record, hub.sessions.count):
                raise too_often(RETRY_CONNECTION, "too many connections with this token")
            session.adopt(caller.record)
        try:
            yield
        finally:
            await session.aclose()


def refusal_of(reason: CloseReason) -> Problem:
    """The answer to a request whose session ended before there was another."""
    match reason.code:
        case 4401:
            return Problem(401, "unauthorized", reason.reason, {"WWW-Authenticate": "Bearer"})
        case 1000:
            return Problem(403, "not_granted", reason.reason)
        case 4410:
            return problem_of(SessionEnded())
        case 1013:
            return problem_of(RegistryUnavailable())
        case 1011:
            return Problem(503, "history_unavailable", reason.reason, {"Retry-After": "1"})
        case _:
            return _draining()


async def disconnected(session: Session, receive: Receive) -> None:
    """Wait until the client has disconnected; what it sends meanwhile is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
    await session.hub.turns.leave(session.account)


async def end_when_disconnected(session: Session, receive: Receive) -> None:
    """End a session as soon as its client has `disconnected`."""
    await disconnected(session, receive)
    session.end(DISCONNECTED)


async def _take_body(receive: Receive) -> bool:
    """Read and drop a request's body, within the bounds that bodies have.

    Returns:
        Whether the client is still connected.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        if not message.get("more_body", False):
            return True


def _draining() -> Problem:
    """The answer while the server shuts down."""
    return Problem(503, "draining", "the server is going away", {"Retry-After": "1"})
