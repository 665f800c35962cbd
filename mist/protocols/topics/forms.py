r"""How deliveries and notifications look to guble's clients: WebSocket messages of a few lines.

    /foo/bar,42,user01,phone1,id123,1420110000\n{"Key":"value"}\nbody

That is: path, sequence id, who published it, with which application, as which message, when
(Unix seconds); a line of headers, often empty; the body. What was published at another endpoint has
none of what only guble knows, so these fields are empty. Where there is no history, ids are 0.

Frames are text where all of a message is UTF-8, else binary.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Final

import msgspec

from mist.addresses import is_topic
from mist.message import Envelope
from mist.protocols.rfc6455 import binary_frame, count_frames, text_frame
from mist.wire import Entry, TagList, WireForm, ids_of

__all__ = [
    "APPLICATION",
    "HEADERS",
    "MESSAGE_ID",
    "USER",
    "TopicForm",
    "json_line",
    "notification",
    "rfc3339",
]

USER: Final = "guble.user"
"""The names under which an envelope holds what guble tells of a message's publisher."""
APPLICATION: Final = "guble.application"
MESSAGE_ID: Final = "guble.id"
HEADERS: Final = "guble.headers"
"""Where it holds the headers: a JSON object as text."""

_TOPIC: Final = "topic"  # where a tag list keeps what is made of it here
_SEPARATORS: Final = b",\r\n"
_NONE: Final[Mapping[str, bytes]] = {}


class TopicForm(WireForm):
    """See the module. A message that has no topic is left out.

    One that has several is delivered with the first of them in byte order: a form is shared by
    all who get the message, and which of them asked for which topic is not its to know.

    Args:
        clock: Unix seconds; for what is live, which mostly has no time yet.
    """

    name = "topics"
    numbered = True
    shows_envelope = True

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def count_whole(self, wire: bytes, end: int) -> int:
        return count_frames(wire, end)

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        meta = _NONE if envelope is None else envelope.meta or _NONE
        time = None if envelope is None else envelope.time
        # What stands behind the id is the same in all of them.
        rest = b"%b,%b,%b,%d\n%b\n" % (
            _field(meta, USER),
            _field(meta, APPLICATION),
            _field(meta, MESSAGE_ID),
            self._clock() if time is None else time,
            meta.get(HEADERS, b"").replace(b"\n", b" "),  # white space: in JSON it is no more
        )
        ids = iter(repeat(0) if firsts is None else ids_of(entries, firsts))
        found: list[bytes] = []
        for tag_list, wire, count in entries:
            path = _path(tag_list)
            for data, id_ in zip(tag_list.split(wire, count), ids, strict=False):
                if path:
                    found.append(_frame(b"%b,%d,%b%b" % (path, id_, rest, data)))
        return found


def notification(text: str, data: bytes = b"") -> bytes:
    """A notification in one frame: `#name arguments`, and a line of JSON where there is any."""
    line = text.encode()
    return text_frame(b"%b\n%b" % (line, data) if data else line)


def json_line(fields: Mapping[str, object], *, spaced: bool = False) -> bytes:
    """A JSON object on one line; `spaced` as guble writes some, with blanks behind `:` and `,`."""
    comma, colon = (b", ", b": ") if spaced else (b",", b":")
    encode = msgspec.json.encode
    pairs = [encode(name) + colon + encode(value) for name, value in fields.items()]
    return b"{%b}" % comma.join(pairs)


def rfc3339(time: float) -> str:
    """Unix seconds as RFC 3339 writes them, in whole seconds and UTC."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _frame(message: bytes) -> bytes:
    if message.isascii():
        return text_frame(message)
    try:
        message.decode()
    except UnicodeDecodeError:
        return binary_frame(message)
    return text_frame(message)


def _field(meta: Mapping[str, bytes], name: str) -> bytes:
    """A field of the first line, which nothing in it can end: services may write anything."""
    return meta.get(name, b"").translate(None, _SEPARATORS)


def _path(tag_list: TagList) -> bytes:
    return tag_list.derive(_TOPIC, _find_path)


def _find_path(tag_list: TagList) -> bytes:
    return min(filter(is_topic, tag_list.tags), default="").encode()
