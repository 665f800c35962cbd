"""JSON bodies of requests and responses, and media types."""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mist.errors import MistError
from mist.http.answers import WholeResponse
from mist.http.problems import Problem
from mist.message import has_more_strings, occurs_more

__all__ = ["ARROW", "FORM", "JSON", "NDJSON", "answer", "media_type", "read_body", "whole_body"]

T = TypeVar("T")

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
FORM: Final = "application/x-www-form-urlencoded"

_JSON_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-type", b"application/json"),
)


def _whole(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


_decode_whole: Final = msgspec.json.Decoder(float_hook=_whole).decode


def media_type(request: Request) -> str:
    """The media type of a request's body, without parameters, as the guard has seen it.

    Empty where the request has none. Only of methods that change something.
    """
    found: str = request.scope["state"]["media_type"]
    return found


async def whole_body(request: Request) -> bytes:
    """All of a request's body, as `request.body()` gives it at several times the cost.

    Raises:
        ClientDisconnect: the peer is gone.
    """
    pieces: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def read_body(
    request: Request, kind: type[T], most: int, too_many: MistError | None = None
) -> T:
    """A request's JSON body, of exactly that type; 5.0 is an integer, as in JSON Schema.

    Args:
        kind: anything that msgspec decodes: a Struct, a union of them, a list.
        most: values of the largest valid body, counted by their commas. A body with more is
            refused undecoded: to decode the million that fit into one would hold the event loop.
        too_many: raised instead of a Problem where more than `most` are strings, such as tags.

    Raises:
        Problem: it is not JSON, or not of that type, or has too many values (400).
        MistError: `too_many`.
    """
    body = await whole_body(request)
    if too_many is not None and has_more_strings(body, most):
        raise too_many
    if occurs_more(b",", body, most):
        raise _invalid("too many values")
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            return msgspec.convert(_decode_whole(body), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(str(error)) from None


def _invalid(detail: str) -> Problem:
    return Problem(400, "invalid_body", f"the body can't be understood: {detail}")


def answer(
    value: object, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()
) -> Response:
    """A JSON response that must not be cached."""
    return WholeResponse(msgspec.json.encode(value), status, (*_JSON_HEADERS, *headers))
