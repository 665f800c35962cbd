"""Bodies of publish requests: one message, a list, or a line for each.

    {"tags": ["a", "b"], "data": "text"}
    {"tags": ["a"], "data64": "AAEC"}
    [{...}, {...}]
    {...}                                       application/x-ndjson: an object a line
    {...}
    {"tags": ["a"], "data": "text", "to": {"users": [1, 2], "except": ["tab-1"]}}

All messages are validated before any of them is published, and stored all or none.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import attrs
import msgspec
from msgspec import UNSET, UnsetType

from mist.audience import Audience
from mist.errors import DataTooLong
from mist.history import MAX_GROUP
from mist.http.bodies import NDJSON
from mist.http.openapi import Body
from mist.http.problems import Problem
from mist.message import Limits, TagSet, parse_tags

__all__ = ["BODY", "TAGS", "Publications", "read_publications"]

T = TypeVar("T")


@attrs.frozen
class Publications:
    """Messages to be published together.

    Attributes:
        messages: tags and data of each, in order; at least one.
        audiences: of each message; None is everyone.
        is_list: whether they came as a list, however long, rather than as one object.
    """

    messages: Sequence[tuple[TagSet, bytes]]
    is_list: bool
    audiences: Sequence[Audience | None]


class _Object(msgspec.Struct, forbid_unknown_fields=True):
    tags: list[str]
    data: str | None = None
    data64: bytes | None = None
    to: dict[str, Any] | UnsetType = UNSET  # null is refused: perhaps a failed lookup


_decode: Final[Callable[[bytes], _Object | list[_Object]]] = msgspec.json.Decoder(
    _Object | list[_Object]
).decode
_decode_line: Final = msgspec.json.Decoder(_Object).decode


def read_publications(body: bytes, limits: Limits, *, lines: bool) -> Publications:
    """A body's messages.

    Args:
        limits: of tags and data.
        lines: whether it is an object on each line; blank lines are ignored.

    Raises:
        Problem: it is invalid (400), or has more messages than one append takes (413).
        EmptyTag, InvalidTag, TooManyTags, DataTooLong, InvalidAudience: of the first invalid
            message.
    """
    found = list(_lines(body)) if lines else _decoded(_decode, body)
    objects = found if isinstance(found, list) else [found]
    if not objects:
        raise _invalid("there is no message in it")
    if len(objects) > MAX_GROUP:
        raise Problem(413, "payload_too_large", f"a request has at most {MAX_GROUP} messages")
    messages = [
        (parse_tags(each.tags, limits.message_tags), _data(each, limits)) for each in objects
    ]
    audiences = [None if each.to is UNSET else Audience.of_json(each.to) for each in objects]
    return Publications(messages, isinstance(found, list), audiences)


def _lines(body: bytes) -> Iterator[_Object]:
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            yield _decoded(_decode_line, line, f"line {number}: ")


def _decoded(decode: Callable[[bytes], T], text: bytes, place: str = "") -> T:
    try:
        return decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"{place}{error}") from None


def _data(each: _Object, limits: Limits) -> bytes:
    if (each.data is None) == (each.data64 is None):
        raise _invalid("a message has either data or data64")
    try:
        data = each.data.encode() if each.data is not None else each.data64
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        raise _invalid("data is not valid Unicode") from None
    assert data is not None
    if len(data) > limits.data:
        raise DataTooLong
    return data


def _invalid(detail: str) -> Problem:
    return Problem(400, "invalid_body", f"the body can't be understood: {detail}")


# OpenAPI: stricter than what msgspec would generate for `_Object`

_TAG: Final = r"^(?![./>]|=/)[^ ,\u0000-\u001F\u007F-\u009F]+(?<!\*)$"
_BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

TAGS: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": 64,
    "items": {"type": "string", "maxLength": 255, "pattern": _TAG},
}


_VALUE: Final = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}
_NUMBER: Final = {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}
_IDS: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": 200,
    "items": {"anyOf": [_VALUE, _NUMBER]},
}
_TO: Final = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 8,
    "properties": dict.fromkeys(("clients", "users", "groups", "except"), _IDS),
    "patternProperties": {
        "^(?!(client|user)s?$|groups$|except$)[a-z0-9_.-]{1,64}$": {"anyOf": [_VALUE, _NUMBER]}
    },
    "additionalProperties": False,
}


def _message(data: str, other: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["tags", data],
        "additionalProperties": False,
        "properties": {"tags": TAGS, data: schema, other: {"type": "null"}, "to": _TO},
    }


_MESSAGE: Final[dict[str, Any]] = {
    "oneOf": [
        _message("data", "data64", {"type": "string"}),
        _message("data64", "data", {"type": "string", "pattern": _BASE64}),
    ]
}
_MESSAGES: Final[dict[str, Any]] = {
    "oneOf": [_MESSAGE, {"type": "array", "minItems": 1, "maxItems": MAX_GROUP, "items": _MESSAGE}]
}

BODY: Final = Body(
    _MESSAGES,
    {"tags": ["news", "room:1"], "data": "hello"},
    {NDJSON: {"type": "string"}},
)
"""The body that `read_publications` takes."""
