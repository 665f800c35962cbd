"""Bodies of publish requests: one message, a list, or a line for each.

    {"tags": ["a", "b"], "data": "text"}
    {"tags": ["a"], "data64": "AAEC"}
    [{...}, {...}]
    {...}                                       application/x-ndjson: an object a line
    {...}
    {"tags": ["a"], "data": "text", "to": {"users": [1, 2], "except": ["tab-1"]}}

All messages are validated before any of them is published, and stored all or none. A body of
thousands is read in steps, so that others have their turns (`mist.turns`): first it is split, then
each message is read and judged. Tags are counted before they are looked at.

Of each message's tags only the text is kept. As sets, those of 3,000 messages with 64 tags were
what passes of the garbage collector walked through: 8 ms for one over young objects, 22 for a full
one.
"""

import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any, Final

import attrs
import msgspec
from msgspec import UNSET, UnsetType

from mist.audience import Audience
from mist.auth import Grant
from mist.errors import DataTooLong, TooManyTags
from mist.history import MAX_GROUP
from mist.http.bodies import NDJSON
from mist.http.openapi import Body
from mist.http.problems import Problem
from mist.message import (
    MAX_REPEATS,
    Limits,
    format_tags,
    has_more_strings,
    parse_tag_list,
    parse_tags,
)

__all__ = ["BODY", "TAGS", "Reading"]

