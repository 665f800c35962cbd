r"""The line protocol, from the client's side: which line answers what.

Replies come in the order of the commands, but a reply doesn't say whose it is, and many
commands say nothing unless they fail. So `error Invalid tag` alone is a riddle: one of a
thousand publishes, or the `register` behind them? The riddle is avoided, not solved:

* A command that says nothing when it succeeds is written with a `ping` behind it:
  `register a,b T\nping\n`. Either `pong` comes (it worked), or `error …` and then `pong`.
* Publishes get no fence of their own; that would cost more than the publishes. Instead the
  first command after publishes is written with a `ping` *before* it, so that what fails
  among the publishes is told before that `pong`, and what comes behind it is the command's:

      publish a 1
      publish a 2
      ping            errors up to its pong are the publishes'
      register a T
      ping            an error up to its pong is the register's

  A `ping` that the user asked for is that fence already.

What was written is a queue of expectations, and each line that isn't a delivery is held
against the first of them. A line that can't belong there means that the two sides disagree
about what was asked; no later answer could be trusted, so that ends the connection.

A `Resume` is written with `last` before it and a `ping` behind it. It has no reply of its own
where nothing is missing, so these two say where in the log it begins, and when all of it came.

Deliveries are asked for in their escaped form (`escape on`), since a message whose data holds
LF could not be delivered otherwise.
"""

import re
from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs

from mist.client.dialect import (
    Answer,
    Begun,
    Dialect,
    Event,
    Forgotten,
    PublishFailed,
    Request,
)
from mist.client.errors import remote_error
from mist.client.words import read_newest, read_number, read_reply, read_text, write_command
from mist.commands import Failed, Ping, Resume
from mist.errors import ProtocolViolation
from mist.message import Message, TagSet
from mist.wire import RECORD_START

__all__ = ["LineDialect"]

MAX_LINE: Final = 16_777_216  # bytes; a server's limit may be raised, and escaping may double it
_CACHED_TAG_LISTS: Final = 4096

_PING: Final = b"ping\n"
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


@attrs.define(eq=False)
class _Expected:
    """One reply that is due.

    Attributes:
        word: what it begins with.
        request: whose it is; None for a fence after publishes.
        silent: whether the request says nothing when it succeeds, so that `word` is its
            fence's.
        publishes: messages written before it, since the fence before.
        failure: the server's words, where an error came before the fence.
        begins: whether it says where a request begins, and another is to answer it.
    """

    word: bytes
    request: Request | None = None
    silent: bool = False
    publishes: int = 0
    failure: str | None = None
    begins: bool = False


class LineDialect(Dialect):
    """One connection's side of the line protocol. See the module."""

    def __init__(self) -> None:
        self.unconfirmed = 0
        self._unfenced = 0  # messages written since the last fence was
        self._expected: deque[_Expected] = deque()
        self._held: list[bytes] = []  # the beginning of a line that has not ended
        self._held_size = 0
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
            self._expect(_Expected(b"last", request, begins=True))
            pieces.append(b"last\n")
        word, line = write_command(command)
        pieces.append(line)
        if word is None:
            pieces.append(_PING)
            self._expect(_Expected(b"pong", request, silent=True))
        else:
            self._expect(_Expected(word, request))
        return pieces

    def _expect(self, expected: _Expected) -> None:
        expected.publishes = self._unfenced
        self._unfenced = 0
        self._expected.append(expected)

    # reading

    def receive(self, data: bytes) -> list[Event]:
        end = data.rfind(b"\n") + 1
        if not end:
            self._hold(data)
            return []
        body = b"".join([*self._held, data[: end - 1]])
        self._held.clear()
        self._held_size = 0
        self._hold(data[end:])
        events: list[Event] = []
        for line in body.split(b"\n"):
            if line.startswith(b"message "):
                events.append(self._numbered(line))
            elif line.startswith(RECORD_START):
                events.append(self._message(line))
            else:
                events += self._reply(line)
        return events

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._held_size += len(data)
        if self._held_size > MAX_LINE:
            raise ProtocolViolation("the server sent a line without an end")

    def _numbered(self, line: bytes) -> Message:
        fields = line.split(b" ", 3)
        if len(fields) != 4:
            raise ProtocolViolation("the server sent a delivery without data")
        return self._decoded(fields[2], fields[3], read_number(fields[1]))

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
            tags = self._tag_sets[tag_list] = frozenset(read_text(tag_list).split(","))
        if b"\\" in data:
            data = _ESCAPED.sub(_unescape, data)
        return Message(tags, data, id_)

    def _reply(self, line: bytes) -> list[Event]:
        word, _, rest = line.partition(b" ")
        if word == b"error":
            return self._error(read_text(rest))
        if word == b"gap":
            return self._gap(rest)
        if not self._expected or self._expected[0].word != word:
            raise ProtocolViolation("the server answered what was not asked")
        expected = self._expected.popleft()
        self.unconfirmed -= expected.publishes
        if expected.request is None:
            return []
        if expected.begins:
            newest = read_newest(rest)
            return [Begun(expected.request, newest.epoch, newest.id)]
        if expected.failure is not None:
            return [Answer(expected.request, Failed(remote_error(expected.failure)))]
        return [Answer(expected.request, read_reply(expected.request.command, rest))]

    def _gap(self, rest: bytes) -> list[Event]:
        read_newest(rest)
        expected = self._expected[0] if self._expected else None
        if expected is None or expected.request is None or expected.begins:
            return [Forgotten(None)]
        resumed = isinstance(expected.request.command, Resume)
        return [Forgotten(expected.request if resumed else None)]

    def _error(self, text: str) -> list[Event]:
        expected = self._expected[0] if self._expected else None
        if expected is None or expected.request is None:
            return [PublishFailed(text)]
        if isinstance(expected.request.command, Ping):
            return [PublishFailed(text)]
        if expected.silent:
            expected.failure = text
            return []
        self._expected.popleft()
        self.unconfirmed -= expected.publishes
        if expected.begins:
            return []  # what it begins fails too, and says so
        return [Answer(expected.request, Failed(remote_error(text)))]

    def close(self) -> tuple[list[Event], list[Request]]:
        events: list[Event] = []
        unanswered: list[Request] = []
        for expected in self._expected:
            if expected.request is None or expected.begins:
                continue
            # A server that hangs up on a command says why, but answers no ping after that.
            if expected.failure is not None:
                failed = Failed(remote_error(expected.failure))
                events.append(Answer(expected.request, failed))
            else:
                unanswered.append(expected.request)
        self._expected.clear()
        return events, unanswered


def _unescape(match: re.Match[bytes]) -> bytes:
    return {b"n": b"\n", b"r": b"\r"}.get(match[1], match[1])
