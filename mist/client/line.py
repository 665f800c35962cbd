r"""The line protocol, client side, with request pipelining: which line replies to which request.

Replies come in the order of the commands, but a reply doesn't name its command, and many
commands have no reply unless they fail. So `error Invalid tag` alone is ambiguous: it could be
one of a thousand publishes, or the `register` after them. Fences (pings) make it unambiguous:

* A command without a reply is followed by a `ping`: `register a,b T\nping\n`. Then either
  `pong` comes (it succeeded), or `error …` and then `pong`.
* Publishes get no fence of their own, which would cost more than the publishes. Instead the
  first command after publishes is preceded by a `ping`. Errors before its `pong` belong to the
  publishes, and errors after it to the command:

      publish a 1
      publish a 2
      ping            errors before its pong belong to the publishes
      register a T
      ping            an error before its pong belongs to the register

  A `ping` that the program asked for is such a fence already.

The requests in flight form a queue of expected replies, and each line that isn't a delivery is
compared with its head. A line that doesn't fit means that the two sides have lost step. No later
reply could be trusted, so the connection ends.

A `Resume` is preceded by `last` and followed by a `ping`. It has no reply of its own unless
messages are missing; these two tell where in the log it begins, and when the replay is complete.

Deliveries are requested in escaped form (`escape on`), because a message whose data holds LF
could not be delivered otherwise.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from mist.client.dialect import (
    Dialect,
    Event,
    HistoryGap,
    PresenceTold,
    PublishFailed,
    ReplayStarted,
    ReplayUnplaced,
    Request,
    Response,
)
from mist.client.errors import remote_error
from mist.client.line_codec import (
    decode_newest,
    decode_number,
    decode_reply,
    decode_text,
    encode_command,
)
from mist.client.presence_codec import PRESENCE_WORDS, read_presence_line
from mist.commands import Ping, Resume
from mist.errors import ProtocolViolation, SessionEnded
from mist.message import Message, TagSet
from mist.replies import Failed
from mist.wire import RECORD_START

__all__ = ["LineDialect"]

MAX_LINE: Final = 16_777_216  # bytes; a server's limit may be raised, and escaping may double it
_CACHED_TAG_LISTS: Final = 4096

_PING: Final = b"ping\n"
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


@attrs.define(eq=False)
class _Expected:
    """An expected reply.

    Attributes:
        word: its first word.
        request: the request that it answers; None for a fence after publishes.
        fenced: whether the request has no reply when it succeeds, so that `word` is that of
            its fence.
        publishes: messages written before it, since the previous fence.
        failure: the server's error text, where an error came before the fence.
        starts: whether it tells where a replay starts, and another reply answers the request.
    """

    word: bytes
    request: Request | None = None
    fenced: bool = False
    publishes: int = 0
    failure: str | None = None
    starts: bool = False


class LineDialect(Dialect):
    """The client side of one line connection."""

    def __init__(self) -> None:
        self.unconfirmed = 0
        self._unfenced = 0  # messages written since the last fence
        self._expected: deque[_Expected] = deque()
        self._partial: list[bytes] = []  # chunks of an incomplete line
        self._partial_size = 0
        self._tag_sets: dict[bytes, TagSet] = {}

    # writing

    def write(self, items: Iterable[bytes | Request]) -> list[bytes]:
        pieces = []
        for item in items:
            if isinstance(item, bytes):
                self._unfenced += 1
                self.unconfirmed += 1
                pieces.append(item)
            else:
                pieces += self._write_request(item)
        return pieces

    def _write_request(self, request: Request) -> list[bytes]:
        command = request.command
        if isinstance(command, Ping):
            self._expect(_Expected(b"pong", request))
            return [_PING]
        pieces = []
        if self._unfenced:
            self._expect(_Expected(b"pong"))
            pieces.append(_PING)
        if isinstance(command, Resume):
            self._expect(_Expected(b"last", request, starts=True))
            pieces.append(b"last\n")
        word, line = encode_command(command)
        pieces.append(line)
        if word is None:
            pieces.append(_PING)
            self._expect(_Expected(b"pong", request, fenced=True))
        else:
            self._expect(_Expected(word, request))
        return pieces

    def _expect(self, expected: _Expected) -> None:
        expected.publishes = self._unfenced
        self._unfenced = 0
        self._expected.append(expected)

    # reading

    def receive(self, data: bytes) -> Iterator[Event]:
        end = data.rfind(b"\n") + 1
        if not end:
            self._keep_partial(data)
            return
        body = b"".join([*self._partial, data[: end - 1]])
        self._partial.clear()
        self._partial_size = 0
        self._keep_partial(data[end:])
        for line in body.split(b"\n"):
            if line.startswith(b"message "):
                yield self._numbered(line)
            elif line.startswith(RECORD_START):
                yield self._message(line)
            else:
                yield from self._reply(line)

    def _keep_partial(self, data: bytes) -> None:
        if data:
            self._partial.append(data)
            self._partial_size += len(data)
        if self._partial_size > MAX_LINE:
            raise ProtocolViolation("the server sent a line that is too long")

    def _numbered(self, line: bytes) -> Message:
        fields = line.split(b" ", 3)
        if len(fields) != 4:
            raise ProtocolViolation("the server sent a delivery without data")
        return self._decoded(fields[2], fields[3], decode_number(fields[1]))

    def _message(self, line: bytes) -> Message:
        fields = line.split(b" ", 2)
        if len(fields) != 3:
            raise ProtocolViolation("the server sent a delivery without data")
        return self._decoded(fields[1], fields[2], None)

    def _decoded(self, tag_list: bytes, data: bytes, id_: int | None) -> Message:
        tags = self._tag_sets.get(tag_list)
        if tags is None:
            if len(self._tag_sets) >= _CACHED_TAG_LISTS:
                self._tag_sets.clear()
            tags = self._tag_sets[tag_list] = frozenset(decode_text(tag_list).split(","))
        if b"\\" in data:
            data = _ESCAPED.sub(_unescape, data)
        return Message(tags, data, id_)

    def _reply(self, line: bytes) -> list[Event]:
        word, _, rest = line.partition(b" ")
        if word == b"error":
            return self._error(decode_text(rest))
        if word == b"gap":
            return self._gap(rest)
        if word in PRESENCE_WORDS:
            return [PresenceTold(read_presence_line(word, rest))]
        if not self._expected or self._expected[0].word != word:
            raise ProtocolViolation("the server sent an unexpected reply")
        expected = self._expected.popleft()
        self.unconfirmed -= expected.publishes
        if expected.request is None:
            return []
        if expected.starts:
            newest = decode_newest(rest)
            return [ReplayStarted(expected.request, newest.epoch, newest.id)]
        if expected.failure is not None:
            return [Response(expected.request, Failed(remote_error(expected.failure)))]
        return [Response(expected.request, decode_reply(expected.request.command, rest))]

    def _gap(self, rest: bytes) -> list[Event]:
        decode_newest(rest)
        expected = self._expected[0] if self._expected else None
        if expected is None or expected.request is None or expected.starts:
            return [HistoryGap(None)]
        resumed = isinstance(expected.request.command, Resume)
        return [HistoryGap(expected.request if resumed else None)]

    def _error(self, text: str) -> list[Event]:
        if text == SessionEnded.message:
            return []  # it answers nothing: the connection ends, and another one is made
        expected = self._expected[0] if self._expected else None
        if expected is None or expected.request is None:
            return [PublishFailed(text)]
        if isinstance(expected.request.command, Ping):
            return [PublishFailed(text)]
        if expected.fenced:
            expected.failure = text
            return []
        self._expected.popleft()
        self.unconfirmed -= expected.publishes
        if expected.starts:
            return [ReplayUnplaced(expected.request, text)]
        return [Response(expected.request, Failed(remote_error(text)))]

    def close(self) -> tuple[list[Event], list[Request]]:
        events: list[Event] = []
        unanswered: list[Request] = []
        for expected in self._expected:
            if expected.request is None or expected.starts:
                continue
            # A server that hangs up on a command has said why, but answers no fence.
            if expected.failure is not None:
                failed = Failed(remote_error(expected.failure))
                events.append(Response(expected.request, failed))
            else:
                unanswered.append(expected.request)
        self._expected.clear()
        return events, unanswered


def _unescape(match: re.Match[bytes]) -> bytes:
    return {b"n": b"\n", b"r": b"\r"}.get(match[1], match[1])
