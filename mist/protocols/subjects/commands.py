"""One control line of the NATS protocol to what it means. No I/O, and no payloads.

Fields stand between spaces or tabs, as many as there may be; names of commands are taken in any
case. What is wrong with a line is said in rtmb's words where it has some for it.
"""

import re
from functools import lru_cache
from typing import Final

import attrs
import msgspec

from mist.addresses import MAX_TOKENS
from mist.commands import Command, Invalid, SubscribeNamed, UnsubscribeNamed
from mist.errors import CommandError, DataTooLong, InvalidTag, WrongArguments
from mist.message import ASK, MAX_TAG, PUBLISH, check_tag
from mist.protocols.subjects.forms import subject_form
from mist.wire import record_head

__all__ = [
    "Announced",
    "InvalidField",
    "InvalidSubject",
    "Options",
    "are_headers",
    "parse_announcement",
    "parse_options",
    "parse_subscribe",
    "parse_unsubscribe",
    "remembered_announcement",
]

_MAX_DIGITS: Final = 15  # int() of many digits is slow
_REMEMBERED: Final = 4096  # lines; a publisher uses few
_REMEMBERED_BYTES: Final = 256  # in such a line
_NUMBER: Final = re.compile(rb"-?[0-9]{1,%d}" % _MAX_DIGITS)
_PLAIN_REPLY: Final = re.compile(rb"(?=.{1,254}\Z)[\w$-]+(?:\.[\w$-]+){0,19}")  # most are
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_HEAD: Final = re.compile(rb"NATS/1\.[0-9]")


class InvalidSubject(InvalidTag):
    """A subject that can't be published or subscribed to; the text says which rule it breaks.

    Attributes:
        subject: as it was written.
        queue: of the subscription; empty for none.
        is_reply: whether answers were to go to it.
    """

    def __init__(self, rule: str, subject: bytes) -> None:
        super().__init__(rule)
        self.subject = subject
        self.queue = b""
        self.is_reply = False


class InvalidField(CommandError):
    """A field of a control line that isn't what it should be; the text says why."""

    code = "invalid_field"


# CONNECT


class Options(msgspec.Struct, frozen=True):
    """The options of a CONNECT; others are ignored.

    Attributes:
        verbose: whether commands are acknowledged with `+OK`. Where it isn't given, they are, but
            the CONNECT itself isn't.
        echo: whether the client gets what it publishes itself.
        headers: whether it understands headers.
        no_responders: whether it is told that a request had no recipients.
        lang, version: of the client's library.
        auth_token: the secret or a token.
        password: the same, from a client that sends a user with it; the user is ignored.
    """

    verbose: bool | None = None
    echo: bool | None = None
    headers: bool | None = None
    no_responders: bool | None = None
    lang: object = None
    version: object = None
    auth_token: str | None = None
    password: str | None = msgspec.field(default=None, name="pass")

    @property
    def is_verbose(self) -> bool:
        """Whether the commands after the CONNECT are acknowledged."""
        return self.verbose is not False

    @property
    def is_nats(self) -> bool:
        """Whether the client is one of NATS: those say what library they are, rtmb's don't."""
        return self.lang is not None or self.version is not None

    @property
    def credential(self) -> str:
        """The secret or token; empty where there is none."""
        return self.auth_token or self.password or ""

    def without_credential(self) -> "Options":
        """The same without secret or token, which are not kept."""
        return msgspec.structs.replace(self, auth_token=None, password=None)


_read_options: Final = msgspec.json.Decoder(Options).decode


