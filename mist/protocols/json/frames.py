"""The JSON dialect in WebSocket messages: subprotocol `mist.json`. See `json_protocol`."""

from collections.abc import Generator, Iterator

from mist.commands import Bye, Command, Hangup, Pause, Ping, Publish
from mist.message import Limits
from mist.protocols.client_frames import Binary, Broken, Closed, FrameReader, Pinged, Text
from mist.protocols.json import UNAUTHENTICATED_OBJECT, JsonDialect, Said
from mist.protocols.json.forms import JSON_OBJECT_FRAMES
from mist.protocols.json.objects import InvalidJson, ObjectReader
from mist.protocols.json.requests import read_many
from mist.protocols.rfc6455 import pong_frame, text_frame
from mist.replies import Reply
from mist.wire import WireForm

__all__ = ["JsonFrameProtocol"]


class JsonFrameProtocol(JsonDialect):
    """One WebSocket's side of the JSON dialect. Commands on tokens are none here.

    Attributes:
        close_reply: the answer to the peer's close frame, once that came.
    """

    def __init__(self, limits: Limits, *, unauthenticated: bool = False) -> None:
        super().__init__(limits, unauthenticated=unauthenticated)
        self.form: WireForm = JSON_OBJECT_FRAMES
        self.close_reply = b""
        self._frames = FrameReader(limits.frame)

    def _requests(self, data: bytes) -> Iterator[Said]:
        for event in self._frames.receive(data):
            match event:
                case Text(data=message) | Binary(data=message):
                    if self._unauthenticated and len(message) > UNAUTHENTICATED_OBJECT:
                        yield Hangup("first frame too long", 1009)
                        return
                    yield from self._read_message(message)
                case Pinged():
                    yield Ping(ref=event)
                case Closed(answer=answer):
                    self.close_reply = answer
                    yield Bye()
                case Broken(code=code, reason=reason):
                    yield Hangup(reason, code)

    def _read_message(self, message: bytes) -> Iterator[Said]:
        """The objects in a message: all of them, or none where one isn't whole."""
        if len(message) <= self._limits.data and (many := read_many(message)) is not None:
            yield from many
            return
        found: list[Said] = []
        reader = ObjectReader(len(message))
        reader.feed(message)
        while (request := self._read(reader)) is not None or reader.busy:
            if request is None:
                yield Pause()
            else:
                found.append(request)
        if not reader.idle:
            raise InvalidJson
        yield from found

    def reply(self, command: Command, reply: Reply) -> bytes:
        if isinstance(command.ref, Pinged):
            return pong_frame(command.ref.payload)
        answer = super().reply(command, reply)
        if isinstance(command, Publish):  # one for each message
            return b"".join(map(text_frame, answer.splitlines(keepends=True)))
        return _framed(answer)

    def reply_in_steps(self, command: Command, reply: Reply) -> Generator[None, None, bytes]:
        return _framed((yield from super().reply_in_steps(command, reply)))

    def notice(self, notice: Reply) -> bytes:
        return _framed(super().notice(notice))


def _framed(answer: bytes) -> bytes:
    return text_frame(answer) if answer else b""