_WHITE: Final = b" \t\r\n"
_CUT: Final = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*(?=\{)")


class _Object(msgspec.Struct, forbid_unknown_fields=True):
    tags: list[str]
    data: str | None = None
    data64: bytes | None = None
    to: dict[str, Any] | UnsetType = UNSET  # null is refused: perhaps a failed lookup


class _AnyObject(msgspec.Struct):
    """An object whose fields are passed over."""


_decode: Final = msgspec.json.Decoder(_Object).decode
_split_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_check_objects: Final = msgspec.json.Decoder(list[_AnyObject]).decode

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_STEP: Final = 512  # bytes of objects read in one step, or one object
_LARGE: Final = 65_536  # bytes of an object, above which its tags are counted before it is decoded
_OTHERS: Final = 1_000  # strings of it that are no tags
_PIECE: Final = 65_536  # bytes of a list that is taken apart in one step, or somewhat more
_BLANK_STEP: Final = 1_000  # blank lines passed over in a step


@attrs.define
class Reading:
    """Messages to be published together, as they are read.

    Args:
        limits: of tags and data.
        grant: what they should be allowed by; None for anything.

    Attributes:
        messages: tags, in canonical form, and data of each, in order; at least one in the end.
        granted: whether the grant allows all of them to be published.
        audiences: of each message; None is everyone.
        is_list: whether they came as a list, however long, rather than as one object.
    """

    limits: Limits
    grant: Grant | None = None
    messages: list[tuple[bytes, bytes]] = attrs.field(factory=list)
    granted: bool = True
    audiences: list[Audience | None] = attrs.field(factory=list)
    is_list: bool = True
    # Tags of the newest one as given, and as they are written.
    _given: list[str] | None = attrs.field(default=None, init=False)
    _tag_list: bytes = attrs.field(default=b"", init=False)

    def steps(self, body: bytes, *, lines: bool) -> Iterator[None]:
        """Read a body, a message in each step, or a few small ones.

        Args:
            lines: whether it is an object on each line; blank lines are ignored.

        Raises:
            Problem: it is invalid (400), or has more messages than one append takes (413).
            EmptyTag, InvalidTag, TooManyTags, DataTooLong, InvalidAudience: of the first invalid
                message.
        """
        self.is_list = lines or body.lstrip(_WHITE)[:1] == b"["
        done = 0  # bytes in this step
        for found in self._found(body, lines=lines):
            if found is not None:
                if len(self.messages) == MAX_GROUP:
                    raise _too_many()
                done += self._take(*found, name="line" if lines else "message")
                if done < _STEP:
                    continue
            done = 0
            yield
        if not self.messages:
            raise _invalid("there is no message in it")

    def ask(self, grant: Grant) -> Iterator[None]:
        """Ask another grant about what was read, in steps. Until the end, `granted` is False."""
        self.grant, self.granted = grant, False
        for tag_list in {tag_list for tag_list, _ in self.messages}:
            if not grant.may_publish(parse_tag_list(tag_list, self.limits.message_tags)):
                return
            yield
        self.granted = True

    def _found(self, body: bytes, *, lines: bool) -> Iterable["_Found | None"]:
        if lines:
            return _lines(body)
        return _objects(body, self.limits) if self.is_list else [(0, body)]

    def _take(self, number: int, text: bytes | msgspec.Raw, *, name: str) -> int:
        """Take a message in; its size in bytes."""
        limits = self.limits
        size = memoryview(text).nbytes
        if size > _LARGE:
            _count_strings(bytes(text), limits, 0, size)
        try:
            each = _decode(text)
        except _UNREADABLE as error:
            raise _invalid(f"{name} {number}: {error}" if number else str(error)) from None
        if each.tags != self._given:  # the same ones often follow each other
            tags = parse_tags(each.tags, limits.message_tags)
            self._tag_list = format_tags(tags).encode()
            self._given = each.tags
            if self.granted and self.grant is not None:
                self.granted = self.grant.may_publish(tags)
        data = _data(each, limits)
        audience = None if each.to is UNSET else Audience.of_json(each.to)
        if audience is not None:
            audience.text  # noqa: B018  # kept: with a thousand ids it takes 1 ms, which is due here
        self.audiences.append(audience)
        self.messages.append((self._tag_list, data))
        return size


_Found = tuple[int, bytes | msgspec.Raw]
"""An object's number, 0 where there is but one, and its text."""


def _lines(body: bytes) -> Iterator[_Found | None]:
    """The objects; None now and then where there is none for long."""
    for number, line in enumerate(BytesIO(body), 1):
        if line.strip():
            yield number, line
        elif not number % _BLANK_STEP:
            yield None


def _objects(body: bytes, limits: Limits) -> Iterator[_Found | None]:
    """The objects of a list; None now and then until all are found."""
    found: list[msgspec.Raw] = []
    for some in _split(body, limits):
        found += some
        if len(found) > MAX_GROUP:
            raise _too_many()
        yield None
    yield from enumerate(found, 1)


def _split(body: bytes, limits: Limits) -> Iterator[list[msgspec.Raw]]:
    """Take a list apart, some objects at a time.

    It is cut where it may be between two objects. If it is not, since that is inside a string,
    what is before the cut is no list of objects, and one behind it is tried. JSON can be read in
    one way only, so if all between the cuts are lists, they are the list that they were cut out of.
    """
    start, size = body.index(b"[") + 1, _PIECE
    while (cut := _CUT.search(body, start + size)) is not None:
        _count_strings(body, limits, start, body.find(b"}", start))
        try:
            some = _objects_of(b"[%b]" % body[start : cut.start() + 1])
        except _UNREADABLE:
            size *= 2
            some = []
        else:
            start, size = cut.end(), _PIECE
        yield some
    _count_strings(body, limits, start, body.find(b"}", start))
    try:
        rest = _objects_of(b"[%b" % body[start:])
    except _UNREADABLE:
        rest = []
    if not rest:
        # Empty, or invalid somewhere: what is said of it has its place in the whole.
        try:
            _check_objects(body)
        except _UNREADABLE as error:
            raise _invalid(str(error)) from None
    yield rest


def _objects_of(text: bytes) -> list[msgspec.Raw]:
    """The objects of a list. Two million numbers are refused at the first, and none is made."""
    _check_objects(text)
    return _split_list(text)


def _count_strings(text: bytes, limits: Limits, start: int, end: int) -> None:
    """Refuse far too many tags of an object before half a million strings are made of them."""
    if end - start > _LARGE:
        most = limits.message_tags
        if has_more_strings(text, most * MAX_REPEATS + _OTHERS, start, end):
            raise TooManyTags(most)


def _too_many() -> Problem:
    return Problem(413, "payload_too_large", f"a request has at most {MAX_GROUP} messages")


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
"""The body that `Reading` reads."""
