"""One JSON frame to one command."""

from collections.abc import Callable
from typing import Any, Final, TypeGuard

import msgspec

from mist.commands import (
    Auth,
    Command,
    Invalid,
    ListSubscriptions,
    Ping,
    Resume,
    Subscribe,
    Unsubscribe,
)
from mist.errors import CommandError, NotAllowed, TooManySubscriptions, UnknownCommand
from mist.message import ASK, Limits, TagSet, parse_tags
from mist.protocols.positions import MAX_ALTERNATIVES, position_from_json

__all__ = ["NAMES", "BinaryFrame", "parse_request"]

_Request = dict[str, Any]


class _BadJson(CommandError):
    code = "invalid_json"
    message = "Invalid json"


class BinaryFrame(CommandError):
    """A binary message, which says nothing here."""

    code = "binary_frame"
    message = "binary frames are not understood"


class _BadField(CommandError):
    code = "bad_field"


def parse_request(message: bytes, limits: Limits) -> Command:
    """The command a text message means; `Invalid` where it means none."""
    try:
        request = msgspec.json.decode(message)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Invalid(_BadJson())
    if not isinstance(request, dict):
        return Invalid(_BadJson())
    name = request.get("command")
    if not isinstance(name, str):
        name = None
    # Held as it will be written back: present with its value, which may be null, or absent.
    ref = {"ref": request["ref"]} if "ref" in request else None
    if ref is not None and isinstance(ref["ref"], dict | list):
        return Invalid(_BadField("ref must be a JSON scalar"), name)
    make = _COMMANDS.get(name or "")
    try:
        if make is None:
            raise UnknownCommand
        return make(limits, request, ref)
    except CommandError as error:
        return Invalid(error, name, ref=ref)


def _is_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _tags(limits: Limits, request: _Request) -> TagSet:
    tags = request.get("tags")
    if not _is_texts(tags):
        raise _BadField("tags must be a list of strings")
    return parse_tags(tags, limits.subscription_tags, ASK)


def _alternatives(limits: Limits, request: _Request) -> list[TagSet]:
    if "tags" in request:
        raise _BadField("tags or subscriptions, not both")
    found = request["subscriptions"]
    if not isinstance(found, list) or not found or not all(map(_is_texts, found)):
        raise _BadField("subscriptions must be a list of lists of strings, and not empty")
    if len(found) > MAX_ALTERNATIVES:
        raise TooManySubscriptions
    return [parse_tags(tags, limits.subscription_tags, ASK) for tags in found]


def _subscribe(limits: Limits, request: _Request, ref: object) -> Command:
    several = "subscriptions" in request
    alternatives = _alternatives(limits, request) if several else [_tags(limits, request)]
    if "since" in request:
        return Resume(alternatives, position_from_json(request["since"]), ref=ref)
    # Several at once are all taken or none, which is what a `Resume` is.
    return Resume(alternatives, None, ref=ref) if several else Subscribe(alternatives[0], ref=ref)


def _unsubscribe(limits: Limits, request: _Request, ref: object) -> Command:
    return Unsubscribe(_tags(limits, request), ref=ref)


def _auth(limits: Limits, request: _Request, ref: object) -> Command:
    token = request.get("token")
    if not isinstance(token, str):
        raise _BadField("token must be a string")
    return Auth(token, ref=ref)


def _publish(limits: Limits, request: _Request, ref: object) -> Command:
    raise NotAllowed("publishing is not allowed over websockets")


_COMMANDS: Final[dict[str, Callable[[Limits, _Request, object], Command]]] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "list": lambda limits, request, ref: ListSubscriptions(ref=ref),
    "ping": lambda limits, request, ref: Ping(ref=ref),
    "auth": _auth,
    "publish": _publish,
}

NAMES: Final[dict[type[Command], str]] = {
    Subscribe: "subscribe",
    Resume: "subscribe",
    Unsubscribe: "unsubscribe",
    ListSubscriptions: "list",
    Ping: "ping",
    Auth: "auth",
}
"""What the reply to a command calls it."""
