"""What streams and waiting polls have in common: they are sessions, and ask all at once."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive

from mist.auth import Record
from mist.broker.outbox import Outbox
from mist.commands import Resumed, Revoked
from mist.http.access import Caller
from mist.http.context import Context
from mist.http.problems import Problem
from mist.http.tickets import bearer
from mist.protocols.event_forms import COMMENT, EventForm
from mist.sessions.hub import Hub
from mist.sessions.session import CloseReason, Session
from mist.wire import WireForm

__all__ = [
    "REFUSED",
    "UNAVAILABLE",
    "StreamSession",
    "Streams",
    "asker",
    "opened",
    "subscriber_route",
    "until_gone",
    "why_refused",
]

UNAVAILABLE: Final = "The server is going away, or the history can't be read."
REFUSED: Final = CloseReason(1000, "no subscription is left")


class Streams:
    """The event streams of a server, and its waiting polls.

    Args:
        hub: what all sessions share.
        most_of_token: streams and waiting polls of one token at a time.
        comment_seconds: between comments on a stream.

    Attributes:
        form: how deliveries look; one for all, so that each is written once.
    """

    def __init__(self, hub: Hub, *, most_of_token: int, comment_seconds: float = 15.0) -> None:
        self.form = EventForm(None if hub.sequencer is None else hub.sequencer.epoch)
        self._hub = hub
        self._most_of_token = most_of_token
        self._comment_seconds = comment_seconds
        self._by_token: Counter[str] = Counter()
        self._quiet: dict[Outbox, float] = {}  # since when, in trio's seconds

    @contextmanager
    def room(self, record: Record | None) -> Iterator[None]:
        """Count one in for as long as the block runs.

        Raises:
            Problem: the token has too many (429).
        """
        if record is None:
            yield
            return
        if self._by_token[record.id] >= self._most_of_token:
            headers = {"Retry-After": "5"}
            raise Problem(429, "too_many_streams", "too many streams with this token", headers)
        self._by_token[record.id] += 1
        try:
            yield
        finally:
            self._by_token[record.id] -= 1
            if not self._by_token[record.id]:
                del self._by_token[record.id]

    @contextmanager
    def commented(self, outbox: Outbox) -> Iterator[None]:
        """Have comments written while the block runs."""
        self._quiet[outbox] = trio.current_time()
        try:
            yield
        finally:
            del self._quiet[outbox]

    async def sweep(self) -> None:
        """Write comments on all streams, in one task. Runs until cancelled."""
        while True:
            await trio.sleep(self._comment_seconds / 5)
            now = trio.current_time()
            for outbox, since in self._quiet.items():
                if now - since < self._comment_seconds * 0.99:  # sleep isn't exact
                    continue
                self._quiet[outbox] = now
                if not outbox.size:  # else it isn't quiet, or nobody reads it
                    outbox.reply(COMMENT)
            self._hub.broker.flush()


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
    with context.streams.room(caller.record):
        session = StreamSession(
            context.hub, form, notify, transport=transport, peer=request.state.peer
        )
        if caller.record is None:
            context.hub.attach(session)
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
