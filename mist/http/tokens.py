"""The token registry: `PUT`, `GET`, `PATCH`, `DELETE` below `/v1/tokens`. For services.

A token's text is shown once, in the answer that creates it. Afterwards it is named by its id,
which reveals nothing of it. Changes take effect at once on sessions with the token, as over TCP.
"""

import logging
import math
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.attributes import Attributes, change_of_json
from mist.auth import Amend, Change, Enroll, Outcome, Record, Remove
from mist.auth.strength import weakness
from mist.errors import MistError, TooManyTags
from mist.fields import MAX_AUDIENCE, MAX_IDS
from mist.http.bodies import answer, read_body
from mist.http.context import Context
from mist.http.openapi import SERVICE, Answer, Body, Operation, Operations, parameter
from mist.http.paging import LIMIT, Paging, after_parameter
from mist.http.problems import Problem
from mist.http.queries import Query
from mist.message import GRANT, MAX_REPEATS, TagSet, parse_tags
from mist.sessions.token_list import describe_token, find_tokens, token_of, token_page
from mist.terms import LAST_EXPIRY, MAX_NAME, Terms
from mist.token_info import TokenInfo, TokenPage

__all__ = ["OPERATIONS", "routes"]

log = logging.getLogger("mist.http")

T = TypeVar("T")

_ID: Final = re.compile(r"[0-9a-f]{16}")
_PAGE: Final = 1_048_576  # bytes of tags and attributes
_MAX_SEARCH: Final = 200  # characters
_AT_ONCE: Final = 2  # searches
_GENERATED: Final = 32  # bytes of a generated token

# A tag in a grant: no space, comma or control character, and no prefix of derived tags. The limit
# of 255 bytes can't be expressed in a schema.
_TAG: Final = r"^(?!>?([./]|=/))[^ ,\u0000-\u001F\u007F-\u009F]+$"
_TEXT: Final = r"^[^ \u0000-\u001F\u007F-\u009F]+$"

# An attribute's value. Bytes are limited as well, of each and in total.
_VALUE: Final = {
    "anyOf": [
        {
            "type": "string",
            "minLength": 1,
            "maxLength": 255,
            "pattern": r"^[^\u0000-\u001F\u007F-\u009F]+$",
        },
        {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
    ]
}
_VALUES: Final = {"type": "array", "items": _VALUE, "minItems": 1, "maxItems": MAX_IDS}
_NAME: Final = r"^(?!(clients|users|except)$)[a-z0-9_.-]{1,64}$"


def _object(value: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return {
        "properties": {"client": value, "user": value, "groups": values},
        "propertyNames": {"pattern": _NAME},
        "additionalProperties": value,
        "maxProperties": MAX_IDS,
    }


Given = Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_object(_VALUE, _VALUES))]
"""What `mist.attributes.Attributes.of_json` takes; it turns integers into texts."""

_NULL: Final = {"type": "null"}
Patch = Annotated[
    dict[str, Any],
    msgspec.Meta(
        extra_json_schema=_object({"anyOf": [_VALUE, _NULL]}, {"anyOf": [_VALUES, _NULL]})
    ),
]
"""What `mist.attributes.change_of_json` takes: null removes (RFC 7396)."""

Known = dict[str, str | list[str]]

Tag = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 255, "pattern": _TAG})]
Text = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 255, "pattern": _TEXT})]
Expires = Annotated[
    float | None,
    msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": LAST_EXPIRY}),
]
Name = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_NAME})]


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be created.

    Attributes:
        tags: what it grants: a tag, `room:*` for all with that prefix, `>a` to publish.
        token: its text; if absent, one is generated from 32 random bytes, which is better.
        attributes: of its holder: `client`, `user`, `groups`, `site`, any others.
        expires: Unix seconds from which on it is refused, and its sessions end; null for never.
        name: for those who manage tokens.
    """

    tags: Annotated[list[Tag], msgspec.Meta(extra_json_schema={"minItems": 1})]
    token: Text | msgspec.UnsetType = msgspec.UNSET
    attributes: Given = {}
    expires: Expires = None
    name: Name = ""


class TokenLookup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a token, or its id."""

    token: Text


class TokenChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An atomic change of a token.

    Attributes:
        add, remove: tags; one that is in both is removed.
        attributes: to be set, or removed where null; others are unchanged.
        expires: Unix seconds in the future; null for never.
        name: empty for none.
    """

    add: list[Tag] = []
    remove: list[Tag] = []
    attributes: Patch = {}
    expires: Expires | msgspec.UnsetType = msgspec.UNSET
    name: Name | msgspec.UnsetType = msgspec.UNSET


class NewToken(msgspec.Struct, frozen=True):
    """A new token with its text, which is never shown again.

    Attributes:
        warning: where the text that was given is weak, and may be guessed.
    """

    id: str
    token: str
    tags: list[str]
    created: float
    attributes: Known
    expires: float | None = None
    name: str = ""
    warning: str | msgspec.UnsetType = msgspec.UNSET


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/tokens`, `/v1/token-lookup`, `/v1/tokens/{id}`."""
    registry = context.hub.registry
    scans = trio.CapacityLimiter(_AT_ONCE)

    def parse(tags: list[str]) -> TagSet:
        return parse_tags(tags, context.hub.limits.token_tags, GRANT)

    async def read(request: Request, kind: type[T]) -> T:
        limit = context.hub.limits.token_tags  # which may be another since the last request
        # Two lists of tags with repeats; and attributes, where each byte might be a comma.
        most = 2 * limit * MAX_REPEATS + MAX_AUDIENCE
        return await read_body(request, kind, most, TooManyTags(limit))

    async def execute(change: Change) -> Record | None:
        [outcome] = await registry.execute([change])
        await context.hub.token_changes.settled()
        return _result(outcome)

    async def many(request: Request) -> Response:
        await context.access.service(request)
        if request.method == "PUT":
            return await make(request)
        paging, search = Paging.of(request, _ID), Query(request).one("search") or ""
        if len(search) > _MAX_SEARCH:
            raise Problem(400, "invalid_query", f"search has at most {_MAX_SEARCH} characters")
        await registry.sync()
        after = paging.after or ""
        if not search:
            return answer(token_page(registry, after, paging.limit, _PAGE))
        async with scans:
            return answer(await find_tokens(registry, search, after, paging.limit, _PAGE))

    async def make(request: Request) -> Response:
        wanted = await read(request, TokenRequest)
        text = wanted.token
        if text is msgspec.UNSET:
            text = secrets.token_urlsafe(_GENERATED)
        attributes = Attributes.of_json(wanted.attributes)
        terms = Terms(wanted.expires, wanted.name or None)
        record = await execute(Enroll(text, parse(wanted.tags), attributes, terms))
        assert record is not None
        weak = weakness(text)
        if weak is not None:
            log.warning("a weak token, which may be guessed", extra={"token": record.id})
        made = NewToken(
            **msgspec.structs.asdict(describe_token(record)),
            token=text,
            warning=msgspec.UNSET if weak is None else f"the token {weak}",
        )
        return answer(made, 201, [(b"location", f"/v1/tokens/{record.id}".encode())])

    async def find(request: Request) -> Response:
        await context.access.service(request)
        wanted = await read_body(request, TokenLookup, 1)
        await registry.sync()
        return answer(token_of(registry, wanted.token))

    async def one(request: Request) -> Response:
        name = request.path_params["id"]
        await context.access.service(request)
        match request.method:
            case "PATCH":
                return await change(request, name)
            case "DELETE":
                await execute(Remove(name))
                return Response(status_code=204, headers={"Cache-Control": "no-store"})
            case _:
                await registry.sync()
                record = registry.find(name)
                if record is None:
                    raise Problem(404, "token_not_found", "Token not found")
                return answer(describe_token(record))

    async def change(request: Request, name: str) -> Response:
        wanted = await read(request, TokenChange)
        add, remove = (parse(tags) if tags else frozenset() for tags in (wanted.add, wanted.remove))
        given, unset = change_of_json(wanted.attributes)
        terms = Terms(
            None
            if wanted.expires is msgspec.UNSET
            else math.inf
            if wanted.expires is None
            else wanted.expires,
            None if wanted.name is msgspec.UNSET else wanted.name,
        )
        record = await execute(Amend(name, add, remove, given, unset, terms))
        assert record is not None
        return answer(describe_token(record))

    return [
        Route("/v1/tokens", many, methods=["GET", "PUT"]),
        Route("/v1/token-lookup", find, methods=["POST"]),
        Route("/v1/tokens/{id}", one, methods=["GET", "PATCH", "DELETE"]),
    ]


