"""Tickets: what a page puts into a URL in the place of its token.

`new EventSource(url)` and `new WebSocket(url)` send no headers of a page's making, and a token
in a URL would end up in logs and stay good. A ticket is good once, for half a minute, on the
page that asked for it, as long as the token is.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import msgspec
import trio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.auth import Record
from mist.auth.registry import Registry
from mist.config.addresses import parse_origin
from mist.http.access import Caller
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import Answer, Body, Operation, Operations
from mist.http.problems import Problem
from mist.http.queries import Query

__all__ = ["LIFETIME", "OPERATIONS", "Tickets", "bearer", "pages_of", "routes"]

LIFETIME: Final = 30.0  # seconds
_MOST: Final = 20_000  # tickets: one for each connection that there may be
_MOST_OF_TOKEN: Final = 2_000  # more than its rate of requests brings in half a minute

Pages = frozenset[str]
"""The origin of the page that asks, in each spelling that it may have; see `pages_of`."""


@attrs.frozen(eq=False)
class _Ticket:
    """Attributes:
    digest: what it is known by. Not the ticket itself, which is kept nowhere.
    token: the registry's id of its token.
    pages: where it may be used.
    expires: in the clock's seconds.
    """

    digest: bytes = attrs.field(repr=False)
    token: str
    pages: Pages
    expires: float


class Tickets:
    """The tickets of a server, in memory alone.

    Args:
        registry: whose tokens they stand for.
        clock: seconds.
        most, most_of_token: tickets at a time, in all and of one token. Beyond these the oldest
            goes, so that no one who asks for many keeps others from getting theirs.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Callable[[], float] = trio.current_time,
        *,
        most: int = _MOST,
        most_of_token: int = _MOST_OF_TOKEN,
    ) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._most = most
        self._most_of_token = most_of_token
        self._tickets: dict[bytes, _Ticket] = {}  # the oldest first
        self._records: dict[str, Record] = {}  # of tokens that have tickets
        self._by_token: dict[str, dict[bytes, None]] = {}
        registry.watch(self._token_changed)

    def __len__(self) -> int:
        """How many there are, some perhaps too old to be good."""
        return len(self._tickets)

    def issue(self, record: Record, pages: Pages) -> str:
        """A new ticket. Without an await between the token's lookup and this.

        Args:
            record: the token's.
            pages: where it may be used.
        """
        self._forget_expired()
        own = self._by_token.setdefault(record.id, {})
        if len(own) >= self._most_of_token:
            self._forget(self._tickets[next(iter(own))])
        elif len(self._tickets) >= self._most:
            self._forget(next(iter(self._tickets.values())))
        text = secrets.token_urlsafe(32)
        digest = self._digest(text)
        self._tickets[digest] = _Ticket(digest, record.id, pages, self._clock() + LIFETIME)
        self._records[record.id] = record
        self._by_token.setdefault(record.id, {})[digest] = None
        return text

    def redeem(self, ticket: str, pages: Pages) -> Record | None:
        """Use a ticket up, from the wrong page too: whoever has it there shouldn't.

        Returns:
            Its token's record, as of now; None where it is not good. As for
            `Registry.lookup`, act on it without an await.
        """
        digest = self._digest(ticket)
        found = self._tickets.get(digest)
        # As with tokens: the dict has compared in a time that tells nothing, since nobody else
        # knows the key; this is for the day when the lookup is another.
        if found is None or not hmac.compare_digest(found.digest, digest):
            return None
        record = self._records[found.token]
        self._forget(found)
        if found.expires <= self._clock() or found.pages.isdisjoint(pages):
            return None
        return record

    def redeem_from(self, ticket: str, origin: str | None) -> Record | None:
        """As `redeem`, where only the request's Origin is known."""
        return self.redeem(ticket, pages_of({} if origin is None else {"origin": origin}))

    def _digest(self, ticket: str) -> bytes:
        return hmac.digest(self._key, ticket.encode("utf-8", "replace"), "sha256")

    def _forget(self, ticket: _Ticket) -> None:
        del self._tickets[ticket.digest]
        own = self._by_token[ticket.token]
        del own[ticket.digest]
        if not own:
            del self._by_token[ticket.token]
            del self._records[ticket.token]

    def _forget_expired(self) -> None:
        now = self._clock()
        while self._tickets:
            oldest = next(iter(self._tickets.values()))
            if oldest.expires > now:
                return
            self._forget(oldest)

    def _token_changed(self, old: Record, new: Record | None) -> None:
        if old.id not in self._records:
            return
        if new is not None and new.tags:
            self._records[old.id] = new
            return
        for digest in list(self._by_token[old.id]):
            self._forget(self._tickets[digest])


def pages_of(headers: Mapping[str, str], host: str | None = None) -> Pages:
    """The origin of the page that a request comes from.

    A browser leaves the Origin out of a page's own GET and says `Sec-Fetch-Site: same-origin`
    instead, which no script can. Then it is the Host, under either scheme: behind a proxy that
    does the encryption nobody here knows which.

    Args:
        headers: names in lower case; one Origin at most.
        host: as the request has it; None where it is not known to be a name of this server.

    Returns:
        A set with the empty text alone for what is no page, such as a program; an empty set for
        an origin that is none, such as `null`.
    """
    origin = headers.get("origin")
    if origin is not None:
        return _origins(origin)
    if host is not None and headers.get("sec-fetch-site") == "same-origin":
        return _origins(f"http://{host}") | _origins(f"https://{host}")
    return frozenset({""})


def _origins(text: str) -> Pages:
    try:
        return frozenset({parse_origin(text)})
    except ValueError:
        return frozenset()


def _pages(headers: Headers) -> Pages:
    if len(headers.getlist("origin")) > 1:
        return frozenset()
    return pages_of(headers, headers["host"])  # the guard has seen to it that it is ours


async def bearer(context: Context, request: Request) -> Caller:
    """Who wants to subscribe, by token, secret or ticket. Act on it without an await.

    Raises:
        Problem: as `Access.caller`; or there is a ticket and another credential (400), or one
            that is not good (401, after a while).
    """
    tickets = Query(request).all("ticket")
    if not tickets:
        return await context.access.caller(request)
    headers = request.headers
    if len(tickets) > 1 or "authorization" in headers or "x-auth-token" in headers:
        raise Problem(400, "two_credentials", "give one credential")
    record = context.tickets.redeem(tickets[0], _pages(headers))
    if record is None:
        raise await context.access.refusal("ticket", "that ticket is not good, or not any more")
    return Caller(record)


class Ticket(msgspec.Struct, frozen=True):
    """A ticket, and the seconds for which it is good."""

    ticket: str
    expires_in: int


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/tickets`."""

    async def issue(request: Request) -> Response:
        await request.body()  # means nothing, but would stand in the next request's way
        caller = await context.access.caller(request)
        if caller.record is None:
            raise Problem(403, "token_needed", "a ticket stands for a token: give one")
        pages = _pages(request.headers)
        if not pages:
            raise Problem(403, "origin_not_allowed", "pages of this origin may not do that")
        ticket = context.tickets.issue(caller.record, pages)
        return answer(Ticket(ticket, int(LIFETIME)), 201)

    return [Route("/v1/tickets", issue, methods=["POST"])]


OPERATIONS: Final[Operations] = {
    "/v1/tickets": {
        "post": Operation(
            summary="Get a ticket for a URL",
            details="Good once, and for pages of the same origin only.",
            who=("token",),
            body=Body({}, {}),
            answers={201: Answer("The ticket.", Ticket, {"ticket": "…", "expires_in": 30})},
        )
    },
}
