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
from collections.abc import Callable, Iterable
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
from mist.client.errors import Unframable, remote_error
from mist.commands import (
    AddTags,
    Auth,
    Command,
    Connections,
    Done,
    Echo,
    Escape,
    Failed,
    Ids,
    Last,
    ListSubscriptions,
    ListTags,
    Newest,
    Ping,
    Register,
    RemoveTags,
    Reply,
    Resume,
    ShowTags,
    Since,
    Store,
    Stored,
    Subscribe,
    Subscriptions,
    Tags,
    Unregister,
    Unsubscribe,
    Who,
)
from mist.errors import ProtocolViolation
from mist.message import Message, TagSet, format_tags

__all__ = ["LineDialect", "publish_head", "publish_line"]

MAX_LINE: Final = 16_777_216  # bytes; a server's limit may be raised, and escaping may double it
_CACHED_TAG_LISTS: Final = 4096

_PING: Final = b"ping\n"
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


def publish_head(tags: TagSet) -> bytes:
    """What every message with these tags begins with."""
    return b"publish %b " % format_tags(tags).encode()


def publish_line(head: bytes, data: bytes) -> bytes:
    """A published message, LF included.

    Raises:
        Unframable: `data` holds LF.
    """
    if b"\n" in data:
        raise Unframable
    return b"%b%b\n" % (head, data)


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
        word, line = _WRITERS[type(command)](command)
        pieces.append((line.encode() if isinstance(line, str) else line) + b"\n")
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
            elif line.startswith(b"publish "):
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
        return self._decoded(fields[2], fields[3], _number(fields[1]))

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
            tags = self._tag_sets[tag_list] = frozenset(_text(tag_list).split(","))
        if b"\\" in data:
            data = _ESCAPED.sub(_unescape, data)
        return Message(tags, data, id_)

    def _reply(self, line: bytes) -> list[Event]:
        word, _, rest = line.partition(b" ")
        if word == b"error":
            return self._error(_text(rest))
        if word == b"gap":
            return self._gap()
        if not self._expected or self._expected[0].word != word:
            raise ProtocolViolation("the server answered what was not asked")
        expected = self._expected.popleft()
        self.unconfirmed -= expected.publishes
        if expected.request is None:
            return []
        if expected.begins:
            newest = _newest(rest)
            return [Begun(expected.request, newest.epoch, newest.id)]
        if expected.failure is not None:
            return [Answer(expected.request, Failed(remote_error(expected.failure)))]
        return [Answer(expected.request, _read_reply(expected.request.command, rest))]

    def _gap(self) -> list[Event]:
        request = self._expected[0].request if self._expected else None
        if request is None or not isinstance(request.command, Resume):
            raise ProtocolViolation("the server tells of a gap where nothing was resumed")
        return [Forgotten(request)]

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


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _unescape(match: re.Match[bytes]) -> bytes:
    return {b"n": b"\n", b"r": b"\r"}.get(match[1], match[1])


# How a command is written: the word of its reply (None: it has none), and its line. Arguments
# were checked by whoever made the command.

_Write = Callable[..., tuple[bytes | None, str | bytes]]


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _store(command: Store) -> bytes:
    [(_, line, _)] = command.batch.runs
    return b"store" + line.removeprefix(b"publish").removesuffix(b"\n")


def _resume(command: Resume) -> str:
    assert command.since is not None
    listed = [f"{{{format_tags(tags)}}}" for tags in command.alternatives]
    return " ".join(["resume", _position(command.since), *listed])


def _position(since: Since) -> str:
    if since.last is not None:
        return f"-{since.last}"
    return f"{since.after}" if since.epoch is None else f"{since.epoch}:{since.after}"


_WRITERS: Final[dict[type[Command], _Write]] = {
    Auth: lambda it: (None, f"auth {it.credential}"),
    Escape: lambda it: (None, f"escape {_switch(it.on)}"),
    Echo: lambda it: (None, f"echo {_switch(it.on)}"),
    Subscribe: lambda it: (None, f"subscribe {format_tags(it.tags)}"),
    Unsubscribe: lambda it: (None, f"unsubscribe {format_tags(it.tags)}"),
    Register: lambda it: (None, f"register {format_tags(it.tags)} {it.token}"),
    Unregister: lambda it: (None, f"unregister {it.token}"),
    AddTags: lambda it: (None, f"set {format_tags(it.tags)} {it.token}"),
    RemoveTags: lambda it: (None, f"unset {format_tags(it.tags)} {it.token}"),
    ShowTags: lambda it: (b"tags", f"tags {it.token}"),
    ListSubscriptions: lambda it: (b"list", "list"),
    ListTags: lambda it: (b"listall", "listall"),
    Who: lambda it: (b"who", "who"),
    Ids: lambda it: (None, f"ids {_switch(it.on)}"),
    Last: lambda it: (b"last", "last"),
    Store: lambda it: (b"stored", _store(it)),
    Resume: lambda it: (None, _resume(it)),
}


def _read_reply(command: Command, rest: bytes) -> Reply:
    match command:
        case ListSubscriptions():
            return Subscriptions(_braced(rest))
        case ListTags():
            return Tags(frozenset(map(_text, _braced(rest))))
        case ShowTags(token=token):
            listed = _braced(rest.removeprefix(token.encode() + b" "))
            return Tags(frozenset(_text(listed[0]).split(",")) if listed else frozenset())
        case Who():
            try:
                connected, lifetime = map(int, rest.split(b" "))
            except ValueError:
                raise ProtocolViolation("the server sent no numbers") from None
            return Connections(connected, lifetime)
        case Last():
            return _newest(rest)
        case Store():
            return Stored(_number(rest))
        case _:
            return Done()


def _newest(rest: bytes) -> Newest:
    epoch, _, number = rest.rpartition(b" ")
    return Newest(_text(epoch), _number(number))


def _number(raw: bytes) -> int:
    try:
        return int(raw)
    except ValueError:
        raise ProtocolViolation("the server sent no number") from None


def _braced(listed: bytes) -> list[bytes]:
    # A tag may hold braces itself, but no space: only the outermost pair is ours.
    return [item[1:-1] for item in listed.split(b" ") if item]