def _result(outcome: Outcome) -> Record | None:
    """The record after a change.

    Raises:
        MistError: it was refused.
    """
    if isinstance(outcome, MistError):
        raise outcome
    return outcome


_EXAMPLE: Final = {
    "id": "9f86d081884c7d65",
    "tags": ["news", "room:*"],
    "created": 1767225600.0,
    "attributes": {"user": "7", "groups": ["staff"], "plan": "pro"},
    "expires": 1798761600.0,
    "name": "nightly export",
}
_AN_ID: Final = parameter(
    "id",
    "As the registry names it.",
    {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    place="path",
    example=_EXAMPLE["id"],
)
_UNAVAILABLE: Final = "The registry can't be written; nothing was changed."
_NOT_FOUND: Final = "There is no such token."

OPERATIONS: Final[Operations] = {
    "/v1/tokens": {
        "get": Operation(
            summary="List tokens, by their ids",
            who=SERVICE,
            parameters=[
                LIMIT,
                after_parameter(
                    {"type": "string", "pattern": "^[0-9a-f]{16}$"}, "9f86d081884c7d65"
                ),
                parameter(
                    "search",
                    "Those that have this text in their name, id or user, in whatever case.",
                    {"type": "string", "maxLength": _MAX_SEARCH},
                    example="export",
                ),
            ],
            answers={
                200: Answer(
                    "A page of tokens.",
                    TokenPage,
                    {"tokens": [_EXAMPLE], "count": 1, "next": None},
                )
            },
        ),
        "put": Operation(
            summary="Create a token",
            details="Only this answer contains the token's text.",
            who=SERVICE,
            body=Body(
                TokenRequest,
                {
                    "tags": ["news", "room:*"],
                    "attributes": {"user": 7, "groups": ["staff"], "plan": "pro"},
                    "expires": 1798761600,
                    "name": "nightly export",
                },
            ),
            answers={
                201: Answer(
                    "The token.",
                    NewToken,
                    {"token": "mJ0yqHn2x1sJ2l7q4mD8oS3cE5vB6wA9zK1tR0uY-_g", **_EXAMPLE},
                    headers={"Location": "The path of the token."},
                )
            },
            problems={409: "A token with this text exists.", 503: _UNAVAILABLE},
        ),
    },
    "/v1/token-lookup": {
        "post": Operation(
            summary="Find a token by its text",
            details="Or by its id, where none has that text. The text is not in a URL, which logs "
            "may keep.",
            who=SERVICE,
            body=Body(TokenLookup, {"token": "mJ0yqHn2x1sJ2l7q4mD8oS3cE5vB6wA9zK1tR0uY-_g"}),
            answers={200: Answer("The token.", TokenInfo, _EXAMPLE)},
            problems={404: _NOT_FOUND, 503: "The registry can't be asked."},
        ),
    },
    "/v1/tokens/{id}": {
        "get": Operation(
            summary="Show a token",
            who=SERVICE,
            parameters=[_AN_ID],
            answers={200: Answer("The token.", TokenInfo, _EXAMPLE)},
            problems={404: _NOT_FOUND},
        ),
        "patch": Operation(
            summary="Change a token's tags, attributes, expiry or name",
            details="Subscriptions that it no longer grants end at once; when the last tag is "
            "removed, its sessions are disconnected. Attributes take effect at once, too.",
            who=SERVICE,
            parameters=[_AN_ID],
            body=Body(
                TokenChange,
                {
                    "add": ["room:1"],
                    "remove": ["room:*"],
                    "attributes": {"plan": "basic", "groups": None},
                    "expires": None,
                },
            ),
            answers={200: Answer("The token as it is now.", TokenInfo, _EXAMPLE)},
            problems={404: _NOT_FOUND, 503: _UNAVAILABLE},
        ),
        "delete": Operation(
            summary="Revoke a token",
            details="Its sessions are disconnected at once.",
            who=SERVICE,
            parameters=[_AN_ID],
            answers={204: Answer("It was revoked.")},
            problems={404: _NOT_FOUND, 503: _UNAVAILABLE},
        ),
    },
}