def parse_options(raw: bytes) -> Options:
    """What stands behind CONNECT.

    Raises:
        InvalidField: it is no object in JSON, or an option is of another type.
    """
    try:
        return _read_options(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Not chained: those errors may quote the credential.
        raise InvalidField("options are not a JSON object of the right types") from None


# SUB and UNSUB


def parse_subscribe(line: bytes, headers: bool) -> Command:
    """`SUB subject [queue] sid`; `Invalid` where it isn't that.

    Args:
        headers: whether the client understands headers.
    """
    fields = line.split()[1:]
    if len(fields) < 2:
        return Invalid(WrongArguments(line), "SUB")
    if len(fields) > 3:
        return Invalid(InvalidField("too many arguments"), "SUB")
    sid = fields[-1]
    try:
        tag = _subject_tag(fields[0], asked=True)
        queue = _name(fields[1], "queue") if len(fields) == 3 else ""
        _name(sid, "sid")
    except InvalidSubject as error:
        error.queue = fields[1] if len(fields) == 3 else b""
        return Invalid(error, "SUB")
    except CommandError as error:
        return Invalid(error, "SUB")
    return SubscribeNamed(frozenset((tag,)), sid, subject_form(sid, headers), queue)


def parse_unsubscribe(line: bytes) -> Command:
    """`UNSUB sid [max]`; `Invalid` where it isn't that. Without a max, or with 0, it is now."""
    fields = line.split()[1:]
    if not fields:
        return Invalid(WrongArguments(line), "UNSUB")
    if len(fields) > 2:
        return Invalid(InvalidField("too many arguments"), "UNSUB")
    most = 0
    if len(fields) == 2 and (not _NUMBER.fullmatch(fields[1]) or (most := int(fields[1])) < 0):
        return Invalid(InvalidField("max is not a number"), "UNSUB")
    return UnsubscribeNamed(fields[0], most or None)


def _name(raw: bytes, what: str) -> str:
    """A sid or the name of a queue: up to 255 bytes of UTF-8 without control characters."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise InvalidField(f"{what} is not UTF-8") from None
    if len(raw) > MAX_TAG or not name.isprintable():
        raise InvalidField(f"{what} is too long or not printable")
    return name


def _subject_tag(raw: bytes, *, asked: bool) -> str:
    """The tag that stands for a subject.

    Args:
        asked: whether it may be a pattern.

    Raises:
        InvalidSubject: with the reason.
    """
    rule = _broken_rule(raw, asked)
    if rule:
        raise InvalidSubject(rule, raw)
    return check_tag(f".{raw.decode()}", ASK if asked else PUBLISH)


def _broken_rule(raw: bytes, asked: bool) -> str:
    """The rule that a subject breaks, NATS's or one of mist's own; empty where it is valid."""
    try:
        subject = raw.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    tokens = subject.split(".")
    if "" in tokens:
        return f"empty token in subject at position {tokens.index('')}"
    if asked and ">" in tokens[:-1]:
        return "'>' wildcard must be last token"
    if not asked and ("*" in tokens or ">" in tokens):
        return "wildcards are not allowed"
    if len(tokens) > MAX_TOKENS:
        return f"more than {MAX_TOKENS} tokens"
    if len(raw) >= MAX_TAG:
        return f"longer than {MAX_TAG - 1} bytes"
    if "," in subject:
        return "commas are not allowed"
    return "control characters are not allowed" if _CONTROL.search(subject) else ""


# PUB and HPUB


@attrs.frozen
class Announced:
    """A PUB or HPUB whose payload follows.

    Attributes:
        name: of the command.
        size: bytes of payload, its end not counted, headers included.
        tag_list: what the subject is as a tag list.
        head: with which the message begins as a line.
        headers: bytes of it that are headers.
        reply: the subject for answers; empty without one.
        error: what is wrong with it, though its payload can be told.
        plain: whether it is data for a subject and nothing else.
    """

    name: str
    size: int
    tag_list: bytes = b""
    head: bytes = b""
    headers: int = 0
    reply: bytes = b""
    error: CommandError | None = None
    plain: bool = False


def parse_announcement(line: bytes, limit: int) -> Announced | Invalid:
    """`PUB subject [reply] size` or `HPUB subject [reply] header-size size`.

    Args:
        line: of one of these two; may have a CR at its end.
        limit: bytes of payload.

    Returns:
        `Invalid` where it can't be told how much payload follows.
    """
    # A request's subject for answers is its own, so that its line doesn't come twice.
    if len(line) <= _REMEMBERED_BYTES and len(line.split()) == 3:
        return remembered_announcement(line, limit)
    return _parse_announcement(line, limit)


def _parse_announcement(line: bytes, limit: int) -> Announced | Invalid:
    word, *fields = line.split()
    name = word.upper().decode()
    numbers = 2 if name == "HPUB" else 1
    if len(fields) <= numbers:
        return Invalid(WrongArguments(line), name)
    if len(fields) > numbers + 2:
        return Invalid(InvalidField("too many arguments"), name)
    if not all(map(_NUMBER.fullmatch, fields[-numbers:])):
        return Invalid(InvalidField("message length is not a number"), name)
    sizes = [int(field) for field in fields[-numbers:]]
    if min(sizes) < 0:
        return Invalid(DataTooLong(f"message length {min(sizes)} out of bounds"), name)
    size = sizes[-1]
    subject, *replies = fields[:-numbers]
    try:
        if size > limit:
            raise DataTooLong(f"message length {size} out of bounds")
        if sizes[0] > size:
            raise InvalidField("headers are longer than the message")
        tag_list = _published_tag(subject)
        if replies and not _PLAIN_REPLY.fullmatch(replies[0]):
            # Who answers would publish to it, and would be the one whose fault it is.
            _check_reply(replies[0])
    except CommandError as error:
        return Announced(name, size, error=error.as_value())  # remembered with the line
    return Announced(
        name,
        size,
        tag_list,
        record_head(tag_list),
        headers=sizes[0] if numbers == 2 else 0,
        reply=replies[0] if replies else b"",
        plain=numbers == 1 and not replies,
    )


def _check_reply(subject: bytes) -> None:
    try:
        _subject_tag(subject, asked=False)
    except InvalidSubject as error:
        error.is_reply = True
        raise


@lru_cache(_REMEMBERED)
def _published_tag(subject: bytes) -> bytes:
    return _subject_tag(subject, asked=False).encode()


remembered_announcement: Final = lru_cache(_REMEMBERED)(_parse_announcement)
"""As `parse_announcement`, for lines that are short; what it gives is nobody's to change."""


def are_headers(block: bytes) -> bool:
    """Whether these bytes are a block of headers, as far as its recipients rely on that."""
    return _HEAD.match(block) is not None and block.endswith(b"\r\n\r\n")
