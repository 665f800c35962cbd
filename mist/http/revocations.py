"""Revoking tokens that were issued elsewhere: `POST /v1/revocations`. For services.

By `jti` or `sub` of a JWT, or the user of a credential that `--auth-url` was asked about. Sessions
end at once, at all nodes. Revocations are listed among tokens, without tags; to remove one there
takes it back.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.auth import Record
from mist.commands import MAX_CLAIM, RevokeIssued
from mist.http.bodies import answer, read_body
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Body, Operation, Operations

__all__ = ["OPERATIONS", "routes"]

Claim = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CLAIM)]


RevocationRequest = Annotated[
    dict[Literal["jti", "sub"], Claim],
    msgspec.Meta(
        min_length=1, max_length=1, extra_json_schema={"propertyNames": {"enum": ["jti", "sub"]}}
    ),
]
"""What is revoked: `jti` of one token, or `sub` of a user, for all that was issued until now."""


class Revocation(msgspec.Struct, frozen=True):
    """A revocation, as it is listed among tokens.

    Attributes:
        created: Unix seconds; what is issued to a user later is good.
        expires: when it is forgotten: nothing that it revokes is good any more then.
    """

    id: str
    name: str
    created: float
    expires: float


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/revocations`."""
    registry = context.hub.registry

    async def revoke(request: Request) -> Response:
        await context.access.service(request)
        given = await read_body(request, RevocationRequest, 2 * MAX_CLAIM)
        [(kind, value)] = given.items()
        [outcome] = await registry.execute([RevokeIssued(kind, value)])
        await context.hub.token_changes.settled()
        assert isinstance(outcome, Record)
        assert outcome.expires is not None
        made = Revocation(outcome.id, outcome.name, outcome.created, outcome.expires)
        return answer(made, 201, [(b"location", f"/v1/tokens/{outcome.id}".encode())])

    return [Route("/v1/revocations", revoke, methods=["POST"])]


OPERATIONS: Final[Operations] = {
    "/v1/revocations": {
        "post": Operation(
            summary="Revoke tokens that were issued elsewhere",
            details="A JWT by its jti, or all that a user was issued until now by sub. Their "
            "sessions are disconnected at once, at all nodes.",
            who=SERVICE,
            body=Body(RevocationRequest, {"jti": "5f3a"}),
            answers={
                201: Answer(
                    "The revocation.",
                    Revocation,
                    {
                        "id": "9f86d081884c7d65",
                        "name": "revoked: jti 5f3a",
                        "created": 1767225600.0,
                        "expires": 1769817660.0,
                    },
                    headers={"Location": "Its path among tokens."},
                )
            },
            problems={503: "The registry can't be written; nothing was changed."},
        ),
    },
}
