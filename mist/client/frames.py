"""JSON frames, client side: requests and replies are correlated by a `ref`.

A `ref` is the request's number on this connection, so replies may come in any order. A frame
without a `ref` is a delivery, a `revoked` notice, or an error about a frame that was no request.

The reply to a subscribe with `since` comes before its first message. A `ping` is written after
the subscribe, with the next `ref`; its reply comes after the last replayed message.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import attrs
import msgspec

from mist.audience import Audience
from mist.client.dialect import (
    Dialect,
    Event,
    HistoryGap,
    PresenceRevoked,
    PresenceTold,
    PublishFailed,
    ReplayStarted,
    Request,
    Response,
    SubscriptionRevoked,
)
from mist.client.errors import remote_error
from mist.client.presence_codec import read_presence_frame
from mist.commands import (
    Auth,
    Command,
    ListSubscriptions,
    Ping,
    PublishOnce,
    Resume,
    Since,
    Subscribe,
    Unsubscribe,
    UnwatchPresence,
    WatchPresence,
)
from mist.errors import DataTooLong, InvalidPosition, ProtocolViolation
from mist.message import Message, TagSet, format_tags
from mist.protocols.positions import MAX_ID, position_from_json
from mist.replies import Done, Failed, Reply, Stored, Subscriptions

__all__ = ["SUPPORTED", "FrameDialect", "PublishFrame"]


_CACHED_TAG_LISTS: Final = 4096
_LONG: Final = 16_384  # bytes of data, from which on the shorter form is taken
_REF_SIZE: Final = len(',"ref":') + 12  # bytes; no connection has requests of more digits


@attrs.define(eq=False)
class _Fence(Request):
    """The ping after a resume; `of` is None if that was refused."""

    of: Request | None = None


class PublishFrame:
    """A published message as a frame without a `ref`; see `mist.client.publisher.PublishForm`.

    Args:
        limit: bytes of a frame.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def head(self, tags: TagSet, to: Audience | None = None) -> bytes:
        """All but the data."""
        fields = {"command": "publish", "tags": sorted(tags)}
        more = {} if to is None else {"to": to.as_json()}
        return msgspec.json.encode({**fields, **more}).removesuffix(b"}") + b","

    def message(self, head: bytes, data: bytes) -> bytes:
        """The frame.

        Raises:
            DataTooLong: it would be longer than allowed.
        """
        frame = head + msgspec.json.encode(_data(data)).removeprefix(b"{")
        if len(frame) > self._limit:
            raise DataTooLong
        return frame

    def check_store(self, message: bytes) -> None:
        """See `mist.client.publisher.PublishForm`."""
        if len(message) + _REF_SIZE > self._limit:
            raise DataTooLong


