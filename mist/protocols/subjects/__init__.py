r"""Subjects: the text protocol of NATS core, and rtmb's, which is nearly the same.

    < INFO {"server_id":…}
    > CONNECT {"verbose":false}
    > SUB foo.* 1
    > PUB foo.bar 5\r\nhello
    < MSG foo.bar 1 5\r\nhello

A subject is a tag with a dot before it (`mist.addresses`), so that a subscription by tags matches
it as well, and the other way round. `framing` finds where commands end, `commands` parses their
lines, and `replies` writes the answers; here they become commands of a session.

* *Consecutive publishes are one batch*, cut in bulk where they come so. One with a reply subject or
  with headers is a batch of its own: both are part of the envelope.
* *A verbose client counts acknowledgements.* Publishes of one subject are one batch all the same;
  the fence behind it, a `Ping`, is answered by as many `+OK`, or by none where the batch was
  refused.
* *The peer is unauthenticated until its CONNECT has been handled*, whether there is a secret or
  not. Nothing that it announces before is waited for.
* *A line that is no valid command is answered, and the next one read.* Where commands can't be told
  from payloads any more, where the peer speaks HTTP, and where the very first byte begins no
  command (TLS, STUN: a web page may have chosen a part of it), the session ends.
"""

import re
from collections.abc import Callable, Generator, Iterator
from typing import ClassVar, Final

from mist.commands import (
    Auth,
    Command,
    Echo,
    Hangup,
    Invalid,
    Pause,
    Ping,
    Publish,
    SubscribeNamed,
    UnsubscribeNamed,
)
from mist.errors import CommandError, Unauthorized, UnknownCommand, WrongArguments
from mist.message import Envelope, Limits, TagSet
from mist.protocols import Protocol
from mist.protocols.subjects.commands import (
    Announced,
    InvalidField,
    Options,
    are_headers,
    parse_options,
    parse_subscribe,
    parse_unsubscribe,
)
from mist.protocols.subjects.forms import HEADERS, REPLY, message, subject_form, subject_of
from mist.protocols.subjects.framing import PUBLISHING, Cut, Framing, FramingLost, cut_batch
from mist.protocols.subjects.names import Names
from mist.protocols.subjects.replies import (
    Ending,
    Owed,
    acknowledgement,
    close_error,
    error_line,
    failure,
    subscription_violation,
)
from mist.replies import Done, Failed, Reply, Revoked
from mist.wire import Batch, Run, WireForm

__all__ = ["PULSE", "SubjectProtocol"]

PULSE: Final = 120.0  # seconds
_MAX_BEATS: Final = 2  # that may stay unanswered

_NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"
_OPEN: Final = frozenset({b"CONNECT", b"PING", b"PONG", b"+OK", b""})  # to unauthenticated peers
_KNOWN: Final = PUBLISHING | _OPEN | {b"SUB", b"UNSUB"}
_HTTP: Final = re.compile(rb"[A-Za-z]+ [^ ]* HTTP/|[Hh][Oo][Ss][Tt]:")


