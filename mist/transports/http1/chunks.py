"""The chunked transfer coding, read strictly (RFC 9112, section 7.1). No I/O.

Chunk extensions and trailers mean nothing here: they are checked for their form, bounded and
dropped.
"""

import re
from enum import Enum, auto
from typing import Final

__all__ = ["ChunkedBody", "InvalidChunk"]

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_PLAIN: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")
_MAX_LINE: Final = 1_024  # bytes of a chunk's size and extensions


class InvalidChunk(Exception):
    """A chunk, or a trailer, is malformed or too long."""


class _Part(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILERS = auto()


class ChunkedBody:
    """One body in chunks.

    Args:
        max_trailers: bytes.

    Attributes:
        complete: whether it was read to its end.
    """

    __slots__ = ("_left", "_part", "_trailers_left", "complete")

    def __init__(self, max_trailers: int) -> None:
        self._part = _Part.SIZE
        self._left = 0  # bytes of the chunk
        self._trailers_left = max_trailers
        self.complete = False

    def read(self, buffer: bytes, at: int) -> tuple[bytes, int]:
        """Read on.

        Args:
            buffer: what has arrived.
            at: where in it reading goes on.

        Returns:
            The data of the chunks, joined, and where reading goes on: nothing of the body that
            can be read stands behind. What is left of `buffer` must come again, with more.

        Raises:
            InvalidChunk: it can't be read any further.
        """
        pieces: list[bytes] = []
        while not self.complete:
            if self._part is _Part.SIZE:
                at = _take_plain(buffer, at, pieces)
            match self._part:
                case _Part.DATA:
                    piece = buffer[at : at + self._left]
                    at += len(piece)
                    self._left -= len(piece)
                    pieces.append(piece)
                    if self._left:
                        break
                    self._part = _Part.DATA_END
                case _Part.DATA_END:
                    if len(buffer) - at < 2:
                        break
                    if not buffer.startswith(b"\r\n", at):
                        raise InvalidChunk
                    at += 2
                    self._part = _Part.SIZE
                case _Part.SIZE:
                    line = _line(buffer, at, _MAX_LINE)
                    if line is None:
                        break
                    at += len(line) + 2
                    self._begin(line)
                case _Part.TRAILERS:
                    line = _line(buffer, at, self._trailers_left)
                    if line is None:
                        break
                    at += len(line) + 2
                    self._trailers_left -= len(line) + 2
                    if line and not _TRAILER.fullmatch(line):
                        raise InvalidChunk
                    self.complete = not line
        return b"".join(pieces), at

    def _begin(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None:
            raise InvalidChunk
        self._left = int(size[1], 16)
        self._part = _Part.DATA if self._left else _Part.TRAILERS


def _take_plain(buffer: bytes, at: int, pieces: list[bytes]) -> int:
    """Take chunks that are all there and have no extensions: nearly all of them are such.

    A peer may send thousands of a byte each, which must not cost others their turn.
    """
    while (size := _PLAIN.match(buffer, at)) is not None:
        begin = size.end()
        end = begin + int(size[1], 16)
        if begin == end or not buffer.startswith(b"\r\n", end):
            break
        pieces.append(buffer[begin:end])
        at = end + 2
    return at


def _line(buffer: bytes, at: int, most: int) -> bytes | None:
    """The line that begins there, without its CRLF; None where it has not all arrived."""
    end = buffer.find(b"\r\n", at, at + most + 2)
    if end >= 0:
        return buffer[at:end]
    if len(buffer) - at >= most + 2:
        raise InvalidChunk
    return None