class FrameDialect(Dialect):
    """Requests and replies of one WebSocket. `receive` takes one whole message."""

    def __init__(self) -> None:
        self.unconfirmed = 0
        self._last_ref = 0
        self._in_flight: dict[int, Request] = {}
        self._tag_sets: dict[tuple[str, ...], TagSet] = {}

    def write(self, items: Iterable[bytes | Request]) -> list[bytes]:
        frames = []
        for item in items:
            if isinstance(item, Request):
                frames.append(self._write(item))
                if isinstance(item.command, Resume):
                    frames.append(self._write(_Fence(Ping(), of=item)))
            else:
                self.unconfirmed += 1
                frames.append(item)
        return frames

    def _write(self, request: Request) -> bytes:
        self._last_ref += 1
        self._in_flight[self._last_ref] = request
        frame = SUPPORTED[type(request.command)](request.command)
        return msgspec.json.encode({**frame, "ref": self._last_ref})

    def receive(self, data: bytes) -> list[Event]:
        try:
            frame = msgspec.json.decode(data)
            if "keys" in frame:
                return [self._message(frame)]
            if frame.get("command") == "revoked":
                return [SubscriptionRevoked(self._tag_set(frame["tags"]))]
            if frame.get("command") == "gap" and "ref" not in frame:
                return [HistoryGap(None)]
            if "ref" not in frame and frame.get("command") == "presence":
                return [PresenceTold(read_presence_frame(frame))]
            if "ref" not in frame and frame.get("command") == "unpresence":
                return [PresenceRevoked(self._tag_set(frame["tags"]))]
            if "ref" not in frame and frame.get("command") == "publish":
                self.unconfirmed = max(0, self.unconfirmed - 1)
                return [] if frame["success"] is True else [PublishFailed(_error(frame))]
            request = self._in_flight.pop(frame.get("ref"), None)
            if request is None:
                return []
            if isinstance(request, _Fence):
                return [] if request.of is None else [Response(request.of, Done())]
            if isinstance(request.command, Resume):
                return self._replay_started(request, frame)
            response = Response(request, _reply(request.command, frame))
            if isinstance(request.command, WatchPresence) and frame["success"] is True:
                return [PresenceTold(read_presence_frame(frame)), response]
            return [response]
        except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
            raise ProtocolViolation("the server sent a malformed frame") from error
        except (AttributeError, KeyError, TypeError, InvalidPosition) as error:
            raise ProtocolViolation("the server sent a frame of an unknown kind") from error

    def _replay_started(self, request: Request, frame: dict[str, Any]) -> list[Event]:
        if frame["success"] is not True or "epoch" not in frame:
            fence = self._in_flight.get(frame["ref"] + 1)
            if isinstance(fence, _Fence):
                fence.of = None
            return [Response(request, _reply(request.command, frame))]
        # The epoch is sent back in a later resume, so it must be a valid one.
        found = position_from_json({"epoch": frame["epoch"], "id": frame["id"]})
        started = ReplayStarted(request, found.epoch or "", found.after or 0)
        return [started] if frame["recovered"] is True else [started, HistoryGap(request)]

    def _message(self, frame: dict[str, Any]) -> Message:
        coded = frame.get("data64")
        raw = frame["data"].encode() if coded is None else base64.b64decode(coded, validate=True)
        id_ = frame.get("id")
        return Message(self._tag_set(frame["keys"]), raw, None if id_ is None else _id(id_))

    def _tag_set(self, listed: Any) -> TagSet:
        if not isinstance(listed, list):
            raise ProtocolViolation("the server sent invalid tags")
        key = tuple(listed)
        tags = self._tag_sets.get(key)
        if tags is None:
            if not all(isinstance(tag, str) for tag in listed):
                raise ProtocolViolation("the server sent invalid tags")
            if len(self._tag_sets) >= _CACHED_TAG_LISTS:
                self._tag_sets.clear()
            tags = self._tag_sets[key] = frozenset(listed)
        return tags

    def close(self) -> tuple[list[Event], list[Request]]:
        requests = self._in_flight.values()
        unanswered = [request for request in requests if not isinstance(request, _Fence)]
        self._in_flight.clear()
        return [], unanswered


def _reply(command: Command, frame: dict[str, Any]) -> Reply:
    if frame["success"] is not True:
        return Failed(remote_error(_error(frame)))
    if isinstance(command, PublishOnce):
        return Stored(_id(frame["id"])) if "id" in frame else Done()
    if isinstance(command, ListSubscriptions):
        return Subscriptions([format_tags(tags).encode() for tags in frame["subscriptions"]])
    return Done()


def _error(frame: dict[str, Any]) -> str:
    return str(frame.get("error", "refused"))


def _id(found: object) -> int:
    if type(found) is not int or not 0 < found <= MAX_ID:
        raise ProtocolViolation("the server sent an invalid id")
    return found


_Frame = dict[str, object]


def _subscribe(command: Resume) -> _Frame:
    listed = [sorted(tags) for tags in command.alternatives]
    # A single tag set in the form that older servers know too.
    selection: _Frame = {"tags": listed[0]} if len(listed) == 1 else {"subscriptions": listed}
    assert command.since is not None
    return {"command": "subscribe", **selection, "since": _position(command.since)}


def _data(data: bytes) -> _Frame:
    with suppress(UnicodeDecodeError):
        text = data.decode()
        # Control characters take six bytes each, which may be more than a frame has.
        if len(data) < _LONG or len(msgspec.json.encode(text)) < len(data) * 4 / 3:
            return {"data": text}
    return {"data64": base64.b64encode(data).decode()}


def _position(since: Since) -> object:
    if since.latest:
        return {"latest": since.latest}
    if since.last is not None:
        return -since.last
    return since.after if since.epoch is None else {"epoch": since.epoch, "id": since.after}


SUPPORTED: Final[dict[type[Command], Callable[..., _Frame]]] = {
    Auth: lambda it: {"command": "auth", "token": it.credential},
    Subscribe: lambda it: {"command": "subscribe", "tags": sorted(it.tags)},
    Resume: _subscribe,
    Unsubscribe: lambda it: {"command": "unsubscribe", "tags": sorted(it.tags)},
    ListSubscriptions: lambda it: {"command": "list"},
    WatchPresence: lambda it: {"command": "presence", "tags": sorted(it.tags)},
    UnwatchPresence: lambda it: {"command": "unpresence", "tags": sorted(it.tags)},
    Ping: lambda it: {"command": "ping"},
    PublishOnce: lambda it: {"command": "publish", "tags": sorted(it.tags), **_data(it.data)},
}
