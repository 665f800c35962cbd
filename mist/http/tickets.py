"""Routes of tickets: `/v1/tickets` issues one; `bearer` redeems it where a URL carries one."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.access import Caller
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.openapi import Answer, Body, Operation, Operations
from mist.http.problems import Problem
from mist.http.queries import Query
from mist.http.ticket_store import LIFETIME, Pages, pages_of

__all__ = ["OPERATIONS", "bearer", "routes"]


def _pages(headers: Headers) -> Pages:
    if len(headers.getlist("origin")) > 1:
        return frozenset()
    return pages_of(headers, headers["host"])  # checked by the guard to be a name of this server


async def bearer(context: Context, request: Request) -> Caller:
    """Authenticate a subscriber by token, secret or ticket. Act on it without an await.

    Raises:
        Problem: as `Access.caller`; or there is a ticket and another credential (400), or one
            that is not valid (401, after a delay).
    """
    tickets = Query(request).all("ticket")
    if not tickets:
        return await context.access.caller(request)
    headers = request.headers
    if len(tickets) > 1 or "authorization" in headers or "x-auth-token" in headers:
        raise Problem(400, "two_credentials", "give one credential")
    await context.tickets.bring(tickets[0])
    record = context.tickets.redeem(tickets[0], _pages(headers))
    if record is None:
        raise await context.access.refusal("ticket", "the ticket is not valid, or was used before")
    return Caller(record)


class Ticket(msgspec.Struct, frozen=True):
    """A ticket, and the seconds for which it is valid."""

    ticket: str
    expires_in: int


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/tickets`."""

    async def issue(request: Request) -> Response:
        caller = await context.access.caller(request)
        if caller.is_service:
            raise Problem(403, "token_needed", "a ticket needs a token: give one")
        pages = _pages(request.headers)
        if not pages:
            raise Problem(403, "origin_not_allowed", "pages of this origin may not do that")
        await request.body()  # ignored, but must be read before the next request
        record = context.access.again(caller, request).record
        assert record is not None
        ticket = context.tickets.issue(record, pages)
        await context.tickets.share(ticket)
        return answer(Ticket(ticket, int(LIFETIME)), 201)

    return [Route("/v1/tickets", issue, methods=["POST"])]


OPERATIONS: Final[Operations] = {
    "/v1/tickets": {
        "post": Operation(
            summary="Get a ticket for a URL",
            details="Valid once, and only for pages of the same origin.",
            who=("token",),
            body=Body({}, {}),
            answers={201: Answer("The ticket.", Ticket, {"ticket": "…", "expires_in": 30})},
        )
    },
}
