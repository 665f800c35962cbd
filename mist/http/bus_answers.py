"""Answers of MessageBus polls as bytes: arrays of messages, plain or as chunks.

A message wakes all polls of its channel, and most of them have been told as much before: so a
chunk is built once for all that are told the same.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mist.bus.messages import BusMessage
from mist.transports.http1 import chunk

__all__ = ["NOTHING_YET", "ChunkForm", "encode_answer"]

_SEPARATOR: Final = b"\r\n|\r\n"
_ESCAPED: Final = b"\r\n||\r\n"
_MAX_CHUNKS: Final = 16
_MAX_BYTES: Final = 4 << 20  # of the chunks that are remembered

_Key = tuple[tuple[int, str], ...]


def encode_answer(messages: Sequence[BusMessage], status: Mapping[str, int]) -> bytes:
    """An array of messages, then the status of channels, where there is one; to the byte."""
    pieces = [message.json for message in messages]
    if status:
        pieces.append(
            b'{"global_id":-1,"message_id":-1,"channel":"/__status","data":%b}'
            % msgspec.json.encode(status)
        )
    return b"[%b]" % b",".join(pieces)


def _frame(answer: bytes) -> bytes:
    """An answer in the dialect's framing, and that in HTTP's."""
    return chunk(answer.replace(_SEPARATOR, _ESCAPED) + _SEPARATOR)


NOTHING_YET: Final = _frame(b"[]")
"""The first chunk of a poll that has nothing to tell at once."""


class ChunkForm:
    """The wire form of chunked polls; one for all polls of a server."""

    def __init__(self) -> None:
        self._chunks: dict[_Key, bytes] = {}  # by the messages' ids and channels
        self._size = 0

    def join(self, messages: Sequence[BusMessage], status: Mapping[str, int]) -> bytes:
        """An answer as one chunk. The same object for the same messages, if asked for soon."""
        if status:
            return _frame(encode_answer(messages, status))
        key = tuple([(each.global_id, each.channel) for each in messages])
        found = self._chunks.get(key)
        if found is None:
            found = _frame(encode_answer(messages, {}))
            if len(self._chunks) >= _MAX_CHUNKS or self._size + len(found) > _MAX_BYTES:
                self._chunks.clear()
                self._size = 0
            self._chunks[key] = found
            self._size += len(found)
        return found
