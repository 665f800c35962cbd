"""Line codec: encode the commands of the line protocol, decode its replies.

The caller has validated the commands' arguments.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from mist.attributes import Attributes, format_change
from mist.audience import Audience
from mist.client.errors import Unframable
from mist.commands import (
    AddTags,
    Auth,
    Command,
    Echo,
    Escape,
    Ids,
    Last,
    ListSubscriptions,
    ListTags,
    ListTokens,
    Register,
    RemoveTags,
    Resume,
    Revoke,
    RevokeIssued,
    SetAttributes,
    SetTerms,
    ShowAttributes,
    ShowTags,
    ShowToken,
    Since,
    Store,
    Subscribe,
    Unregister,
    Unsubscribe,
    UnwatchPresence,
    WatchPresence,
    Who,
)
from mist.errors import InvalidAudience, InvalidPosition, ProtocolViolation
from mist.message import TagSet, format_tags
from mist.protocols.line.lists import format_list, unwrapped
from mist.protocols.positions import MAX_ID, position_from_text
from mist.replies import (
    Connections,
    Done,
    Newest,
    Reply,
    Stored,
    Subscriptions,
    Tags,
    TokenAttributes,
    Tokens,
    TokenShown,
)
from mist.token_info import TokenInfo, TokenPage
from mist.wire import RECORD_START, record_head

__all__ = [
    "PublishLine",
    "decode_newest",
    "decode_number",
    "decode_reply",
    "decode_text",
    "encode_command",
]


class PublishLine:
    """A published message as a line; see `mist.client.publisher.PublishForm`."""

    def head(self, tags: TagSet, to: Audience | None = None) -> bytes:
        """The start of the line."""
        tag_list = format_tags(tags).encode()
        if to is None:
            return record_head(tag_list)
        return b"publish-to %b %b " % (to.text.encode(), tag_list)

    def message(self, head: bytes, data: bytes) -> bytes:
        """The line, LF included.

        Raises:
            Unframable: `data` holds LF.
        """
        if b"\n" in data:
            raise Unframable
        return b"%b%b\n" % (head, data)

    def check_store(self, message: bytes) -> None:
        """Nothing: the limit of a line has room for a longer command."""


def encode_command(command: Command) -> tuple[bytes | None, bytes]:
    """The first word of its reply (None: it has no reply), and its line, LF included."""
    word, line = _ENCODERS[type(command)](command)
    return word, (line.encode() if isinstance(line, str) else line) + b"\n"


_T = TypeVar("_T")
_Encode = Callable[..., tuple[bytes | None, str | bytes]]


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _store(command: Store) -> bytes:
    [(_, line, _)] = command.batch.runs
    return b"store " + line.removeprefix(RECORD_START).removesuffix(b"\n")


def _resume(command: Resume) -> bytes:
    assert command.since is not None
    listed = format_list([format_tags(tags).encode() for tags in command.alternatives])
    return b"resume %b %b" % (_position(command.since).encode(), listed)


def _position(since: Since) -> str:
    if since.latest:
        return f"latest={since.latest}"
    if since.last is not None:
        return f"-{since.last}"
    return f"{since.after}" if since.epoch is None else f"{since.epoch}:{since.after}"


def _register(command: Register) -> str:
    tags, terms = format_tags(command.tags), command.terms.text
    # Without any it is what servers of every version understand.
    word = f"register-with {terms}" if terms else "register"
    return f"{word} {tags} {command.token}"


_ENCODERS: Final[dict[type[Command], _Encode]] = {
    Auth: lambda it: (None, f"auth {it.credential}"),
    Escape: lambda it: (None, f"escape {_switch(it.on)}"),
    Echo: lambda it: (None, f"echo {_switch(it.on)}"),
    Subscribe: lambda it: (None, f"subscribe {format_tags(it.tags)}"),
    Unsubscribe: lambda it: (None, f"unsubscribe {format_tags(it.tags)}"),
    Register: lambda it: (None, _register(it)),
    SetTerms: lambda it: (None, f"set-terms {it.token} {it.terms.text}"),
    RevokeIssued: lambda it: (None, f"revoke-jwt {it.kind} {it.value}"),
    Unregister: lambda it: (None, f"unregister {it.token}"),
    Revoke: lambda it: (None, f"revoke {it.token}"),
    ShowToken: lambda it: (b"token", f"token {it.token}"),
    ListTokens: lambda it: (b"tokens", f"tokens {it.after}".rstrip()),
    AddTags: lambda it: (None, f"set {format_tags(it.tags)} {it.token}"),
    RemoveTags: lambda it: (None, f"unset {format_tags(it.tags)} {it.token}"),
    SetAttributes: lambda it: (
        None,
        f"set-attr {it.token} {format_change(it.attributes, it.unset)}",
    ),
    ShowAttributes: lambda it: (b"attr", f"attr {it.token}"),
    ShowTags: lambda it: (b"tags", f"tags {it.token}"),
    ListSubscriptions: lambda it: (b"list", "list"),
    ListTags: lambda it: (b"listall", "listall"),
    Who: lambda it: (b"who", "who"),
    # What is told comes as any other notice, so the fence is the reply.
    WatchPresence: lambda it: (None, f"presence {format_tags(it.tags)}"),
    UnwatchPresence: lambda it: (None, f"unpresence {format_tags(it.tags)}"),
    Ids: lambda it: (None, f"ids {_switch(it.on)}"),
    Last: lambda it: (b"last", "last"),
    Store: lambda it: (b"stored", _store(it)),
    Resume: lambda it: (None, _resume(it)),
}


def decode_reply(command: Command, rest: bytes) -> Reply:
    """Decode what follows the first word of a reply.

    Raises:
        ProtocolViolation: it can't be the reply to this command.
    """
    match command:
        case ListSubscriptions():
            return Subscriptions(_items(rest))
        case ListTags():
            return Tags(frozenset(map(decode_text, _items(rest))))
        case ShowTags(token=token):
            listed = _items(rest.removeprefix(token.encode() + b" "))
            return Tags(frozenset(decode_text(listed[0]).split(",")) if listed else frozenset())
        case ShowAttributes(token=token):
            text = decode_text(rest.removeprefix(token.encode() + b" "))
            try:
                return TokenAttributes(Attributes.parse(text))
            except InvalidAudience:
                raise ProtocolViolation("the server sent invalid attributes") from None
        case ShowToken():
            return TokenShown(_decoded(rest, TokenInfo))
        case ListTokens():
            return Tokens(_decoded(rest, TokenPage))
        case Who():
            try:
                connected, lifetime = map(int, rest.split(b" "))
            except ValueError:
                raise ProtocolViolation("the server sent invalid numbers") from None
            return Connections(connected, lifetime)
        case Last():
            return decode_newest(rest)
        case Store():
            return Stored(decode_number(rest))
        case _:
            return Done()


def _decoded(rest: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(rest, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProtocolViolation("the server sent an invalid token") from None


def decode_newest(rest: bytes) -> Newest:
    """An epoch and an id. Raises `ProtocolViolation` at anything else."""
    epoch, _, number = rest.rpartition(b" ")
    try:
        # The epoch is sent back in a later resume, so it must be valid on a line.
        found = position_from_text(epoch + b":" + number)
    except InvalidPosition:
        raise ProtocolViolation("the server sent an invalid position") from None
    return Newest(found.epoch or "", found.after or 0)


def decode_number(raw: bytes) -> int:
    """A message's id. Raises `ProtocolViolation` at anything else."""
    try:
        number = int(raw)
    except ValueError:
        number = 0
    if not 0 < number <= MAX_ID:
        raise ProtocolViolation("the server sent an invalid id")
    return number


def _items(listed: bytes) -> Sequence[bytes]:
    return unwrapped([item for item in listed.split(b" ") if item])


def decode_text(raw: bytes) -> str:
    """Decode text that should be UTF-8; invalid bytes are replaced."""
    return raw.decode("utf-8", "replace")
