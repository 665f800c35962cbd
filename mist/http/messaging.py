"""What the OpenAPI page says of publishing, reading, streams, polls, tickets and pages."""

from typing import Annotated, Any, Final

import msgspec

from mist.http.openapi import (
    CLIENT,
    EITHER,
    Answer,
    Body,
    Operation,
    Operations,
    Parameter,
    parameter,
)

__all__ = ["OPERATIONS"]

_TAG: Final = r"^(?!\.\.|>)[^ ,\u0000-\u001F\u007F-\u009F]+(?<!\*)$"
_BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_LIST: Final = r"^(?!\.\.|>)[^ ,\u0000-\u001F\u007F-\u009F*]{1,63}$"
_PLACE: Final = r"^(0|-?[1-9][0-9]{0,14}|[!-9;-~]{1,64}:(0|[1-9][0-9]{0,14}))$"

_TAGS: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": 64,
    "items": {"type": "string", "maxLength": 255, "pattern": _TAG},
}


def _message(data: str, other: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["tags", data],
        "additionalProperties": False,
        "properties": {"tags": _TAGS, data: schema, other: {"type": "null"}},
    }


_MESSAGE: Final[dict[str, Any]] = {
    "oneOf": [
        _message("data", "data64", {"type": "string"}),
        _message("data64", "data", {"type": "string", "pattern": _BASE64}),
    ]
}
_MESSAGES: Final[dict[str, Any]] = {
    "oneOf": [_MESSAGE, {"type": "array", "minItems": 1, "maxItems": 10_000, "items": _MESSAGE}]
}


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one message its id, of a list the ids of its first and last, and how many they are."""

    id: int | msgspec.UnsetType = msgspec.UNSET
    ids: Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    count: int | msgspec.UnsetType = msgspec.UNSET


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message: `data64` in the place of `data` where that isn't UTF-8; `time` in Unix seconds."""

    keys: list[str]
    id: int
    data: str | msgspec.UnsetType = msgspec.UNSET
    data64: str | msgspec.UnsetType = msgspec.UNSET
    time: float | msgspec.UnsetType = msgspec.UNSET
    publisher: str | msgspec.UnsetType = msgspec.UNSET


class MessagePage(msgspec.Struct, frozen=True):
    """A page of the history.

    Attributes:
        first, newest: ids kept.
        id: where the next page begins.
        recovered: False where part of what was asked for is gone.
        complete: whether there is no more.
    """

    epoch: str
    first: int
    newest: int
    id: int
    recovered: bool
    complete: bool
    messages: list[Message]


class Polled(msgspec.Struct, frozen=True):
    """What came; the next poll's `since` is `epoch:id`."""

    epoch: str
    id: int
    recovered: bool
    messages: list[Message]


class Ticket(msgspec.Struct, frozen=True):
    """A ticket, and the seconds for which it is good."""

    ticket: str
    expires_in: int


def _tags() -> Parameter:
    return Parameter(
        "tags",
        "query",
        "A tag list: messages that carry all of these. Given again: or all of those.",
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "items": {"type": "string", "pattern": _LIST},
        },
        required=True,
        example=["news"],
    )


_SINCE: Final = parameter(
    "since",
    "After an id (`17`, or better `EPOCH:17`), or the last so many that match (`-10`).",
    {"type": "string", "pattern": _PLACE},
    example="-10",
)
_LAST: Final = parameter(
    "Last-Event-ID",
    "As browsers send it; wins over `since`.",
    {"type": "string", "pattern": _PLACE},
    place="header",
)
_KEY: Final = parameter(
    "Idempotency-Key",
    "Makes a repeat within 24 h a no-op that is answered as the first was.",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    place="header",
)
_OFF: Final = "This server keeps no history."
_UNAVAILABLE: Final = "The history can't be read or written; nothing was stored."
_A_MESSAGE: Final = {"keys": ["news"], "id": 17, "data": "hello", "time": 1767225600.0}

OPERATIONS: Final[Operations] = {
    "/v1/messages": {
        "post": Operation(
            summary="Publish",
            details="One message, or a list, all or nothing; or NDJSON. A token needs the right "
            "to publish.",
            who=EITHER,
            parameters=[_KEY],
            body=Body(
                _MESSAGES,
                {"tags": ["news", "room:1"], "data": "hello"},
                {"application/x-ndjson": {"type": "string"}},
            ),
            answers={
                200: Answer("Stored, and delivered to whoever is there.", Published, {"id": 17}),
                202: Answer("Delivered to whoever is there; there is no history.", {}, {}),
            },
            problems={422: "The same key came with another body.", 503: _UNAVAILABLE},
        ),
        "get": Operation(
            summary="Read the history",
            who=EITHER,
            parameters=[
                _tags(),
                _SINCE,
                parameter(
                    "limit",
                    "Most messages.",
                    {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
                ),
            ],
            answers={
                200: Answer(
                    "A page.",
                    MessagePage,
                    {
                        "epoch": "9f86d081884c7d65",
                        "first": 1,
                        "newest": 17,
                        "id": 17,
                        "recovered": True,
                        "complete": True,
                        "messages": [_A_MESSAGE],
                    },
                )
            },
            problems={409: _OFF, 503: _UNAVAILABLE},
        ),
    },
    "/v1/stream": {
        "get": Operation(
            summary="Subscribe: Server-Sent Events",
            details="First `ready`; then a message each, with `id: EPOCH:ID` where there is a "
            "history; `gap`, `revoked`, and `end` as the last word. A comment every 15 s.",
            who=CLIENT,
            parameters=[_tags(), _SINCE, _LAST],
            answers={200: Answer("Events, without end.", media_type="text/event-stream")},
            problems={409: _OFF, 503: "The server is going away, or the history can't be read."},
        )
    },
    "/v1/poll": {
        "get": Operation(
            summary="Subscribe: long polling",
            details="At once where there is something since, else when something comes.",
            who=CLIENT,
            parameters=[
                _tags(),
                _SINCE,
                _LAST,
                parameter(
                    "timeout",
                    "Seconds to wait.",
                    {"type": "number", "minimum": 0, "maximum": 60, "default": 25},
                ),
            ],
            answers={
                200: Answer(
                    "What came; nothing where nothing did.",
                    Polled,
                    {
                        "epoch": "9f86d081884c7d65",
                        "id": 17,
                        "recovered": True,
                        "messages": [_A_MESSAGE],
                    },
                )
            },
            problems={409: _OFF, 503: "The server is going away, or the history can't be read."},
        )
    },
    "/v1/tickets": {
        "post": Operation(
            summary="Get a ticket for a URL",
            details="Good once, and for pages of the same origin only.",
            who=("token",),
            body=Body({}, {}),
            answers={201: Answer("The ticket.", Ticket, {"ticket": "…", "expires_in": 30})},
        )
    },
    "/": {
        "get": Operation(
            summary="The dashboard", answers={200: Answer("A page.", media_type="text/html")}
        )
    },
    "/mist.js": {
        "get": Operation(
            summary="The browser client",
            answers={200: Answer("An ES module.", media_type="text/javascript")},
        )
    },
    "/mist.d.ts": {
        "get": Operation(
            summary="Its types",
            answers={200: Answer("Declarations.", media_type="application/typescript")},
        )
    },
}
