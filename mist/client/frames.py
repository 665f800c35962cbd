"""The JSON frames, from the client's side. Each request carries a `ref`, its reply the same.

A `ref` is the request's number on this connection, so replies need no order. What carries no
`ref` is a delivery, a `revoked` notice, or a complaint about a frame that was no request.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from mist.client.dialect import Answer, Dialect, Ended, Event, Request
from mist.commands import (
    Auth,
    Command,
    Done,
    Failed,
    ListSubscriptions,
    Ping,
    Reply,
    Subscribe,
    Subscriptions,
    Unsubscribe,
)
from mist.errors import ProtocolViolation, RemoteError
from mist.message import Message, format_tags

__all__ = ["SUPPORTED", "FrameDialect"]


class FrameDialect(Dialect):
    """One WebSocket's requests and replies. `receive` takes one whole message."""

    def __init__(self) -> None:
        self._last_ref = 0
        self._expected: dict[int, Request] = {}

    def write(self, items: Iterable[bytes | Request]) -> list[bytes]:
        return [self._write(item) for item in items if isinstance(item, Request)]

    def _write(self, request: Request) -> bytes:
        self._last_ref += 1
        self._expected[self._last_ref] = request
        frame = SUPPORTED[type(request.command)](request.command)
        return msgspec.json.encode({**frame, "ref": self._last_ref})

    def receive(self, data: bytes) -> list[Event]:
        try:
            frame = msgspec.json.decode(data)
            if "keys" in frame:
                return [_message(frame)]
            if frame.get("command") == "revoked":
                return [Ended(frozenset(frame["tags"]))]
            request = self._expected.pop(frame.get("ref"), None)
            if request is None:
                return []
            return [Answer(request, _reply(request.command, frame))]
        except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
            raise ProtocolViolation("the server sent something that is no frame") from error
        except (AttributeError, KeyError, TypeError) as error:
            raise ProtocolViolation("the server sent a frame of an unknown kind") from error

    def close(self) -> tuple[list[Event], list[Request]]:
        unanswered = list(self._expected.values())
        self._expected.clear()
        return [], unanswered


def _message(frame: dict[str, Any]) -> Message:
    encoded = frame.get("data64")
    raw = frame["data"].encode() if encoded is None else base64.b64decode(encoded, validate=True)
    return Message(frozenset(frame["keys"]), raw, frame.get("id"))


def _reply(command: Command, frame: dict[str, Any]) -> Reply:
    if not frame["success"]:
        return Failed(RemoteError(str(frame.get("error", "refused"))))
    if isinstance(command, ListSubscriptions):
        return Subscriptions([format_tags(tags).encode() for tags in frame["subscriptions"]])
    return Done()


_Frame = dict[str, object]

SUPPORTED: Final[dict[type[Command], Callable[..., _Frame]]] = {
    Auth: lambda it: {"command": "auth", "token": it.credential},
    Subscribe: lambda it: {"command": "subscribe", "tags": sorted(it.tags)},
    Unsubscribe: lambda it: {"command": "unsubscribe", "tags": sorted(it.tags)},
    ListSubscriptions: lambda it: {"command": "list"},
    Ping: lambda it: {"command": "ping"},
}
