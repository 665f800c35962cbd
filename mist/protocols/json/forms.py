"""How deliveries look as JSON objects: a line each over TCP, a text frame each over WebSocket."""

from collections.abc import Sequence
from io import BytesIO
from itertools import repeat
from typing import Final

import msgspec

from mist.message import Envelope
from mist.protocols.listing import columns_as_json, tags_as_json
from mist.protocols.rfc6455 import count_frames, text_frame
from mist.wire import Entry, TagList, WireForm

__all__ = ["JSON_OBJECTS", "JSON_OBJECT_FRAMES", "JsonObjectFrames", "JsonObjects"]

_DATA: Final = b',"data":'
_END: Final = b"}\n"
# The same of messages that are written all at once, around their tags and their data.
_BEGINNING: Final = b'{"command":"publish","tags":["'
_BETWEEN: Final = b'"],"data":"'
_ENDING: Final = b'"}\n'


class JsonObjects(WireForm):
    """`{"command":"publish","tags":["a","b"],"data":"…"}` and LF; without data no such key.

    Bytes that are not UTF-8 become U+FFFD, as in `mist.message.Message.text`.
    """

    name = "json-objects"
    has_columns = True

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        beginnings: list[bytes] = []
        texts: list[str] = []
        for tag_list, wire, count in entries:
            beginning = tag_list.derive(JsonObjects, _make_beginning)
            beginnings.extend(repeat(beginning, count))
            texts += _texts(tag_list, wire, count)
        return [
            beginning + (_DATA + data + _END if data != b'""' else _END)
            for beginning, data in zip(beginnings, _encode(texts), strict=True)
        ]

    def join(
        self,
        entries: Sequence[Entry],
        *,
        framable: bool,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, int]:
        if len(entries) == 1:
            tag_list, wire, count = entries[0]
            texts = _texts(tag_list, wire, count)
            if "" not in texts:
                # JSON writes LF as an escape, so what parts these lines stands in no data.
                beginning = tag_list.derive(JsonObjects, _make_beginning) + _DATA
                between = _END + beginning
                return beginning + _encode_lines(texts)[:-1].replace(b"\n", between) + _END, count
        return super().join(entries, framable=framable)

    def join_columns(self, tag_lists: Sequence[bytes], datas: Sequence[bytes]) -> bytes | None:
        columns = columns_as_json(tag_lists, datas)
        if columns is None or not all(datas):
            return None
        objects = map(_BETWEEN.join, zip(*columns, strict=True))
        return b"%b%b%b" % (_BEGINNING, (_ENDING + _BEGINNING).join(objects), _ENDING)


def _make_beginning(tag_list: TagList) -> bytes:
    return b'{"command":"publish","tags":%b' % tags_as_json(tag_list)


def _texts(tag_list: TagList, wire: bytes, count: int) -> list[str]:
    messages = tag_list.split(wire, count)
    try:
        return [data.decode() for data in messages]
    except UnicodeDecodeError:
        return [data.decode("utf-8", "replace") for data in messages]


def _encode(texts: list[str]) -> list[bytes]:
    """Each as JSON; one call for all."""
    return _encode_lines(texts).split(b"\n")[:-1]


class JsonObjectFrames(WireForm):
    """What `JsonObjects` writes, each in a text frame of its own."""

    name = "json-object-frames"
    has_columns = True

    def count_whole(self, wire: bytes, end: int) -> int:
        return count_frames(wire, end)

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        return list(map(text_frame, JSON_OBJECTS.pieces(entries)))

    def join_columns(self, tag_lists: Sequence[bytes], datas: Sequence[bytes]) -> bytes | None:
        objects = JSON_OBJECTS.join_columns(tag_lists, datas)
        return None if objects is None else b"".join(map(text_frame, BytesIO(objects)))


_encode_lines: Final = msgspec.json.Encoder().encode_lines
JSON_OBJECTS: Final = JsonObjects()
JSON_OBJECT_FRAMES: Final = JsonObjectFrames()
