"""Reading what a WebSocket client sends (RFC 6455). No I/O.

Two readers in one. Nearly every frame a client sends is whole and less than 64 KiB: a text message,
a pong, the close frame. It is taken where it stands, which costs a few microseconds where a parser
takes fifty. At any other frame (a fragment, a larger one, an unusual close code, a broken one)
wsproto takes over, until the message that the frame belongs to has ended. So an idle client holds
no parser, and every rule that takes more than a line to state is wsproto's.
"""

from collections.abc import Iterator
from typing import Final

import attrs
from wsproto import events
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.frame_protocol import FrameProtocol

from mist.protocols.rfc6455 import CLOSE, PING, PONG, TEXT, close_answer

__all__ = [
    "Binary",
    "Broken",
    "Closed",
    "Event",
    "FrameMeter",
    "FrameReader",
    "Pinged",
    "Text",
]

_FIN: Final = 0x80
_CONTROL: Final = 0x08  # set in the opcode of close, ping and pong
_MASK: Final = 0x80
_SMALL: Final = 126  # from here on a frame's size has bytes of its own: two, or else eight
_SIMPLE: Final = frozenset({TEXT, CLOSE, PING, PONG})  # first bytes, with FIN
_NORMAL: Final = 1000  # close codes (7.4.1): a purpose fulfilled,
_GOING_AWAY: Final = 1001  # a page that is left,
_APPLICATIONS: Final = range(3000, 5000)  # and what applications agree on (7.4.2)


@attrs.frozen
class Text:
    """A text message: valid UTF-8."""

    data: bytes


@attrs.frozen
class Binary:
    """A binary message."""

    data: bytes


@attrs.frozen
class Pinged:
    """A ping, to be answered by a `pong_frame` with its payload."""

    payload: bytes


@attrs.frozen
class Closed:
    """The peer's close frame. Nothing comes after it.

    Attributes:
        answer: the close frame that it is to be answered with.
    """

    answer: bytes


@attrs.frozen
class Broken:
    """The peer broke a rule of RFC 6455 or a limit. Nothing comes after it.

    Attributes:
        code: the close code that says so.
        reason: short text; none of the peer's.
    """

    code: int
    reason: str


Event = Text | Binary | Pinged | Closed | Broken


class FrameReader:
    """What one client's stream of frames says.

    Args:
        limit: bytes of payload in one message.
    """

    __slots__ = ("_held", "_limit", "_meter", "_parser", "_parts")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = b""  # the beginning of a frame that is taken where it stands
        self._parser: Connection | None = None  # while a message is wsproto's
        self._meter: FrameMeter | None = None  # of what the parser is given
        self._parts: list[bytes] = []  # of the message that the parser is at

    @property
    def held(self) -> int:
        """What is kept between two calls: bytes, and a parser counted as one more."""
        return len(self._held) + (self._parser is not None)

    def receive(self, data: bytes) -> Iterator[Event]:
        """What has come, in order."""
        if self._parser is None:
            if self._held:
                data = self._held + data
                self._held = b""
            start = 0
            while (masked := _whole_frame(data, start)) is not None:
                first = data[start]
                begins, stop = masked
                if first == TEXT and stop - begins - 4 > self._limit:
                    break
                if stop > len(data):
                    self._held = data[start:]
                    return
                if first == PONG:
                    start = _behind_pongs(data, stop)
                    continue
                payload = _unmasked(data, begins, stop)
                if first == TEXT:
                    if not payload.isascii() and not _is_utf8(payload):
                        break  # the parser says what is wrong
                    yield Text(payload)
                elif first == PING:
                    yield Pinged(payload)
                elif first == CLOSE:
                    if not _is_usual_close(payload):
                        break
                    yield Closed(close_answer(payload))
                    return
                start = stop
            data = data[start:]
            if not data:
                return
            self._parser = Connection(ConnectionType.SERVER)
            self._meter = FrameMeter(self._limit)
        yield from self._parse(self._parser, data)

    def _parse(self, parser: Connection, data: bytes) -> Iterator[Event]:
        assert self._meter is not None
        if PONG in data:
            data = self._meter.without_pongs(data)
        size = len(data)
        fitting = self._meter.count_fitting(data)
        parser.receive_data(data[:fitting])
        for event in parser.events():
            match event:
                case events.TextMessage(data=text, message_finished=finished):
                    self._parts.append(text.encode())
                    if finished:
                        yield Text(self._take_parts())
                case events.BytesMessage(data=part, message_finished=finished):
                    self._parts.append(bytes(part))
                    if finished:
                        yield Binary(self._take_parts())
                case events.Ping(payload=payload):
                    yield Pinged(bytes(payload))
                case events.CloseConnection() if parser.state is ConnectionState.REMOTE_CLOSING:
                    yield Closed(parser.send(event.response()))
                    return
                case events.CloseConnection(code=code):
                    yield Broken(int(code), "broken frame")
                    return
        if fitting < size:
            yield Broken(1009, "message too big")
        elif self._meter.between_messages:
            self._forget_parser()

    def _forget_parser(self) -> None:
        if self._parser is not None:
            _take_apart(self._parser)
        self._parser = self._meter = None

    def __del__(self) -> None:
        # A connection may end within a message.
        self._forget_parser()

    def _take_parts(self) -> bytes:
        message = b"".join(self._parts)
        self._parts.clear()
        return message


