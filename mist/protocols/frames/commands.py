"""One JSON frame to one command."""

from collections.abc import Callable
from typing import Final

import msgspec

from mist.commands import (
    Auth,
    Command,
    Invalid,
    ListSubscriptions,
    Ping,
    PublishOnce,
    Resume,
    Subscribe,
    Unsubscribe,
    UnwatchPresence,
    WatchPresence,
)
from mist.errors import CommandError, TooManySubscriptions, UnknownCommand
from mist.message import ASK, Limits, TagSet, parse_tags
from mist.protocols.frames.fields import BadField, Request, is_texts
from mist.protocols.frames.publishing import parse_publish
from mist.protocols.positions import MAX_ALTERNATIVES, position_from_json

__all__ = ["NAMES", "BinaryFrame", "parse_request"]


class _BadJson(CommandError):
    code = "invalid_json"
    message = "Invalid json"


class BinaryFrame(CommandError):
    """A binary message, which says nothing here."""

    code = "binary_frame"
    message = "binary frames are not understood"


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
        return Invalid(BadField("ref must be a JSON scalar"), name)
    make = _COMMANDS.get(name or "")
    try:
        if make is None:
            raise UnknownCommand
        return make(limits, request, ref)
    except CommandError as error:
        return Invalid(error, name, ref=ref)


def _tags(limits: Limits, request: Request) -> TagSet:
    tags = request.get("tags")
    if not is_texts(tags):
        raise BadField("tags must be a list of strings")
    return parse_tags(tags, limits.subscription_tags, ASK)


def _alternatives(limits: Limits, request: Request) -> list[TagSet]:
    if "tags" in request:
        raise BadField("tags or subscriptions, not both")
    found = request["subscriptions"]
    if not isinstance(found, list) or not found or not all(map(is_texts, found)):
        raise BadField("subscriptions must be a list of lists of strings, and not empty")
    if len(found) > MAX_ALTERNATIVES:
        raise TooManySubscriptions
    return [parse_tags(tags, limits.subscription_tags, ASK) for tags in found]


def _subscribe(limits: Limits, request: Request, ref: object) -> Command:
    several = "subscriptions" in request
    alternatives = _alternatives(limits, request) if several else [_tags(limits, request)]
    if "since" in request:
        return Resume(alternatives, position_from_json(request["since"]), ref=ref)
    # Several at once are all taken or none, which is what a `Resume` is.
    return Resume(alternatives, None, ref=ref) if several else Subscribe(alternatives[0], ref=ref)


def _unsubscribe(limits: Limits, request: Request, ref: object) -> Command:
    return Unsubscribe(_tags(limits, request), ref=ref)


def _auth(limits: Limits, request: Request, ref: object) -> Command:
    token = request.get("token")
    if not isinstance(token, str):
        raise BadField("token must be a string")
    return Auth(token, ref=ref)


_COMMANDS: Final[dict[str, Callable[[Limits, Request, object], Command]]] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "list": lambda limits, request, ref: ListSubscriptions(ref=ref),
    "ping": lambda limits, request, ref: Ping(ref=ref),
    "auth": _auth,
    "presence": lambda limits, request, ref: WatchPresence(_tags(limits, request), ref=ref),
    "unpresence": lambda limits, request, ref: UnwatchPresence(_tags(limits, request), ref=ref),
    "publish": parse_publish,
}

NAMES: Final[dict[type[Command], str]] = {
    Subscribe: "subscribe",
    Resume: "subscribe",
    Unsubscribe: "unsubscribe",
    ListSubscriptions: "list",
    PublishOnce: "publish",
    Ping: "ping",
    Auth: "auth",
    WatchPresence: "presence",
    UnwatchPresence: "unpresence",
}
"""What the reply to a command calls it."""
