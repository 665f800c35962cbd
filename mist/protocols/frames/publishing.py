"""A publish in a JSON frame: `{"command":"publish","tags":["a"],"data":"x","key":"k"}`.

The fields of the message are those of a body of `POST /v1/messages`, and mean the same; `key` is
what `Idempotency-Key` is there. A client that lost its WebSocket before the reply may so repeat a
publish by the one or the other, and the message is published once: the digest that tells a repeat
from another message is that of such a body, written as JSON.stringify writes it.
"""

import base64
import binascii
import hashlib
import re
from typing import Final

import msgspec

from mist.audience import Audience
from mist.commands import PublishOnce
from mist.errors import CommandError, DataTooLong
from mist.message import Limits, parse_tags
from mist.protocols.frames.fields import BadField, Request, is_texts

__all__ = ["parse_publish"]

_MESSAGE: Final = ("tags", "data", "data64", "to")  # in the order in which they are hashed
# What is misspelled is refused: without its `to`, a message would reach everyone.
_FIELDS: Final = frozenset({"command", "ref", "key", *_MESSAGE})
_KEY: Final = re.compile(r"[ -~]{1,255}")
_KIND: Final = b"application/json\n"  # as over HTTP, where a body's media type is hashed, too


def parse_publish(limits: Limits, request: Request, ref: object) -> PublishOnce:
    """The command that a frame means. What is wrong with it is in the command."""
    try:
        return _parse(limits, request, ref)
    except CommandError as error:
        return PublishOnce(error=error.as_value(), ref=ref)


def _parse(limits: Limits, request: Request, ref: object) -> PublishOnce:
    if not request.keys() <= _FIELDS:
        raise BadField("a publish has tags, data or data64, to, key and ref, and nothing else")
    tags, key, to = request.get("tags"), request.get("key"), request.get("to")
    if not is_texts(tags):
        raise BadField("tags must be a list of strings")
    data = _data(request)
    if len(data) > limits.data:
        raise DataTooLong
    if "key" in request and not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise BadField("key must be 1 to 255 ASCII letters")
    if "to" in request and not isinstance(to, dict):  # null, too: perhaps a failed lookup
        raise BadField("to must be an object")
    return PublishOnce(
        parse_tags(tags, limits.message_tags),
        data,
        None if to is None else Audience.of_json(to),
        key or "",
        _digest(request) if key else b"",
        ref=ref,
    )


def _data(request: Request) -> bytes:
    text, encoded = request.get("data"), request.get("data64")
    if (text is None) == (encoded is None):
        raise BadField("a message has either data or data64")
    if isinstance(text, str):
        return text.encode()
    if not isinstance(encoded, str):
        raise BadField("data must be a string")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadField("data64 must be base64") from None


def _digest(request: Request) -> bytes:
    message = {name: request[name] for name in _MESSAGE if request.get(name) is not None}
    return hashlib.sha256(_KIND + msgspec.json.encode(message)).digest()
