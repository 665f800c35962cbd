"""How deliveries look as mist's own WebSocket frames.

Whole server frames, header included, because the bytes of a delivery are shared by all
WebSocket sessions and go straight into their outboxes. That is sound while no extension is
negotiated: without one, a server frame depends on nothing but its payload (RFC 6455, section
5.2).
"""

import base64
from collections.abc import Sequence
from itertools import repeat
from typing import Final

import msgspec

from mist.message import Envelope, TagSet
from mist.protocols.rfc6455 import count_frames, text_frame, text_frame_header
from mist.wire import Entry, WireForm, ids_of

__all__ = ["JSON_FRAMES", "JsonFrames"]


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
    """`{"keys":["a","b"],"data":"…"}` in a text frame; `data64` where data is not UTF-8.

    With ids, `"id":N` stands last.
    """

    name = "json-frames"
    numbered = True

    def count_whole(self, wire: bytes, end: int) -> int:
        return count_frames(wire, end)

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        beginnings: list[_Beginning] = []
        messages: list[bytes] = []
        for tag_list, wire, count in entries:
            beginning = tag_list.derived.get(self)
            if beginning is None:
                beginning = tag_list.derived[self] = _Beginning(tag_list.tags)
            beginnings += [beginning] * count
            messages += tag_list.split(wire, count)
        ids = None if firsts is None else ids_of(entries, firsts)
        try:
            texts = [data.decode() for data in messages]
        except UnicodeDecodeError:
            return list(map(_any_frame, beginnings, messages, ids or repeat(None)))
        # One call for all. JSON writes LF as an escape, so lines are told apart surely.
        encoded = _encode_lines(texts)
        if ids is not None:
            encoded = encoded.replace(b"%", b"%%").replace(b"\n", b',"id":%d\n') % tuple(ids)
        lines = encoded.split(b"\n")[:-1]
        return [
            beginning[len(line)] + line + b"}"
            for beginning, line in zip(beginnings, lines, strict=True)
        ]


def _any_frame(beginning: _Beginning, data: bytes, id_: int | None) -> bytes:
    ending = b"" if id_ is None else b',"id":%d' % id_
    try:
        line = msgspec.json.encode(data.decode()) + ending
    except UnicodeDecodeError:
        data64 = base64.b64encode(data)
        return text_frame(b'%b64":"%b"%b}' % (beginning.keys_only, data64, ending))
    return beginning[len(line)] + line + b"}"


_encode_lines: Final = msgspec.json.Encoder().encode_lines
JSON_FRAMES: Final = JsonFrames()
