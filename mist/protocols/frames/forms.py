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

from mist.message import Envelope
from mist.protocols.listing import columns_as_json, tags_as_json
from mist.protocols.rfc6455 import TEXT_HEADERS, count_frames, text_frame
from mist.wire import Entry, TagList, WireForm, ids_of

__all__ = ["JSON_FRAMES", "JsonFrames"]

_AROUND: Final = len(b'{"keys":[""],"data":""}')


class JsonFrames(WireForm):
    """`{"keys":["a","b"],"data":"…"}` in a text frame; `data64` where data is not UTF-8.

    With ids, `"id":N` stands last.
    """

    name = "json-frames"
    numbered = True
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
        starts: list[bytes] = []
        messages: list[bytes] = []
        for tag_list, wire, count in entries:
            starts += [tag_list.derive(self, _make_start)] * count
            messages += tag_list.split(wire, count)
        ids = None if firsts is None else ids_of(entries, firsts)
        try:
            texts = [data.decode() for data in messages]
        except UnicodeDecodeError:
            return list(map(_any_frame, starts, messages, ids or repeat(None)))
        # One call for all. JSON writes LF as an escape, so lines are told apart surely.
        encoded = _encode_lines(texts)
        if ids is not None:
            encoded = encoded.replace(b"%", b"%%").replace(b"\n", b',"id":%d\n') % tuple(ids)
        lines = encoded.split(b"\n")[:-1]
        return [
            TEXT_HEADERS[len(start) + len(line) + 1] + start + line + b"}"
            for start, line in zip(starts, lines, strict=True)
        ]

    def join_columns(self, tag_lists: Sequence[bytes], datas: Sequence[bytes]) -> bytes | None:
        columns = columns_as_json(tag_lists, datas)
        if columns is None:
            return None
        pairs = list(zip(*columns, strict=True))
        sizes = [_AROUND + len(keys) + len(data) for keys, data in pairs]
        return b"".join(
            [
                b'%b{"keys":["%b"],"data":"%b"}' % (TEXT_HEADERS[size], *pair)
                for size, pair in zip(sizes, pairs, strict=True)
            ]
        )


def _make_start(tag_list: TagList) -> bytes:
    """What stands in a frame before the data."""
    return b'{"keys":%b,"data":' % tags_as_json(tag_list)


def _any_frame(start: bytes, data: bytes, id_: int | None) -> bytes:
    ending = b"" if id_ is None else b',"id":%d' % id_
    try:
        return text_frame(b"%b%b%b}" % (start, msgspec.json.encode(data.decode()), ending))
    except UnicodeDecodeError:
        name = start.removesuffix(b'":')
        return text_frame(b'%b64":"%b"%b}' % (name, base64.b64encode(data), ending))


_encode_lines: Final = msgspec.json.Encoder().encode_lines
JSON_FRAMES: Final = JsonFrames()