def _take_apart(parser: Connection) -> None:
    """Have a parser freed with the last reference to it.

    Its protocol holds a generator that holds the protocol, and some kilobytes of what has come. A
    busy server freezes what only the garbage collector would free (see `mist.collector`).
    """
    for each in vars(parser).values():
        if isinstance(each, FrameProtocol):
            vars(each).clear()


def _whole_frame(data: bytes, start: int) -> tuple[int, int] | None:
    """Where the mask begins, and where the payload ends, of what is or may become a whole frame.

    Of a text message below 64 KiB or of a control frame; what is binary, or a fragment, is neither.
    Where its size can't be told yet, it ends behind the data.
    """
    left = len(data) - start
    if not left or data[start] not in _SIMPLE:
        return None
    if left == 1:
        return start + 2, start + 6
    second = data[start + 1]
    if _MASK <= second < _MASK + _SMALL:
        return start + 2, start + 6 + (second & 0x7F)
    if second != _MASK + _SMALL or data[start] != TEXT:
        return None
    if left < 4:
        return start + 4, start + 8
    size = data[start + 2] << 8 | data[start + 3]
    # A size that needs no bytes of its own breaks a rule, of which the parser tells.
    return (start + 4, start + 8 + size) if size >= _SMALL else None


def _behind_pongs(data: bytes, start: int) -> int:
    """Where the first frame begins that is no small whole pong.

    A peer may send ten thousand in one read, and none of them lets others have their turns.
    """
    end = len(data) - 6
    while start <= end and data[start] == PONG and _MASK <= data[start + 1] < _MASK + _SMALL:
        stop = start + 6 + (data[start + 1] & 0x7F)
        if stop > len(data):
            break
        start = stop
    return start


def _unmasked(data: bytes, start: int, stop: int) -> bytes:
    """The payload of a frame whose mask is at `start` and whose payload ends at `stop`."""
    size = stop - start - 4
    mask = data[start : start + 4] * (size // 4 + 1)
    masked = int.from_bytes(data[start + 4 : stop], "big")
    return (masked ^ int.from_bytes(mask[:size], "big")).to_bytes(size, "big")


def _is_usual_close(payload: bytes) -> bool:
    """Whether a close frame's payload is one that needs no further look."""
    if not payload:
        return True
    code = int.from_bytes(payload[:2], "big")
    return (code in (_NORMAL, _GOING_AWAY) or code in _APPLICATIONS) and _is_utf8(payload[2:])


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


class FrameMeter:
    """Measures the messages in a client's stream of frames.

    It says when a message has become too large, before it is buffered and in bytes, which
    wsproto can't: that hands out a message as it grows, and a message of empty fragments
    grows without a size.

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

    @property
    def between_messages(self) -> bool:
        """Whether the stream so far ends where a message or a control frame does."""
        return not (self._header or self._left or self._fragments)

    def without_pongs(self, data: bytes) -> bytes:
        """What has come, without the pongs that are there whole; for meter and parser.

        They may stand between the fragments of a message and say nothing, so that nobody else has
        a turn until the last of them is parsed: ten thousand, 130 ms.
        """
        position = self._left
        if self._header:
            begun = self._header + data
            header = _header_size(begun, 0)
            if header is None or len(begun) < header:
                return data
            position = header - len(self._header) + _payload_size(begun, 0)
        pieces: list[bytes] = []
        taken = 0
        size = len(data)
        while position < size:
            behind = _behind_pongs(data, position)
            if behind > position:
                pieces.append(data[taken:position])
                taken = position = behind
                continue
            header = _header_size(data, position)
            if header is None or size - position < header:
                break
            position += header + _payload_size(data, position)
        return b"".join((*pieces, data[taken:])) if taken else data

    def count_fitting(self, data: bytes) -> int:
        """How many bytes of `data` come before the frame with which a message exceeds a limit.

        Looks at headers only; a header announces its payload, so a message is refused before
        it has come. If these aren't all, the meter is of no more use.
        """
        position = 0
        before = len(self._header)
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
                break
            self._left = _payload_size(data, position)
            if not data[position] & _CONTROL:
                self._size += self._left
                self._fragments += 1
                if self._size > self._limit or self._fragments > self._most_fragments:
                    return max(0, position - before)
                if data[position] & _FIN:
                    self._size = self._fragments = 0
            position += header
        return size - before


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
