"""mist's own WebSocket frames: JSON objects in text messages, for browsers.

What a client may send and what it gets is docs/websocket-protocol.md. Publishing is for tokens that
grant it; to others it is not allowed here.
"""

from collections.abc import Generator, Iterator
from typing import Final

import msgspec

from mist.commands import Bye, Command, Hangup, Invalid, Ping
from mist.errors import (
    HistoryUnavailable,
    MistError,
    NotAllowed,
    NotGranted,
    TooManyRequests,
    UnknownCommand,
)
from mist.message import MAX_CREDENTIAL, Limits
from mist.protocols import Protocol
from mist.protocols.client_frames import Binary, Broken, Closed, FrameReader, Pinged, Text
from mist.protocols.frames.commands import NAMES, BinaryFrame, parse_request
from mist.protocols.frames.forms import JSON_FRAMES
from mist.protocols.listing import finished, tag_lists_as_json
from mist.protocols.presence_forms import Told, as_fields, formed
from mist.protocols.rfc6455 import pong_frame, text_frame
from mist.replies import (
    CaughtUp,
    Done,
    Failed,
    PresenceChanged,
    PresenceEnded,
    Present,
    Reply,
    Resumed,
    Revoked,
    Stored,
    Subscriptions,
)
from mist.wire import WireForm

__all__ = ["JSON_FRAMES", "FrameProtocol"]

UNAUTHENTICATED_MESSAGE: Final = MAX_CREDENTIAL + 256
"""Bytes of a message of a peer that has not authenticated."""

_DONE: Final = {
    command: text_frame(b'{"success":true,"command":"%b"}' % name.encode())
    for command, name in NAMES.items()
}
"""The answers that nearly every command gets."""


class FrameProtocol(Protocol):
    """One WebSocket's side of the JSON frames.

    Args:
        limits: of messages and tags.
        unauthenticated: whether the peer has yet to prove who it is; it may send short messages
            only.

    Attributes:
        close_reply: the answer to the peer's close frame, once that came.
    """

    def __init__(self, limits: Limits, *, unauthenticated: bool = False) -> None:
        self.form: WireForm = JSON_FRAMES
        self.close_reply = b""
        self._limits = limits
        self._unauthenticated = unauthenticated
        self._frames = FrameReader(limits.frame)

    def authenticated(self) -> None:
        self._unauthenticated = False

    def receive(self, data: bytes) -> Iterator[Command]:
        for event in self._frames.receive(data):
            match event:
                case Text(data=message):
                    if self._unauthenticated and len(message) > UNAUTHENTICATED_MESSAGE:
                        yield Hangup("first frame too long", 1009)
                        return
                    yield self.command(message)
                case Binary(data=message):
                    yield self.binary(message)
                case Pinged():
                    yield Ping(ref=event)
                case Closed(answer=answer):
                    self.close_reply = answer
                    yield Bye()
                case Broken(code=code, reason=reason):
                    yield Hangup(reason, code)

    def binary(self, message: bytes) -> Command:
        """What a binary message amounts to."""
        return Invalid(BinaryFrame())

    def command(self, message: bytes) -> Command:
        """What a text message amounts to."""
        return parse_request(message, self._limits)

    def reply(self, command: Command, reply: Reply) -> bytes:
        if command.ref is None and isinstance(reply, Done):
            frame = _DONE.get(type(command))
            if frame is not None:
                return frame
        return finished(self.reply_in_steps(command, reply))

    def reply_in_steps(self, command: Command, reply: Reply) -> Generator[None, None, bytes]:
        if isinstance(command.ref, Pinged):
            return pong_frame(command.ref.payload)
        if isinstance(reply, CaughtUp):
            return b""
        answer: dict[str, object] = {"success": not isinstance(reply, Failed)}
        name = command.name if isinstance(command, Invalid) else NAMES.get(type(command))
        if name is not None:
            answer["command"] = name
        match reply:
            case Done():
                pass
            case Subscriptions(tag_lists):
                answer["subscriptions"] = yield from tag_lists_as_json(tag_lists)
            case Resumed():
                answer["epoch"] = reply.epoch
                answer["id"] = reply.id
                answer["recovered"] = reply.recovered
            case Stored(id_):
                answer["id"] = id_
            case Present():
                answer |= as_fields(reply)
            case Failed(error):
                answer["error"] = _error_text(error)
                if isinstance(error, TooManyRequests):
                    answer["retry_after"] = round(error.retry_after, 3)
            case _:
                raise AssertionError(f"no frame for {reply!r}")
        if isinstance(command.ref, dict):
            answer |= command.ref
        return text_frame(msgspec.json.encode(answer))

    def notice(self, notice: Reply) -> bytes:
        answer: dict[str, object]
        match notice:
            case Revoked(tags):
                answer = {"success": False, "command": "revoked", "tags": sorted(tags)}
            case Resumed(epoch=epoch, first=first):
                answer = {"success": False, "command": "gap", "epoch": epoch, "id": first}
            case Present() | PresenceChanged():
                return formed(notice, "frames", _presence_frame)
            case PresenceEnded(tags):
                answer = {"success": False, "command": "unpresence", "tags": sorted(tags)}
                answer["error"] = NotGranted.message
            case _:
                return b""
        return text_frame(msgspec.json.encode(answer))


def _presence_frame(told: Told) -> bytes:
    return text_frame(msgspec.json.encode({"command": "presence"} | as_fields(told)))


def _error_text(error: MistError) -> str:
    match error:
        case UnknownCommand():
            return "unknown command"
        case NotAllowed():
            return "publishing is not allowed over websockets"
        case HistoryUnavailable():  # its text is for the operator
            return HistoryUnavailable.message
        case _:
            return str(error)
