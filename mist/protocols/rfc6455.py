"""WebSocket frames as a server sends them (RFC 6455, section 5.2).

Built here because a delivery's bytes are shared by all who get it; see also `client_frames`.
"""

import struct
from typing import Final

__all__ = [
    "CLOSE",
    "PING",
    "PONG",
    "TEXT",
    "TEXT_HEADERS",
    "binary_frame",
    "close_answer",
    "close_frame",
    "count_frames",
    "ping_frame",
    "pong_frame",
    "text_frame",
]

# First bytes of frames: FIN and the opcode (5.2).
TEXT: Final = 0x81
_BINARY: Final = 0x82
CLOSE: Final = 0x88
PING: Final = 0x89
PONG: Final = 0x8A
_USUAL: Final = 4_096  # bytes, up to which sizes come again and again
_MAX_REASON: Final = 123  # bytes of a close frame's reason (5.5: 125 less the code)


def _header(first: int, size: int) -> bytes:
    """The header of an unmasked frame, as a server sends it (RFC 6455, section 5.2)."""
    if size < 126:
        return bytes((first, size))
    if size < 65_536:
        return struct.pack("!BBH", first, 126, size)
    return struct.pack("!BBQ", first, 127, size)


class _TextHeaders(dict[int, bytes]):
    """Headers by size; making one costs four times as much as looking it up."""

    def __missing__(self, size: int) -> bytes:
        header = _header(TEXT, size)
        if size < _USUAL:
            self[size] = header
        return header


TEXT_HEADERS: Final = _TextHeaders()
"""What stands before so many bytes of UTF-8 that are a text message in one frame."""


def text_frame(payload: bytes) -> bytes:
    """A text message in one frame; `payload` is UTF-8."""
    return TEXT_HEADERS[len(payload)] + payload


def binary_frame(payload: bytes) -> bytes:
    """A binary message in one frame."""
    return _header(_BINARY, len(payload)) + payload


def count_frames(wire: bytes, end: int) -> int:
    """How many of the unmasked frames in `wire` end within its first `end` bytes. O(frames)."""
    found = at = 0
    while at + 2 <= end:
        size = wire[at + 1]
        at += 2
        if size > 125:
            width = 2 if size == 126 else 8
            size = int.from_bytes(wire[at : at + width])
            at += width
        at += size
        found += at <= end
    return found


def ping_frame(payload: bytes = b"") -> bytes:
    """A ping."""
    return _header(PING, len(payload)) + payload


def pong_frame(payload: bytes) -> bytes:
    """The answer to a ping."""
    return _header(PONG, len(payload)) + payload


def close_answer(payload: bytes) -> bytes:
    """The answer to a close frame: one that says the same (5.5.1)."""
    return _header(CLOSE, len(payload)) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """A close frame; a reason over 123 bytes is cut."""
    text = reason.encode()[:_MAX_REASON].decode("utf-8", "ignore").encode()
    return _header(CLOSE, 2 + len(text)) + struct.pack("!H", code) + text
