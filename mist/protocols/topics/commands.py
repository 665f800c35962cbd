r"""One message of a guble client to one command.

    > /foo id\n{"Key":"value"}\n\nbody     publish; id, headers and body may be missing
    + /foo 42 20                           subscribe, with a replay from an id on or of the last
                                           so many
    - /foo                                 unsubscribe

The last argument of `+` is how many messages come at most; with it nothing comes live. A start
is inclusive, a negative one counts from the end; with both, the oldest of these come.

Behind the first line of `>` stands a line of headers, which may be empty; then the body. Where
there are headers, one empty line may part the two, and is no part of the body.
"""

import re
from collections.abc import Callable
from typing import Final

import attrs
import msgspec

from mist.commands import Command, Fetch, Invalid, Resume, Since, Unsubscribe
from mist.errors import CommandError, DataTooLong
from mist.message import ASK, PUBLISH, Limits, TagSet, TagUse, parse_tags
from mist.protocols.positions import MAX_ID

__all__ = ["BadRequest", "Sending", "check_field", "parse_message", "quoted"]

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_QUOTED: Final = 100  # characters of a peer's words that it is told again
_MAX_FIELD: Final = 255  # bytes
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class BadRequest(CommandError):
    """Not a command, or one that can't be meant. The text is guble's."""

    code = "bad_request"


@attrs.define
class Sending:
    """What a client wants published, and what becomes of it.

    Attributes:
        path: as written; a topic where `error` is None.
        message_id: the client's name for it; empty where it has none.
        headers: a JSON object, or nothing.
        error: why it can't be published.
        time: when it came, Unix seconds.
        failed: whether it was refused.
    """

    path: str
    message_id: str = ""
    headers: bytes = b""
    body: bytes = b""
    error: CommandError | None = None
    time: float = 0.0
    failed: bool = False


def parse_message(message: bytes, limits: Limits) -> Command | Sending:
    """What a message asks for; `Invalid` where that is nothing.

    The `ref` of a command is the path that it names.
    """
    if not message:
        return Invalid(BadRequest("error parsing command. empty command"))
    line, _, rest = message.partition(b"\n")
    text = line.decode("utf-8", "replace")
    name, _, argument = text.partition(" ")
    try:
        if name == ">":
            return _send(argument, rest, limits)
        parse = _COMMANDS.get(name)
        if parse is None:
            raise BadRequest(f"unknown command {name[:_QUOTED]}")
        return parse(argument, limits)
    except CommandError as error:
        return Invalid(error)


def quoted(text: str) -> str:
    """A peer's words as they are told again: not all of them, if they are many."""
    return msgspec.json.encode(text[:_QUOTED]).decode()


def _topic(path: str, limits: Limits, use: TagUse) -> TagSet:
    if not path.startswith("/"):
        raise BadRequest("command requires at least a path argument, but non given")
    try:
        if "\ufffd" not in path:  # as in `check_field`
            return parse_tags([path], limits.message_tags, use)
    except CommandError:
        pass
    raise BadRequest(f"invalid path {quoted(path)}")


def _receive(argument: str, limits: Limits) -> Command:
    path, start, most = (*argument.split(" ", 2), "", "")[:3]
    tags = _topic(path, limits, ASK)
    since = _since(_integer("startid", start)) if start else None
    count = _integer("maxCount", most) if most else None
    if count is not None and count < 0:
        raise _no_integer("maxCount", most)
    if since is None:
        return Resume([tags], None, ref=path)
    if count is None:
        return Resume([tags], since, counted=True, ref=path)
    return Fetch(tags, since, count, ref=path)


def _since(start: int) -> Since:
    if start < 0:
        return Since(last=min(-start, MAX_ID))
    return Since(after=min(max(start - 1, 0), MAX_ID), literal=True)


def _integer(name: str, text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _no_integer(name, text)
    return int(text)


def _no_integer(name: str, text: str) -> BadRequest:
    return BadRequest(f"{name} has to be empty or int, but was {quoted(text)}")


def _cancel(argument: str, limits: Limits) -> Command:
    return Unsubscribe(_topic(argument, limits, ASK), ref=argument)


def _send(argument: str, rest: bytes, limits: Limits) -> Sending:
    path, _, message_id = argument.partition(" ")
    if not path.startswith("/"):
        raise BadRequest("command requires at least a path argument, but non given")
    headers, _, body = rest.partition(b"\n")
    if headers and body.startswith(b"\n"):
        body = body[1:]
    sending = Sending(path, message_id, headers, body)
    try:
        _topic(path, limits, PUBLISH)
        _check(sending, limits)
    except CommandError as error:
        sending.error = error.as_value()
    return sending


def check_field(name: str, text: str) -> None:
    """Raise `BadRequest` where a text can't stand in the first line of a delivery.

    Args:
        name: what it is.
    """
    # What was no UTF-8 is none of the client's words any more.
    if "," in text or "\ufffd" in text or _CONTROL.search(text):
        raise BadRequest(f"a {name} has no comma, and no control character")
    if len(text.encode()) > _MAX_FIELD:
        raise BadRequest(f"a {name} is at most {_MAX_FIELD} bytes long")


def _check(sending: Sending, limits: Limits) -> None:
    check_field("message id", sending.message_id)
    if sending.headers:
        try:
            _object.decode(sending.headers.decode())  # values aren't looked at for UTF-8
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise BadRequest("headers are a JSON object") from None
    if len(sending.body) > limits.data:
        raise DataTooLong


_COMMANDS: Final[dict[str, Callable[[str, Limits], Command]]] = {"+": _receive, "-": _cancel}
