"""The page that describes the API: OpenAPI 3.1, put together from what each route says.

A module of routes has `OPERATIONS`: its paths, and for each method an `Operation` beside the
handler. What is said twice, such as a type, the refusals that any route may answer with, or the
ways to say who asks, is written here once. Types are msgspec's: what a handler encodes and
what the page says about it are one class.
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

NO_HISTORY: Final = "This server keeps no history."

_REF: Final = "#/components/schemas/{name}"

_SECURITY: Final = {
    "secret": {
        "type": "http",
        "scheme": "bearer",
        "description": "The server's secret. Without one, whoever reaches a loopback listener "
        "may do all that it allows.",
    },
    "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": "From POST /v1/tickets; good once, for 30 s.",
    },
}

# What can happen to any request, before a route sees it.
_ALWAYS: Final = {
    400: "The request can't be understood.",
    421: "The Host is no name of this server.",
    429: "Too many requests; Retry-After says when to come again.",
    500: "A mistake of the server's.",
}
_WITH_BODY: Final = {
    403: "A page of that origin may not do this.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is of another type.",
}
_WITH_CREDENTIALS: Final = {
    401: "There is no credential, or a wrong one.",
    403: "The credential is not enough for this.",
}


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a request (RFC 9457). `code` is for programs and stable."""

    type: str
    title: str
    status: int
    code: str
    detail: str


@attrs.frozen
class Answer:
    """A response that is no error.

    Attributes:
        description: of it.
        kind: what is encoded, a type or a JSON schema; None for no body, and for what isn't
            JSON.
        example: of it.
        media_type: of it.
        headers: name to description.
    """

    description: str
    kind: Any = None
    example: Any = None
    media_type: str = "application/json"
    headers: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Body:
    """What a request brings.

    Attributes:
        kind: what is decoded, a type or a JSON schema.
        example: of it.
        others: schemas of other media types that it may have.
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
    """What one method of a path does.

    Attributes:
        summary: one line.
        details: more, where that is needed.
        who: `ANYONE`, `SERVICE`, `CLIENT`, `EITHER`: whose credential it takes.
        parameters, body: what it wants to know.
        answers: by status, those that aren't errors.
        problems: by status, errors that are its own, and when they come.
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
    """The page.

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
    """Where the page has a type that an operation answers with, or a part of such a one.

    For what is written already, and of which msgspec couldn't tell what it is.
    """
    return _REF.format(name=kind.__name__)


def _kinds(operations: Operations) -> list[Any]:
    found = []
    for methods in operations.values():
        for each in methods.values():
            found += [answer.kind for answer in each.answers.values() if answer.kind is not None]
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
