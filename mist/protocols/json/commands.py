"""One JSON object to one command, publishes that keep the rules left out."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from mist.commands import (
    AddTags,
    Auth,
    Command,
    Invalid,
    ListSubscriptions,
    ListTags,
    Ping,
    Publish,
    Register,
    RemoveTags,
    ShowTags,
    Subscribe,
    Unregister,
    Unsubscribe,
    UnwatchPresence,
    WatchPresence,
    Who,
)
from mist.errors import CommandError, DataTooLong, InvalidTag, TooManyTags, UnknownCommand
from mist.message import (
    ASK,
    GRANT,
    MAX_REPEATS,
    PUBLISH,
    Limits,
    TagSet,
    TagUse,
    check_token,
    has_more_strings,
    parse_tags,
)
from mist.protocols.json.objects import InvalidJson
from mist.protocols.json.requests import Request

__all__ = ["NAMES", "parse_request", "read_one"]


class _Fields(msgspec.Struct):
    """The fields of an object, yet to be looked at; what else is in it means nothing here.

    Attributes:
        to: an audience, elsewhere; empty where there is none.
    """

    command: msgspec.Raw = msgspec.Raw(b"null")
    tags: msgspec.Raw = msgspec.Raw(b"null")
    data: msgspec.Raw = msgspec.Raw(b"null")
    to: msgspec.Raw = msgspec.Raw(b"")


class BadField(CommandError):
    """A field of an object that isn't what it should be."""

    code = "bad_field"


class MissingTags(CommandError):
    """A command that needs tags, and has none."""

    code = "missing_tags"

    def __init__(self, command: str) -> None:
        super().__init__(f"Failed to {command}. Missing tags")


_decode_fields: Final = msgspec.json.Decoder(_Fields).decode
_decode_text: Final = msgspec.json.Decoder(str | None).decode
_decode_texts: Final = msgspec.json.Decoder(list[str] | None).decode


def read_one(object_: bytes, limits: Limits) -> Request | Invalid:
    """What one object asks for.

    Raises:
        InvalidJson: it isn't JSON, or not in UTF-8, or no object.
    """
    try:
        object_.decode()
        fields = _decode_fields(object_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidJson from None
    command = None
    try:
        command = _field(fields.command, _decode_text, "command must be a string")
        if command == "publish" and bytes(fields.to):  # it would reach everyone
            raise BadField("to is not understood here")
        _count_tags(bytes(fields.tags), limits)
        tags = _field(fields.tags, _decode_texts, "tags must be a list of strings")
        data = _field(fields.data, _decode_text, "data must be a string")
        if command == "publish" and data is not None and len(data.encode()) > limits.data:
            raise DataTooLong
    except CommandError as error:
        return Invalid(error, command)
    return Request(command, tags, data)


def _count_tags(raw: bytes, limits: Limits) -> None:
    """Refuse far too many tags before a string is made of each."""
    most = max(limits.message_tags, limits.subscription_tags, limits.token_tags)
    if has_more_strings(raw, most * MAX_REPEATS):
        raise TooManyTags(most)


def _field(raw: msgspec.Raw, decode: Callable[[msgspec.Raw], Any], error: str) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError:
        raise BadField(error) from None


def parse_request(request: Request, limits: Limits, *, administers: bool) -> Command:
    """The command an object means; `Invalid` where it means none.

    Args:
        administers: whether the peer may know that there are commands on tokens.
    """
    name = request.command or ""
    make = _COMMANDS.get(name)
    if make is None and administers:
        make = _TOKEN_COMMANDS.get(name)
    if make is None:
        return Invalid(UnknownCommand(), request.command, ref=request)
    try:
        return make(limits, request)
    except CommandError as error:
        return Invalid(error, name)


def _tags(request: Request, limit: int, use: TagUse) -> TagSet:
    if not request.tags:
        raise MissingTags(request.command or "")
    return parse_tags(request.tags, limit, use)


def _publish(limits: Limits, request: Request) -> Command:
    # Comes here only when it breaks a rule.
    _tags(request, limits.message_tags, PUBLISH)
    raise InvalidTag


def _subscribe(limits: Limits, request: Request) -> Command:
    return Subscribe(_tags(request, limits.subscription_tags, ASK))


def _unsubscribe(limits: Limits, request: Request) -> Command:
    return Unsubscribe(_tags(request, limits.subscription_tags, ASK))


def _on_presence(command: type[WatchPresence | UnwatchPresence]) -> "_Make":
    return lambda limits, request: command(_tags(request, limits.subscription_tags, ASK))


_Make = Callable[[Limits, Request], Command]


def _with_tags(command: type[Register | AddTags | RemoveTags]) -> _Make:
    def make(limits: Limits, request: Request) -> Command:
        tags = _tags(request, limits.token_tags, GRANT)
        return command(check_token(request.data or ""), tags)

    return make


_COMMANDS: Final[dict[str, _Make]] = {
    "ping": lambda limits, request: Ping(),
    "publish": _publish,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "list": lambda limits, request: ListSubscriptions(),
    "listall": lambda limits, request: ListTags(),
    "who": lambda limits, request: Who(),
    "presence": _on_presence(WatchPresence),
    "unpresence": _on_presence(UnwatchPresence),
    "auth": lambda limits, request: Auth(request.data or ""),
}
_TOKEN_COMMANDS: Final[dict[str, _Make]] = {
    "register": _with_tags(Register),
    "unregister": lambda limits, request: Unregister(check_token(request.data or "")),
    "set": _with_tags(AddTags),
    "unset": _with_tags(RemoveTags),
    "tags": lambda limits, request: ShowTags(check_token(request.data or "")),
}

NAMES: Final[dict[type[Command], str]] = {
    Ping: "ping",
    Publish: "publish",
    Subscribe: "subscribe",
    Unsubscribe: "unsubscribe",
    ListSubscriptions: "list",
    ListTags: "listall",
    Who: "who",
    Auth: "auth",
    Register: "register",
    Unregister: "unregister",
    AddTags: "set",
    RemoveTags: "unset",
    ShowTags: "tags",
    WatchPresence: "presence",
    UnwatchPresence: "unpresence",
}
"""What the reply to a command calls it."""
