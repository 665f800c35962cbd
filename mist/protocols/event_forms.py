"""How deliveries look as Server-Sent Events (HTML Living Standard, section 9.2).

    id: EPOCH:17
    data: {"keys":["a","b"],"data":"…","id":17}

and a blank line. An event's bytes are shared by all event streams, as frames are by all
WebSockets.

A line ends at CR, LF or both, and at nothing else; JSON writes those two as escapes, so no data
can end a line or begin a field. Many readers in the wild split lines as Unicode does, though, at
U+0085, U+2028 and U+2029 too, which JSON lets pass as they are: these are escaped as well.
"""

import base64
import re
from collections.abc import Sequence
from itertools import repeat
from typing import Final

import msgspec

from mist.message import Envelope
from mist.protocols.listing import columns_as_json, tags_as_json
from mist.protocols.presence_forms import Told, as_fields, formed
from mist.replies import PresenceChanged, Present, Reply, Resumed, Revoked
from mist.wire import Entry, TagList, WireForm, ids_of

__all__ = ["COMMENT", "EventForm", "end_event", "json_messages", "notice_event", "ready_event"]

COMMENT: Final = b":\n\n"
"""What a reader skips: it keeps proxies from taking a quiet stream for a dead one."""

_PLACE: Final = re.compile(r"[!-9;-~]{1,255}")  # an epoch, as `mist.protocols.positions` reads it
_encode: Final = msgspec.json.encode
_encode_lines: Final = msgspec.json.Encoder().encode_lines


class EventForm(WireForm):
    """Messages as events; `data64` in the place of `data` where that is not UTF-8.

    Args:
        epoch: of the history, whose ids the events carry; None where there is none.

    Attributes:
        is_chunked: whether they stand in chunks of an HTTP/1.1 body.
        ending: what ends a stream of them.

    Raises:
        ValueError: the epoch can't stand in an event.
    """

    name = "events"
    numbered = True
    has_columns = True
    is_chunked = False
    ending = b""

    def __init__(self, epoch: str | None) -> None:
        if epoch is not None and not _PLACE.fullmatch(epoch):
            raise ValueError("an epoch is 1 to 255 printable characters, no colon among them")
        self._head = b"" if epoch is None else b"id: %b:" % epoch.encode()

    def frame(self, event: bytes) -> bytes:
        """An event that is no message, or a comment, as it stands in a stream of this form."""
        return event

    def count_whole(self, wire: bytes, end: int) -> int:
        return wire.count(b"\n\n", 0, end)

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        messages = json_messages(entries, firsts)
        if firsts is None:
            return self._events(messages)
        return self._events_with_ids(ids_of(entries, firsts), messages)

    def join_columns(self, tag_lists: Sequence[bytes], datas: Sequence[bytes]) -> bytes | None:
        columns = columns_as_json(tag_lists, datas)
        if columns is None:
            return None
        messages = [b'{"keys":["%b"],"data":"%b"}' % pair for pair in zip(*columns, strict=True)]
        if not all(map(bytes.isascii, messages)):
            messages = list(map(_one_line, messages))
        return b"".join(self._events(messages))

    def _events(self, messages: Sequence[bytes]) -> list[bytes]:
        return [b"data: %b\n\n" % message for message in messages]

    def _events_with_ids(self, ids: Sequence[int], messages: Sequence[bytes]) -> list[bytes]:
        head = self._head
        return [
            b"%b%d\ndata: %b\n\n" % (head, id_, message)
            for id_, message in zip(ids, messages, strict=True)
        ]


def json_messages(entries: Sequence[Entry], firsts: Sequence[int] | None) -> list[bytes]:
    """Each message as a JSON object on one line: `{"keys":["a","b"],"data":"…","id":17}`.

    Args:
        entries, firsts: as for `WireForm.pieces`.
    """
    beginnings: list[bytes] = []
    messages: list[bytes] = []
    for tag_list, wire, count in entries:
        beginnings += [tag_list.derive(EventForm, _make_beginning)] * count
        messages += tag_list.split(wire, count)
    ids = None if firsts is None else ids_of(entries, firsts)
    try:
        texts = [data.decode() for data in messages]
    except UnicodeDecodeError:
        return list(map(_any_message, beginnings, messages, ids or repeat(None)))
    # One call for all. JSON writes LF as an escape, so lines are told apart surely.
    lines = _one_line(_encode_lines(texts)).split(b"\n")[:-1]
    if ids is None:
        return [
            b'%b":%b}' % (beginning, line)
            for beginning, line in zip(beginnings, lines, strict=True)
        ]
    return [
        b'%b":%b,"id":%d}' % (beginning, line, id_)
        for beginning, line, id_ in zip(beginnings, lines, ids, strict=True)
    ]


def _make_beginning(tag_list: TagList) -> bytes:
    return b'{"keys":%b,"data' % _one_line(tags_as_json(tag_list))


def _any_message(beginning: bytes, data: bytes, id_: int | None) -> bytes:
    ending = b"}" if id_ is None else b',"id":%d}' % id_
    try:
        return b'%b":%b%b' % (beginning, _one_line(_encode(data.decode())), ending)
    except UnicodeDecodeError:
        return b'%b64":"%b"%b' % (beginning, base64.b64encode(data), ending)


def _one_line(encoded: bytes) -> bytes:
    """JSON in which no reader sees a line end; these characters stand in strings only."""
    if encoded.isascii():
        return encoded
    return (
        encoded.replace(b"\xc2\x85", b"\\u0085")
        .replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
    )


def ready_event(resumed: Resumed | None, *, is_place: bool = False) -> bytes:
    """What a stream begins with.

    Args:
        resumed: where it is; None without a history.
        is_place: whether nothing up to there is still to come. A browser then takes it for
            where it was, should the stream break before the first message.
    """
    if resumed is None:
        return _event("ready", {"epoch": None, "id": None, "recovered": None})
    fields = {"epoch": resumed.epoch, "id": resumed.id, "recovered": resumed.recovered}
    place = b"id: %b:%d\n" % (resumed.epoch.encode(), resumed.id) if is_place else b""
    return place + _event("ready", fields)


def notice_event(notice: Reply) -> bytes:
    """What a stream says between messages: `revoked`, `gap`, `presence`."""
    match notice:
        case Revoked(tags):
            return _event("revoked", {"tags": sorted(tags)})
        case Resumed(epoch=epoch, first=first):
            return _event("gap", {"epoch": epoch, "id": first})
        case Present() | PresenceChanged():
            return formed(notice, "events", _presence_event)
        case _:
            return b""


def _presence_event(told: Told) -> bytes:
    return _event("presence", as_fields(told))


def end_event(code: int, reason: str) -> bytes:
    """The last word of a stream that the server ends; codes as a WebSocket's."""
    return _event("end", {"code": code, "reason": reason})


def _event(name: str, fields: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _one_line(_encode(fields)))
