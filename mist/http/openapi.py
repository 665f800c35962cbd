"""OpenAPI 3.1: the description of the API, assembled from the operations of each route.

A module of routes has `OPERATIONS`: its paths, and for each method an `Operation`. What operations
share, such as types, errors of any route, and security schemes, is here. Types are msgspec's: the
class that a handler encodes is also its schema.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec

__all__ = [
    "ANYONE",
    "CLIENT",
    "EITHER",
    "NO_HISTORY",
    "NO_LATEST",
    "SERVICE",
    "Answer",
    "Body",
    "Operation",
    "Operations",
    "Parameter",
    "assemble",
    "component",
    "parameter",
]

ANYONE: Final[Sequence[str]] = ()
SERVICE: Final = ("secret",)
CLIENT: Final = ("token", "ticket", "secret")
EITHER: Final = ("token", "secret")

NO_HISTORY: Final = "This server has no history."
NO_LATEST: Final = "This server has no history, or keeps no latest values of these tags."

_REF: Final = "#/components/schemas/{name}"

_SECURITY: Final = {
    "secret": {
        "type": "http",
        "scheme": "bearer",
        "description": "The server's secret. Without one, any client of a loopback listener "
        "may do everything.",
    },
    "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": "From POST /v1/tickets; valid once, for 30 s.",
    },
}

# Errors of any request, before a route sees it.
_ALWAYS: Final = {
    400: "The request is invalid.",
    421: "The Host is not a name of this server.",
    429: "Too many requests; retry after Retry-After.",
    500: "An error of the server.",
}
_WITH_BODY: Final = {
    403: "Pages of this origin are not allowed.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is of another type.",
}
_WITH_CREDENTIALS: Final = {
    401: "No credential, or an invalid one.",
    403: "The credential does not allow this.",
    503: "The token registry, which servers share, can't be reached.",
}


class Problem(msgspec.Struct, frozen=True):
    """An error response (RFC 9457). `code` is stable and for programs."""

    type: str
    title: str
    status: int
    code: str
    detail: str


@attrs.frozen
class Answer:
    """A successful response.

    Attributes:
        description: of it.
        kind: what is encoded, a type or a JSON schema; None for no body, and for other media
            types.
        example: of it.
        media_type: of it.
        headers: name to description.
        parts: types of which it has values that are encoded already; see `component`.
    """

    description: str
    kind: Any = None
    example: Any = None
    media_type: str = "application/json"
    parts: Sequence[Any] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Body:
    """The body of a request.

    Attributes:
        kind: what is decoded, a type or a JSON schema.
        example: of it.
        others: schemas of other accepted media types.
        media_type: of it.
    """

    kind: Any
    example: Any
    others: Mapping[str, Any] = attrs.field(factory=dict)
    media_type: str = "application/json"


@attrs.frozen
class Parameter:
    """A part of the path, the query or the headers; `schema` is a JSON schema."""

    name: str
    place: str
    description: str
    schema: Mapping[str, Any]
    required: bool = False
    example: Any = None


def parameter(
    name: str,
    description: str,
    schema: Mapping[str, Any],
    *,
    place: str = "query",
    example: Any = None,
) -> Parameter:
    """A parameter; one of the path is required."""
    return Parameter(name, place, description, schema, place == "path", example)


@attrs.frozen(kw_only=True)
class Operation:
    """One method of a path.

    Attributes:
        summary: one line.
        details: further description.
        who: `ANYONE`, `SERVICE`, `CLIENT`, `EITHER`: the accepted credentials.
        parameters, body: of the request.
        answers: successful responses by status.
        problems: by status, errors specific to it, and when they occur.
    """

    summary: str
    answers: Mapping[int, Answer]
    who: Sequence[str] = ANYONE
    details: str = ""
    parameters: Sequence[Parameter] = ()
    body: Body | None = None
    problems: Mapping[int, str] = attrs.field(factory=dict)


Operations = Mapping[str, Mapping[str, Operation]]
"""Path, as in `Route`, to lower-case method to operation."""


def assemble(groups: Sequence[Operations], version: str) -> dict[str, Any]:
    """Assemble the OpenAPI document.

    Args:
        groups: of all modules; each path in one of them.
        version: of the server.
    """
    operations = {path: methods for group in groups for path, methods in group.items()}
    kinds = [Problem, *_kinds(operations)]
    types = [kind for kind in kinds if not isinstance(kind, dict)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = {id(kind): kind for kind in kinds}
    known |= {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mist",
            "version": version,
            "description": "Tag-based publish/subscribe: a message carries a set of tags, and "
            "reaches the subscriptions all of whose tags it carries.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": {
            path: {method: _operation(path, method, each, known) for method, each in found.items()}
            for path, found in sorted(operations.items())
        },
        "components": {
            "schemas": components,
            "securitySchemes": _SECURITY,
            "responses": {
                str(status): _problem(text, status)
                for status, text in sorted((_WITH_BODY | _WITH_CREDENTIALS | _ALWAYS).items())
            },
        },
    }


def component(kind: type[msgspec.Struct]) -> str:
    """The reference to a type that is part of an operation's answer.

    For values that are encoded already, whose type msgspec can't determine. It is among the
    `parts` of that answer.
    """
    return _REF.format(name=kind.__name__)


def _kinds(operations: Operations) -> list[Any]:
    found = []
    for methods in operations.values():
        for each in methods.values():
            for answer in each.answers.values():
                found += [kind for kind in (answer.kind, *answer.parts) if kind is not None]
            if each.body is not None:
                found.append(each.body.kind)
    return found


def _operation(path: str, method: str, op: Operation, known: Mapping[int, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _name(path, method),
        "summary": op.summary,
        "responses": _responses(op, known),
    }
    if op.details:
        described["description"] = op.details
    if op.who:
        described["security"] = [{name: []} for name in op.who]
    if op.parameters:
        described["parameters"] = [_parameter(each) for each in op.parameters]
    if op.body is not None:
        content = {"schema": known[id(op.body.kind)]}
        if op.body.example is not None:
            content["example"] = op.body.example
        others = {kind: {"schema": schema} for kind, schema in op.body.others.items()}
        described["requestBody"] = {
            "required": True,
            "content": {op.body.media_type: content, **others},
        }
    return described


def _responses(op: Operation, known: Mapping[int, Any]) -> dict[str, Any]:
    general = dict(_ALWAYS)
    if op.who:
        general |= _WITH_CREDENTIALS
    if op.body is not None:
        general |= _WITH_BODY
    found: dict[str, Any] = {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in general
    }
    found |= {str(status): _problem(text, status) for status, text in op.problems.items()}
    for status, answer in op.answers.items():
        described: dict[str, Any] = {"description": answer.description}
        if answer.kind is not None:
            content: dict[str, Any] = {"schema": known[id(answer.kind)]}
            if answer.example is not None:
                content["example"] = answer.example
            described["content"] = {answer.media_type: content}
        elif answer.media_type != "application/json":
            described["content"] = {answer.media_type: {"schema": {"type": "string"}}}
        if answer.headers:
            described["headers"] = {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in answer.headers.items()
            }
        found[str(status)] = described
    return dict(sorted(found.items()))


def _problem(text: str, status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Problem")}
    described: dict[str, Any] = {
        "description": text,
        "content": {"application/problem+json": {"schema": schema}},
    }
    if status in (429, 503):
        seconds = {"description": "Seconds.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
        described["headers"] = {"Retry-After": seconds}
    return described


def _parameter(each: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": each.name,
        "in": each.place,
        "description": each.description,
        "required": each.required,
        "schema": dict(each.schema),
    }
    if each.example is not None:
        described["example"] = each.example
    return described


def _name(path: str, method: str) -> str:
    """`get_v1_tokens_id`."""
    return "_".join([method, *path.replace("{", "").replace("}", "").strip("/").split("/")])
