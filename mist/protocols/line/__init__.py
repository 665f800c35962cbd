r"""The line protocol: text over TCP, readable with `nc`, debuggable without tools.

What it must do, to the byte, is docs/line-protocol.md; the shape of the code follows from
three of its demands:

* *Most lines are publishes, and most consecutive ones have the same tags.* Two counts prove
  that all that has arrived is publishes with one tag list, and then it is one run, whether of
  one message or of a thousand. Where tag lists differ, lines are cut all at once, and only
  where other commands stand among them one by one. In no case is data looked at or decoded.
* *A line may be as long as a megabyte, or never end.* The beginning of an unfinished line is
  kept in one buffer (pieces of a few bytes would cost many times their content), and only
  new bytes are searched for its end. Past the limit it is dropped, and the rest of the line
  is skipped.
* *A command may change how the next line is read* (`auth` lifts the limit for unauthenticated
  peers), so `receive` is a generator that reads a line only after the command before it was
  handled.
* *What a browser can be made to send is no command.* An HTTP request ends the session, and so
  does a first byte that begins no command: TLS, whose handshake may carry lines that a page
  chose, and STUN.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from io import BytesIO
from typing import Final

import msgspec

from mist.commands import Command, Hangup, Invalid, Ping, Publish, TokenCommand
from mist.errors import (
    DataTooLong,
    HistoryUnavailable,
    LineTooLong,
    MistError,
    UnknownCommand,
    WrongArguments,
)
from mist.message import MAX_CREDENTIAL, Limits, format_tags
from mist.protocols import Protocol
from mist.protocols.line.commands import parse_command
from mist.protocols.line.forms import ESCAPED, NUMBERED, NUMBERED_ESCAPED, PLAIN
from mist.protocols.line.lists import format_list, list_in_steps
from mist.protocols.presence_forms import as_lines
from mist.replies import (
    CaughtUp,
    Connections,
    Done,
    Failed,
    Newest,
    PresenceChanged,
    Present,
    Reply,
    Resumed,
    SortedTags,
    Stored,
    Subscriptions,
    Tags,
    TokenAttributes,
    Tokens,
    TokenShown,
)
from mist.wire import RECORD_START, Batch, Run, WireForm

__all__ = ["LineProtocol", "error_line"]

UNAUTHENTICATED_LINE: Final = (
    MAX_CREDENTIAL + 256
)  # bytes in a line of a peer that has not authenticated

_BLANK: Final = re.compile(rb"(?:\r?\n)*")
_HTTP: Final = re.compile(rb"[A-Za-z]+ [^ \n]* HTTP/")


class LineProtocol(Protocol):
    """One connection's side of the line protocol.

    Args:
        limits: of lines, data and tags.
        unauthenticated: whether the peer has yet to prove who it is; it may send short lines only.
    """

    counts_subscriptions = True

    def __init__(self, limits: Limits, *, unauthenticated: bool = False) -> None:
        self.form: WireForm = PLAIN
        self._escapes = False
        self._numbers = False
        self._limits = limits
        self._allow(min(UNAUTHENTICATED_LINE, limits.line) if unauthenticated else limits.line)
        self._begun = False  # nothing seen yet but white space
        self._fresh = True  # no line seen yet but blank ones
        self._held = bytearray()  # the beginning of a line that has not ended
        self._skipping = False  # inside a line that was too long

    def _allow(self, max_line: int) -> None:
        self._max_line = max_line
        self._roomy = min(max_line, self._limits.data)  # shorter lines need no other look

    def authenticated(self) -> None:
        self._allow(self._limits.line)

    def escape(self, on: bool) -> None:
        self._escapes = on
        self._choose_form()

    def ids(self, on: bool) -> None:
        self._numbers = on
        self._choose_form()

    def _choose_form(self) -> None:
        if self._numbers:
            self.form = NUMBERED_ESCAPED if self._escapes else NUMBERED
        else:
            self.form = ESCAPED if self._escapes else PLAIN

    @property
    def held(self) -> int:
        """Bytes kept of a line that has not ended."""
        return len(self._held)

    def receive(self, data: bytes) -> Iterator[Command]:
        if not self._begun and (first := data.lstrip()[:1]):
            self._begun = True
            if not first.isalpha():
                # Lines of white space before it have come in a read of their own, or might have.
                ended = data.rfind(b"\n", 0, data.index(first)) + 1
                yield from self.receive(data[:ended])
                yield Hangup("no line protocol")
                return
        if data.endswith(b"\n") and not self._held and not self._skipping:
            body, rest = data, b""
        else:
            body, rest = self._take(data)
        if self._fresh and body:
            body = _BLANK.sub(b"", body, 1)
            if hangup := self._hangup(body):
                yield hangup
                return
            self._fresh = not body
        if batch := self._batch(body):
            yield Publish(batch)
        elif body:
            yield from self._lines(body)
        if rest:
            self._held += rest
            if len(self._held) > self._max_line:
                start = bytes(self._held[: self._max_line])
                self._held.clear()
                self._skipping = True
                yield self._hangup(start) or Invalid(LineTooLong())

    def _take(self, data: bytes) -> tuple[bytes, bytes]:
        """The lines that are complete, with what was held of the first; and the rest."""
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if not end:
            return b"", b"" if self._skipping else rest
        if self._skipping:
            self._skipping = False
            self._fresh = False
            return data[data.find(b"\n") + 1 : end], rest
        body = bytes(self._held) + data[:end]
        self._held.clear()
        return body, rest

    def _hangup(self, line: bytes) -> Hangup | None:
        """The end of the session, where a line shows that the peer speaks HTTP.

        Of an overlong line only the beginning is looked at, so that it doesn't matter in how
        many pieces it came.
        """
        if line[:5].lower() == b"host:":
            return Hangup("http header on the line protocol")
        if self._fresh and _HTTP.match(line, 0, self._max_line):
            return Hangup("http request on the line protocol")
        return None

    def _lines(self, body: bytes) -> Iterator[Command]:
        # A client's fence is publishes with a ping behind them, so the last line stands apart.
        last = body.rfind(b"\n", 0, -1) + 1
        if not body.startswith(RECORD_START, last) and (batch := self._batch(body[:last])):
            yield Publish(batch)
            body = body[last:]
        runs: list[Run] = []
        for line in BytesIO(body).readlines():
            if run := self._publish(line):
                runs.append(run)
                continue
            if runs:
                yield Publish(Batch.of_runs(runs))
                runs = []
            yield self._command(line[:-1])
        if runs:
            yield Publish(Batch.of_runs(runs))

    def _batch(self, body: bytes) -> Batch | None:
        """Whole lines as one batch, if all of them are publishes and surely keep the limits.

        What is asked of each line is asked of all at once, as far as that can be done.
        """
        last = body.rfind(b"\n", 0, -1) + 1
        if not body.startswith(RECORD_START, last) or len(body) > self._roomy:
            return None
        end = body.find(b" ", len(RECORD_START))
        tag_list = body[len(RECORD_START) : end]
        if not last:
            return Batch((tag_list,), (body, 1)) if end >= 0 and tag_list else None
        count = body.count(b"\n")
        head = body[: end + 1]
        alike = tag_list and b"\n" not in head and body.startswith(head, last)
        if alike and body.count(b"\n" + head) == count - 1:
            return Batch((tag_list,), (body, count))
        tails = body[len(RECORD_START) : -1].split(b"\n" + RECORD_START)
        if len(tails) != count or not body.startswith(RECORD_START):
            return None
        try:
            tag_lists, datas = zip(*[tail.split(b" ", 1) for tail in tails], strict=True)
        except ValueError:  # one has no data
            return None
        return Batch.of_columns(tag_lists, datas, body) if all(tag_lists) else None

    def _publish(self, line: bytes) -> Run | None:
        """A line, its LF included, if it is a publish that keeps the limits."""
        fields = line.split(b" ", 2)
        if len(fields) < 3 or fields[0] != b"publish" or not fields[1]:
            return None
        if len(line) - 1 > self._max_line or len(fields[2]) - 1 > self._limits.data:
            return None
        return fields[1], line, 1

    def _command(self, line: bytes) -> Command:
        if hangup := self._hangup(line):
            return hangup
        if len(line) > self._max_line:
            return Invalid(LineTooLong())
        return parse_command(line, self._limits)

    def reply(self, command: Command, reply: Reply) -> bytes:
        match reply:
            case Failed(error):
                return error_line(error)
            case Done():
                return b"pong\n" if isinstance(command, Ping) else b""
            case Subscriptions(tag_lists):
                return _list(b"list", tag_lists)
            case SortedTags(tags):
                return _list(b"listall", [tag.encode() for tag in tags])
            case Tags(tags) if isinstance(command, TokenCommand):
                granted = [format_tags(tags).encode()] if tags else []
                return _list(b"tags %b" % command.token.encode(), granted)
            case TokenAttributes(attributes) if isinstance(command, TokenCommand):
                return b"attr %b %b\n" % (command.token.encode(), attributes.text.encode())
            case TokenShown(token):
                return b"token %b\n" % msgspec.json.encode(token)
            case Tokens(page):
                return b"tokens %b\n" % msgspec.json.encode(page)
            case Connections(connected, lifetime):
                return b"who %d %d\n" % (connected, lifetime)
            case Stored(id_):
                return b"stored %d\n" % id_
            case Newest(epoch, id_):
                return b"last %b %d\n" % (epoch.encode(), id_)
            case Resumed() | Present():
                return self.notice(reply)
            case CaughtUp():
                return b""
            case _:
                raise AssertionError(f"no line for {reply!r}")

    def reply_in_steps(self, command: Command, reply: Reply) -> Generator[None, None, bytes]:
        match reply:
            case Subscriptions(tag_lists):
                return _line(b"list", (yield from list_in_steps(b" ", tag_lists)))
            case SortedTags(tags):
                return _line(b"listall", (yield from list_in_steps(" ", tags)))
            case _:
                return self.reply(command, reply)

    def notice(self, notice: Reply) -> bytes:
        match notice:
            case Resumed(recovered=False, epoch=epoch, first=first):
                return b"gap %b %d\n" % (epoch.encode(), first)
            case Present() | PresenceChanged():
                return as_lines(notice)
            case _:
                return b""


def _list(word: bytes, items: Sequence[bytes]) -> bytes:
    return _line(word, format_list(items))


def _line(word: bytes, items: bytes) -> bytes:
    # Without items `list `, the space included, as the original has it.
    return b"%b %b\n" % (word, items)


def error_line(error: MistError) -> bytes:
    """`error …` for any error, LF included. A command is quoted back as it was written."""
    match error:
        case UnknownCommand(fields=fields):
            return b"error Unknown command '[%b]'\n" % fields
        case WrongArguments(fields=fields):
            return b"error Incorrect number of arguments for '[%b]'\n" % fields
        case DataTooLong():
            return b"error Line too long\n"  # data is all but the whole of a line
        case HistoryUnavailable():
            return b"error %b\n" % HistoryUnavailable.message.encode()
        case _:
            return b"error %b\n" % str(error).encode()
