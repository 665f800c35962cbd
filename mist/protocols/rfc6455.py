"""WebSocket framing (RFC 6455), as much as mist does itself.

Server frames are built here because a delivery's bytes are shared by all who get it. Client
frames are parsed by wsproto; what is here only watches them go by and says when a message
has become too large, before it is buffered and in bytes, which wsproto's own reader can't: it
hands out a message as it grows, and a message of empty fragments grows without a size.
"""

import struct
from typing import Final

__all__ = ["FrameMeter", "close_frame", "ping_frame", "text_frame", "text_frame_header"]

_TEXT: Final = 0x81  # FIN and opcode 1
_CLOSE: Final = 0x88
_PING: Final = 0x89
_FIN: Final = 0x80
_CONTROL: Final = 0x08  # set in the opcode of close, ping and pong
_MASK: Final = 0x80
_MAX_REASON: Final = 123  # bytes of a close frame's reason (5.5: 125 less the code)


def _header(first: int, size: int) -> bytes:
    """The header of an unmasked frame, as a server sends it (RFC 6455, section 5.2)."""
    if size < 126:
        return bytes((first, size))
    if size < 65_536:
        return struct.pack("!BBH", first, 126, size)
    return struct.pack("!BBQ", first, 127, size)


def text_frame_header(size: int) -> bytes:
    """What stands before `size` bytes of UTF-8 that are a text message in one frame."""
    return _header(_TEXT, size)


def text_frame(payload: bytes) -> bytes:
    """A text message in one frame; `payload` is UTF-8."""
    return text_frame_header(len(payload)) + payload


def ping_frame(payload: bytes = b"") -> bytes:
    """A ping."""
    return _header(_PING, len(payload)) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """A close frame; a reason over 123 bytes is cut."""
    text = reason.encode()[:_MAX_REASON].decode("utf-8", "ignore").encode()
    return _header(_CLOSE, 2 + len(text)) + struct.pack("!H", code) + text


class FrameMeter:
    """Measures the messages in a client's stream of frames.

    Args:
        limit: bytes of payload in one message.
        fragments: frames that one message may come in.
    """

    __slots__ = ("_fragments", "_header", "_left", "_limit", "_most_fragments", "_size")

    def __init__(self, limit: int, fragments: int = 1024) -> None:
        self._limit = limit
        self._most_fragments = fragments
        self._header = b""  # the beginning of a frame header that came in pieces
        self._left = 0  # payload bytes of the current frame still to come
        self._size = 0  # payload bytes announced for the current message
        self._fragments = 0

    def fits(self, data: bytes) -> bool:
        """Whether every message in the stream, `data` included, is within the limits.

        Looks at headers only; a header announces its payload, so a message is refused before
        it has come. After False, the meter is of no more use.
        """
        position = 0
        if self._header:
            data = self._header + data
            self._header = b""
        size = len(data)
        while position < size:
            if self._left:
                step = min(self._left, size - position)
                self._left -= step
                position += step
                continue
            header = _header_size(data, position)
            if header is None or size - position < header:
                self._header = data[position:]
                return True
            self._left = _payload_size(data, position)
            if not data[position] & _CONTROL:
                self._size += self._left
                self._fragments += 1
                if self._size > self._limit or self._fragments > self._most_fragments:
                    return False
                if data[position] & _FIN:
                    self._size = self._fragments = 0
            position += header
        return True


def _header_size(data: bytes, start: int) -> int | None:
    """Bytes of the frame header at `start`; None where that can't be told yet."""
    if len(data) - start < 2:
        return None
    second = data[start + 1]
    extended = {126: 2, 127: 8}.get(second & 0x7F, 0)
    return 2 + extended + (4 if second & _MASK else 0)


def _payload_size(data: bytes, start: int) -> int:
    short = data[start + 1] & 0x7F
    if short < 126:
        return short
    width = 2 if short == 126 else 8
    return int.from_bytes(data[start + 2 : start + 2 + width], "big")
