"""mist's own WebSocket frames: JSON objects in text messages, for browsers.

What a client may send and what it gets is the table in the README. Writing makes whole server
frames, header included, because the bytes of a delivery are shared by all WebSocket sessions
and go straight into their outboxes. That is sound while no extension is negotiated: without
one, a server frame depends on nothing but its payload (RFC 6455, section 5.2).

Publishing is not possible here: a browser's token says what it may see, nothing else.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from mist.commands import (
    Auth,
    Bye,
    Command,
    Done,
    Failed,
    Hangup,
    Invalid,
    ListSubscriptions,
    Ping,
    Reply,
    Revoked,
    Subscribe,
    Subscriptions,
    Unsubscribe,
)
from mist.errors import CommandError, HistoryOff, MistError, NotAllowed, UnknownCommand
from mist.message import Entry, Limits, TagSet, parse_tags
from mist.protocols import Protocol, WireForm
from mist.protocols.client_frames import Binary, Broken, Closed, FrameReader, Pinged, Text
from mist.protocols.rfc6455 import pong_frame, text_frame, text_frame_header

__all__ = ["JSON_FRAMES", "FrameProtocol", "JsonFrames"]

STRANGER_MESSAGE: Final = 4_096  # bytes of a message of a peer that has not authenticated


class _Beginning(dict[int, bytes]):
    """How a frame with one tag list begins, header included, by the size of the JSON behind it.

    Messages of one tag list are often of one size or of a few, and looking a beginning up
    costs a third of making it.
    """

    _MOST: Final = 64

    def __init__(self, tags: TagSet) -> None:
        self.keys_only = b'{"keys":%b,"data' % msgspec.json.encode(sorted(tags))

    def __missing__(self, size: int) -> bytes:
        if len(self) >= self._MOST:
            self.clear()
        start = self.keys_only + b'":'
        found = self[size] = text_frame_header(len(start) + size + 1) + start
        return found


class JsonFrames(WireForm):
    """`{"keys":["a","b"],"data":"…"}` in a text frame; `data64` where data is not UTF-8."""

    name = "json-frames"

    def pieces(self, entries: Sequence[Entry]) -> list[bytes]:
        beginnings: list[_Beginning] = []
        messages: list[bytes] = []
        for tag_list, wire, count in entries:
            beginning = tag_list.derived.get(self)
            if beginning is None:
                beginning = tag_list.derived[self] = _Beginning(tag_list.tags)
            beginnings += [beginning] * count
            messages += tag_list.split(wire, count)
        try:
            texts = [data.decode() for data in messages]
        except UnicodeDecodeError:
            return list(map(_any_frame, beginnings, messages))
        # One call for all. JSON writes LF as an escape, so lines are told apart surely.
        lines = _encode_lines(texts).split(b"\n")[:-1]
        return [
            beginning[len(line)] + line + b"}"
            for beginning, line in zip(beginnings, lines, strict=True)
        ]


def _any_frame(beginning: _Beginning, data: bytes) -> bytes:
    try:
        line = msgspec.json.encode(data.decode())
    except UnicodeDecodeError:
        return text_frame(b'%b64":"%b"}' % (beginning.keys_only, base64.b64encode(data)))
    return beginning[len(line)] + line + b"}"


_encode_lines: Final = msgspec.json.Encoder().encode_lines
JSON_FRAMES: Final = JsonFrames()


class _BadJson(CommandError):
    code = "invalid_json"
    message = "Invalid json"


class _BinaryFrame(CommandError):
    code = "binary_frame"
    message = "binary frames are not understood"


class _BadField(CommandError):
    code = "bad_field"


class FrameProtocol(Protocol):
    """One WebSocket's side of the JSON frames.

    Args:
        limits: of messages and tags.
        stranger: whether the peer has yet to prove who it is; it may send short messages only.

    Attributes:
        goodbye: what the peer's close frame is to be answered with, once it came.
    """

    def __init__(self, limits: Limits, *, stranger: bool = False) -> None:
        self.form: WireForm = JSON_FRAMES
        self.goodbye = b""
        self._limits = limits
        self._stranger = stranger
        self._frames = FrameReader(limits.frame)

    def authenticated(self) -> None:
        self._stranger = False

    def receive(self, data: bytes) -> Iterator[Command]:
        for event in self._frames.receive(data):
            match event:
                case Text(data=message):
                    if self._stranger and len(message) > STRANGER_MESSAGE:
                        yield Hangup("first frame too long", 1009)
                        return
                    yield self.command(message)
                case Binary(data=message):
                    yield self.binary(message)
                case Pinged():
                    yield Ping(ref=event)
                case Closed(answer=answer):
                    self.goodbye = answer
                    yield Bye()
                case Broken(code=code, reason=reason):
                    yield Hangup(reason, code)

    def binary(self, message: bytes) -> Command:
        """What a binary message amounts to."""
        return Invalid(_BinaryFrame())

    def command(self, message: bytes) -> Command:
        """What a text message amounts to."""
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
            return make(self._limits, request, ref)
        except CommandError as error:
            return Invalid(error, name, ref=ref)

    def reply(self, command: Command, reply: Reply) -> bytes:
        if isinstance(command.ref, Pinged):
            return pong_frame(command.ref.payload)
        answer: dict[str, object] = {"success": not isinstance(reply, Failed)}
        name = command.name if isinstance(command, Invalid) else _NAMES.get(type(command))
        if name is not None:
            answer["command"] = name
        match reply:
            case Done():
                pass
            case Subscriptions(tag_lists):
                answer["subscriptions"] = [tag_list.decode().split(",") for tag_list in tag_lists]
            case Failed(error):
                answer["error"] = _error_text(error)
            case _:
                raise AssertionError(f"no frame for {reply!r}")
        if isinstance(command.ref, dict):
            answer |= command.ref
        return text_frame(msgspec.json.encode(answer))

    def notice(self, notice: Reply) -> bytes:
        match notice:
            case Revoked(tags):
                answer = {"success": False, "command": "revoked", "tags": sorted(tags)}
                return text_frame(msgspec.json.encode(answer))
            case _:
                return b""


def _error_text(error: MistError) -> str:
    return "unknown command" if isinstance(error, UnknownCommand) else str(error)


# Commands

_Request = dict[str, Any]


def _tags(limits: Limits, request: _Request) -> frozenset[str]:
    tags = request.get("tags")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _BadField("tags must be a list of strings")
    return parse_tags(tags, limits.subscription_tags)


def _subscribe(limits: Limits, request: _Request, ref: object) -> Command:
    tags = _tags(limits, request)
    if "since" in request:
        raise HistoryOff
    return Subscribe(tags, ref=ref)


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
_NAMES: Final[dict[type[Command], str]] = {
    Subscribe: "subscribe",
    Unsubscribe: "unsubscribe",
    ListSubscriptions: "list",
    Ping: "ping",
    Auth: "auth",
}
