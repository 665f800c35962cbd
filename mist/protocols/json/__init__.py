"""The JSON dialect: a stream of objects, over TCP or in the messages of a WebSocket.

What a peer may say and what it is answered is in docs/dialects.md. Beyond the page it comes
from, this was decided:

* An object that isn't JSON ends the session, since nobody can say where the next one begins.
  That goes for bytes that are no UTF-8, for halves of surrogate pairs, which are no text, and
  for what is nested deeper than any command is. An object that is too long doesn't: it is
  skipped. Nor does a field of the wrong type: it has an error of its own.
* Of a key that comes twice, the last one counts. Null is as good as nothing, and what else is
  in an object means nothing. A number is nowhere right, however large.
* With a secret set, the first object authenticates the peer if its `data` is the secret, whatever
  its command is, and is then handled; otherwise it gets no answer. Neither does an `auth` that
  succeeds.
* A WebSocket message holds whole objects, one or several, in text or in binary; an answer or
  a delivery is a text message of its own, LF and all.

What has come is read many objects at once where that can be done (`json_requests`), else object
by object.
"""

import abc
from collections.abc import Generator, Iterator, Sequence
from typing import ClassVar, Final

import msgspec

from mist.commands import Auth, Command, Hangup, Invalid, Pause, Ping, Publish, TokenCommand
from mist.errors import (
    HistoryUnavailable,
    LineTooLong,
    MistError,
    NotGranted,
    TokenExists,
    TokenNotFound,
    Unauthorized,
    UnknownCommand,
)
from mist.message import MAX_CREDENTIAL, Limits
from mist.protocols import Protocol
from mist.protocols.json.commands import NAMES, parse_request, read_one
from mist.protocols.json.forms import JSON_OBJECTS
from mist.protocols.json.objects import InvalidJson, ObjectReader
from mist.protocols.json.requests import (
    Alike,
    Gathering,
    Request,
    Similar,
    read_alike,
    read_many,
    read_similar,
)
from mist.protocols.listing import finished, tag_lists_and_text, text_as_json
from mist.protocols.presence_forms import Told, as_fields, formed
from mist.replies import (
    Connections,
    Done,
    Failed,
    PresenceChanged,
    PresenceEnded,
    Present,
    Reply,
    Resumed,
    Revoked,
    SortedTags,
    Subscriptions,
    Tags,
)
from mist.wire import WireForm

__all__ = ["UNAUTHENTICATED_OBJECT", "JsonDialect", "JsonProtocol", "Said"]

UNAUTHENTICATED_OBJECT: Final = MAX_CREDENTIAL + 256
"""Bytes in an object of a peer that has not authenticated."""

_TAGS: Final = 200  # of messages that are gathered without a pause: some 0.3 ms

_GUESSES: Final = 8
_BETWEEN: Final = frozenset((b"", b"{", b" ", b"\t", b"\r", b"\n"))  # what may follow an object


Said = Request | Alike | Similar | Command
"""What objects ask for; a command where something else was said, or an object means none."""