class SubjectProtocol(Protocol):
    """One connection's side of the protocol.

    Args:
        limits: of data; control lines have a limit of their own.
        greeting: what the server says first: see `subject_info`.
        listens: whether a message with these tags would have a recipient now, in steps.
    """

    pulse: ClassVar[float | None] = PULSE

    def __init__(
        self,
        limits: Limits,
        greeting: bytes = b"",
        listens: Callable[[TagSet], Generator[None, None, bool]] | None = None,
    ) -> None:
        self.form: WireForm = subject_form(b"0")  # no subscription here is without a sid
        self._limits = limits
        self._greeting = greeting
        self._framing = Framing(limits.data)
        self._begun = False  # nothing seen yet but white space
        self._unauthenticated = True
        self._options = Options()
        self._beats = 0  # since anything came
        self._runs: list[Run] = []  # published and not yet handed on
        self._framable = True  # as for a batch of them
        self._names = Names()
        self._listens = listens

    def greeting(self) -> bytes:
        return self._greeting

    def beat(self) -> bytes | None:
        self._beats += 1
        return b"PING\r\n" if self._beats <= _MAX_BEATS else None

    def close_error(self, code: int, *, expired: bool = False) -> bytes:
        """The last line to the peer, where NATS clients know one for why the session ended.

        Args:
            code: see `mist.sessions.close_reason.CloseReason`.
            expired: whether the client's token has expired.
        """
        if expired:
            return error_line("User Authentication Expired")
        return close_error(code, unauthenticated=self._unauthenticated)

    def authenticated(self) -> None:
        self._unauthenticated = False
        self._greeting = b""  # was said long ago

    @property
    def held(self) -> int:
        """Bytes kept of a command that has not all come."""
        return self._framing.held

    @property
    def _verbose(self) -> bool:
        return self._options.is_verbose

    # reading

    def receive(self, data: bytes) -> Iterator[Command]:
        self._beats = 0
        if not self._begun and (first := data.lstrip()[:1]):
            self._begun = True
            if not (first.isalpha() or first == b"+"):
                yield Hangup("no subject protocol")
                return
        data = self._framing.take(data)
        position = 0
        if not self._unauthenticated and (
            found := cut_batch(data, self._limits.data, alike=self._verbose)
        ):
            batch, position = found
            yield from self._publish(batch, batch.count)
        try:
            while position < len(data):
                cut = self._framing.cut(data, position, payloads=not self._unauthenticated)
                if cut is None:
                    break
                position = cut.end
                if not self._gathers(cut):
                    yield from self._flush()
                    if not self._gathers(cut):
                        yield from self._other(cut)
        except FramingLost as lost:
            yield from self._flush()
            if not _HTTP.match(lost.line):
                yield lost.invalid
            yield Hangup("framing lost on the subject protocol")
            return
        yield from self._flush()

    def _gathers(self, cut: Cut) -> bool:
        """Add a publish to those gathered; False where it can't be in one batch with them."""
        announced = cut.announced
        if not isinstance(announced, Announced) or not announced.plain:
            return False
        if self._verbose and self._runs and self._runs[0][0] != announced.tag_list:
            return False
        self._framable = self._framable and b"\n" not in cut.payload
        self._runs.append((announced.tag_list, b"%b%b\n" % (announced.head, cut.payload), 1))
        return True

    def _other(self, cut: Cut) -> Iterator[Command]:
        match cut.announced:
            case None:
                return self._command(cut.word, cut.line)
            case Announced() as announced:
                return self._special(announced, cut.payload)
            case invalid:
                return iter((invalid,))

    def _flush(self) -> Iterator[Command]:
        """The publishes gathered so far, as one batch."""
        if self._runs:
            runs, framable = self._runs, self._framable
            self._runs, self._framable = [], True
            yield from self._publish(Batch.of_runs(runs, framable=framable), len(runs))

    def _publish(self, batch: Batch, count: int) -> Iterator[Command]:
        if self._verbose:
            owed = Owed(count)
            yield Publish(batch, ref=owed)
            yield Ping(ref=owed)
        else:
            yield Publish(batch)

    def _special(self, announced: Announced, payload: bytes) -> Iterator[Command]:
        """A publish that has headers or a reply subject, or isn't valid."""
        headers, data = payload[: announced.headers], payload[announced.headers :]
        error = announced.error
        if error is None and announced.name == "HPUB" and not are_headers(headers):
            error = InvalidField("headers are not a block of NATS/1.0")
        if error is not None:
            yield Invalid(error, announced.name)
            return
        meta = {HEADERS: headers} if headers else {}
        if announced.reply:
            meta[REPLY] = announced.reply
        run = announced.tag_list, b"%b%b\n" % (announced.head, data), 1
        framable = b"\n" not in data
        batch = Batch.of_runs([run], framable=framable, envelope=Envelope(meta=meta))
        owed = Owed(1)
        yield Publish(batch, ref=owed)
        if self._verbose:
            yield Ping(ref=owed)
        if announced.reply and self._options.no_responders:
            yield from self._no_responders(announced, owed)

    def _no_responders(self, announced: Announced, owed: Owed) -> Iterator[Command]:
        """Answer a request with status 503 where nobody is subscribed to its subject."""
        if self._listens is None:
            return
        asking = self._listens(frozenset((announced.tag_list.decode(),)))
        if (yield from _pausing(asking)):
            return
        sid = self._names.awaiting(announced.reply)
        if sid is not None:
            owed.instead = message(announced.reply, sid, b"", b"", _NO_RESPONDERS)
            yield Ping(ref=owed)
            # The client counts the answer, and takes such a subscription for ended.
            if self._names.is_last(sid) and not owed.failed:
                self._names.forget(sid)
                yield UnsubscribeNamed(sid, ref=Ending(b""))

    def _command(self, word: bytes, line: bytes) -> Iterator[Command]:
        if _HTTP.match(line):
            yield Hangup("http on the subject protocol")
        elif word not in _KNOWN:
            yield Invalid(UnknownCommand(line.split(None, 1)[0]))
        elif self._unauthenticated and word not in _OPEN:
            yield Invalid(Unauthorized(), word.decode())
        elif word == b"PING":
            yield Ping()
        elif word == b"CONNECT":
            yield from self._connect(line)
        elif word == b"SUB":
            command = parse_subscribe(line, bool(self._options.headers))
            if isinstance(command, SubscribeNamed):
                subject = subject_of(command.tags).encode()
                self._names.note(command.name, subject, command.queue)
            yield command
        elif word == b"UNSUB":
            yield from self._unsubscribe(line)

    def _connect(self, line: bytes) -> Iterator[Command]:
        fields = line.split(None, 1)
        try:
            if len(fields) == 1:
                raise WrongArguments(line)
            options = parse_options(fields[1])
            if options.no_responders and not options.headers:
                raise InvalidField("no_responders requires headers")
        except CommandError as error:
            yield Invalid(error, "CONNECT")
            return
        # Set before it is handled: whether it is acknowledged is an option, too.
        self._options = options.without_credential()
        if self._unauthenticated or options.credential:
            yield Auth(options.credential)
        elif options.verbose:
            yield Ping(ref=Owed(1))
        if options.echo is not None:
            yield Echo(options.echo)

    def _unsubscribe(self, line: bytes) -> Iterator[Command]:
        command = parse_unsubscribe(line)
        if not isinstance(command, UnsubscribeNamed):
            yield command
            return
        sids = self._names.meant(command.name)
        ending = Ending(command.name, len(sids))
        for sid in sids:
            if command.most is None:
                self._names.forget(sid)
            else:
                self._names.end_after(sid, command.most)
            yield UnsubscribeNamed(sid, command.most, ref=ending)

    # writing

    def reply(self, command: Command, reply: Reply) -> bytes:
        match reply:
            case Failed(error):
                if isinstance(command, SubscribeNamed):
                    self._names.forget(command.name)
                return failure(command, error, self._options)
            case Done():
                return acknowledgement(command, self._options)
            case _:
                raise AssertionError(f"no line for {reply!r}")

    def notice(self, notice: Reply) -> bytes:
        match notice:
            case Revoked(tags=tags, name=sid):
                assert sid is not None
                queue = self._names.queue(sid)
                self._names.forget(sid)
                return error_line(subscription_violation(subject_of(tags), queue))
            case _:
                return b""


def _pausing(steps: Generator[None, None, bool]) -> Generator[Command, None, bool]:
    """What steps come to; others may have their turns between two of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)
        yield Pause()