class JsonDialect(Protocol):
    """What it is over TCP and over WebSocket alike: the commands and the answers.

    Args:
        limits: of objects, data and tags.
        unauthenticated: whether the peer has yet to prove who it is.
    """

    echoes: ClassVar[bool] = False

    def __init__(self, limits: Limits, *, unauthenticated: bool = False) -> None:
        self._limits = limits
        self._unauthenticated = unauthenticated
        self._administers = False

    def authenticated(self) -> None:
        self._unauthenticated = False

    @abc.abstractmethod
    def _requests(self, data: bytes) -> Iterator[Said]:
        """What has come.

        Raises:
            InvalidJson: something is no object.
        """

    def receive(self, data: bytes) -> Iterator[Command]:
        gathering = Gathering()
        looked_at = 0  # tags, since others may have had their turns
        for request in self._said(data):
            if isinstance(request, Request):
                if self._unauthenticated:
                    yield Auth(request.data or "")
                    if request.command == "auth":
                        continue
                if request.command == "publish" and gathering.add(request):
                    looked_at += len(request.tags or ())
                    if looked_at > _TAGS:
                        looked_at = 0
                        yield Pause()  # what is gathered goes on to be one batch
                    continue
            elif isinstance(request, Alike):
                gathering.add_all(request)
                continue
            elif isinstance(request, Similar):
                gathering.add_similar(request)
                continue
            if gathering:
                yield Publish(gathering.batch())
                gathering = Gathering()
            if isinstance(request, Request):
                yield parse_request(request, self._limits, administers=self._administers)
            else:
                yield request
        if gathering:
            yield Publish(gathering.batch())

    def _said(self, data: bytes) -> Iterator[Said]:
        try:
            yield from self._requests(data)
        except InvalidJson as error:
            yield Invalid(error)
            yield Hangup("invalid json")

    def _read(self, reader: ObjectReader) -> Request | Command | None:
        """The next object, alone. Raises as `read_one`."""
        try:
            found = reader.next()
        except LineTooLong as error:
            return Invalid(error)
        return None if found is None else read_one(found, self._limits)

    def reply(self, command: Command, reply: Reply) -> bytes:
        name = command.name if isinstance(command, Invalid) else NAMES.get(type(command))
        match reply:
            case Failed(NotGranted() as error) if isinstance(command, Publish):
                # A session reports this error once for a whole batch, and others for each message.
                return self._failed(command, name, error) * command.batch.count
            case Failed(error):
                return self._failed(command, name, error)
            case Done() if isinstance(command, Ping):
                return self._answer(name, data="pong")
            case Done():
                return b""
            case Subscriptions() | SortedTags():
                return finished(self._listed(name, reply))
            case Tags(tags) if isinstance(command, TokenCommand):
                return self._answer(name, sorted(tags))
            case Connections(connected, lifetime):
                text = f"Lifetime  connections: {lifetime}\nSubscribers connected: {connected}"
                return self._answer(name, data=text)
            case Present():
                return formed(reply, "json", _presence_object)
            case _:
                raise AssertionError(f"no object for {reply!r}")

    def reply_in_steps(self, command: Command, reply: Reply) -> Generator[None, None, bytes]:
        if isinstance(reply, Subscriptions | SortedTags):
            return (yield from self._listed(NAMES.get(type(command)), reply))
        return self.reply(command, reply)

    def _listed(
        self, name: str | None, listed: Subscriptions | SortedTags
    ) -> Generator[None, None, bytes]:
        match listed:
            case SortedTags(tags) if tags:
                return self._answer(name, data=(yield from text_as_json(tags)))
            case Subscriptions(tag_lists) if tag_lists:
                lists, data = yield from tag_lists_and_text(tag_lists)
                return self._answer(name, data=data, subscriptions=lists)
            case _:
                return self._answer(name)

    def _failed(self, command: Command, name: str | None, error: MistError) -> bytes:
        if isinstance(error, Unauthorized):
            # The session ends, and without a word, unless it would have ended anyway.
            if not (isinstance(command, Invalid) and isinstance(command.error, InvalidJson)):
                return b""
            error = command.error
        if isinstance(error, UnknownCommand) and isinstance(command.ref, Request):
            request = command.ref
            return self._answer(name, request.tags, request.data, error="Unknown Command")
        return self._answer(name, error=_error_text(error))

    def notice(self, notice: Reply) -> bytes:
        match notice:
            case Revoked(tags=tags):
                return self._answer("revoked", sorted(tags), error=NotGranted.message)
            case Present() | PresenceChanged():
                return formed(notice, "json", _presence_object)
            case PresenceEnded(tags=tags):
                return self._answer("unpresence", sorted(tags), error=NotGranted.message)
            case Resumed():
                return b""  # nothing here asks for a replay
            case _:
                return b""

    def _answer(
        self,
        command: str | None,
        tags: list[str] | None = None,
        data: str | msgspec.Raw | None = None,
        subscriptions: msgspec.Raw | None = None,
        error: str | None = None,
    ) -> bytes:
        fields = {
            "command": command,
            "tags": tags,
            "data": data,
            "subscriptions": subscriptions,
            "error": error,
        }
        return msgspec.json.encode({key: value for key, value in fields.items() if value}) + b"\n"


class JsonProtocol(JsonDialect):
    """One connection's side of the JSON dialect, over TCP."""

    def __init__(self, limits: Limits, *, unauthenticated: bool = False) -> None:
        super().__init__(limits, unauthenticated=unauthenticated)
        self.form: WireForm = JSON_OBJECTS
        limit = min(UNAUTHENTICATED_OBJECT, limits.line) if unauthenticated else limits.line
        self._reader = ObjectReader(limit)

    def authenticated(self) -> None:
        super().authenticated()
        self._reader.limit = self._limits.line

    @property
    def held(self) -> int:
        """Bytes kept of an object that has not ended."""
        return self._reader.held

    def _requests(self, data: bytes) -> Iterator[Said]:
        reader = self._reader
        reader.feed(data)
        bulk = True
        while True:
            if bulk and reader.idle and not self._unauthenticated:
                bulk = False
                yield from self._read_bulk()
            request = self._read(reader)
            if request is not None:
                yield request
            elif reader.busy:
                yield Pause()
            else:
                return

    def _read_bulk(self) -> Sequence[Request | Alike | Similar]:
        """All that has come whole, where it can be read at once, and no limit be broken."""
        rest = self._reader.take()
        end = _end_of_last(rest)
        found: Sequence[Request | Alike | Similar] | None = None
        if end <= min(self._limits.line, self._limits.data):
            objects = rest[:end]
            together = read_alike(objects) or read_similar(objects)
            found = read_many(objects) if together is None else [together]
        self._reader.feed(rest if found is None else rest[end:])
        return found or ()

    def reply(self, command: Command, reply: Reply) -> bytes:
        if isinstance(command, Auth) and isinstance(reply, Done):
            self._administers = True
        return super().reply(command, reply)


def _presence_object(told: Told) -> bytes:
    return msgspec.json.encode({"command": "presence"} | as_fields(told)) + b"\n"


def _end_of_last(data: bytes) -> int:
    """Where the last object ends that has come whole, as far as that can be guessed."""
    end = len(data)
    for _ in range(_GUESSES):
        end = data.rfind(b"}", 0, end)
        if end < 0 or data[end + 1 : end + 2] in _BETWEEN:
            return end + 1
    return 0


def _error_text(error: MistError) -> str:
    match error:
        case TokenExists():
            return "Token already exists\n"
        case TokenNotFound():
            return "Token not found\n"
        case UnknownCommand():
            return "Unknown Command"
        case HistoryUnavailable():  # its text is for the operator
            return HistoryUnavailable.message
        case _:
            return str(error)
