"""One line of the line protocol to one command, publishes that keep the rules left out."""

from collections.abc import Callable
from typing import Final

from mist.attributes import parse_change
from mist.audience import Audience
from mist.commands import (
    AddTags,
    Auth,
    Command,
    Echo,
    Escape,
    Ids,
    Invalid,
    Last,
    ListSubscriptions,
    ListTags,
    ListTokens,
    Ping,
    Publish,
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
    Store,
    Subscribe,
    Unregister,
    Unsubscribe,
    UnwatchPresence,
    WatchPresence,
    Who,
)
from mist.errors import (
    CommandError,
    DataTooLong,
    ExpectedOnOff,
    InvalidAudience,
    InvalidName,
    InvalidRevocation,
    InvalidToken,
    TooManyTags,
    UnknownCommand,
    WrongArguments,
)
from mist.message import ASK, GRANT, Envelope, Limits, check_token, parse_tag_list
from mist.protocols.line.lists import unwrapped
from mist.protocols.positions import LATEST, MAX_ALTERNATIVES, start_from_text
from mist.terms import Terms
from mist.wire import Batch, record

__all__ = ["WORDS", "parse_command"]

_LATEST: Final = b"since latest by "  # as people write it

_Fields = list[bytes]
_Make = Callable[[Limits, _Fields], Command]


def parse_command(line: bytes, limits: Limits) -> Command:
    """The command a line means, its LF cut off; `Invalid` where it means none."""
    fields = line.split(b" ", 2)
    if not (fields[0] in _DATA_COMMANDS and len(fields) == 3):
        line = line.removesuffix(b"\r")
        fields = line.split(b" ", 2)
    parse = WORDS.get(fields[0])
    name = fields[0].decode("utf-8", "replace")
    try:
        if parse is None:
            return Invalid(UnknownCommand(line), name)
        counts, make = parse
        if len(fields) - 1 not in counts:
            return Invalid(WrongArguments(line), name)
        return make(limits, fields[1:])
    except WrongArguments:  # counted by `make`, which doesn't have the line
        return Invalid(WrongArguments(line), name)
    except CommandError as error:
        return Invalid(error, name)


def _token(raw: bytes) -> str:
    try:
        return check_token(raw.decode())
    except UnicodeDecodeError:
        raise InvalidToken from None


def _switch(raw: bytes) -> bool:
    if raw not in (b"on", b"off"):
        raise ExpectedOnOff
    return raw == b"on"


def _publish(limits: Limits, fields: _Fields) -> Command:
    # Comes here only when it breaks a rule; in the order in which rules are looked at.
    parse_tag_list(fields[0], limits.message_tags)
    raise DataTooLong


def _subscribe(limits: Limits, fields: _Fields) -> Command:
    tags = parse_tag_list(fields[0], limits.subscription_tags, ASK)
    if len(fields) == 2:
        place = fields[1]
        if place.startswith(_LATEST):
            place = LATEST + place.removeprefix(_LATEST)
        return Resume([tags], start_from_text(place))
    return Subscribe(tags)


def _unsubscribe(limits: Limits, fields: _Fields) -> Command:
    return Unsubscribe(parse_tag_list(fields[0], limits.subscription_tags, ASK))


def _on_presence(command: type[WatchPresence | UnwatchPresence]) -> _Make:
    def make(limits: Limits, fields: _Fields) -> Command:
        return command(parse_tag_list(fields[0], limits.subscription_tags, ASK))

    return make


def _with_tags(command: type[Register | AddTags | RemoveTags]) -> _Make:
    def make(limits: Limits, fields: _Fields) -> Command:
        tags = parse_tag_list(fields[0], limits.token_tags, GRANT)
        return command(_token(fields[1]), tags)

    return make


def _set_attributes(limits: Limits, fields: _Fields) -> Command:
    token = _token(fields[0])
    try:
        return SetAttributes(token, *parse_change(fields[1].decode()))
    except UnicodeDecodeError:
        raise InvalidAudience from None


def _terms(raw: bytes) -> Terms:
    try:
        return Terms.parse(raw.decode())
    except UnicodeDecodeError:
        raise InvalidName from None


def _register_with(limits: Limits, fields: _Fields) -> Command:
    """`{terms} {tags} {token}`: the last two are one field so far."""
    tag_list, blank, token = fields[1].partition(b" ")
    if not blank:
        raise WrongArguments
    tags = parse_tag_list(tag_list, limits.token_tags, GRANT)
    return Register(_token(token), tags, _terms(fields[0]))


def _set_terms(limits: Limits, fields: _Fields) -> Command:
    return SetTerms(_token(fields[0]), _terms(fields[1]))


def _revoke_issued(limits: Limits, fields: _Fields) -> Command:
    """`jti {id}` or `sub {user}`: all of the rest of the line."""
    try:
        return RevokeIssued(fields[0].decode(), fields[1].decode())
    except UnicodeDecodeError:
        raise InvalidRevocation from None


def _store(limits: Limits, fields: _Fields) -> Command:
    # Looked at before the data's size, as in a publish: a bad tag is told of first.
    parse_tag_list(fields[0], limits.message_tags)
    if len(fields[1]) > limits.data:
        raise DataTooLong
    return Store(Batch((fields[0],), (record(fields[0], fields[1]), 1)))


def _publish_to(limits: Limits, fields: _Fields) -> Command:
    """`{audience} {tags} {data}`: the last two are one field so far."""
    tag_list, blank, data = fields[1].partition(b" ")
    if not blank:
        raise WrongArguments
    try:
        audience = Audience.parse(fields[0].decode())
    except UnicodeDecodeError:
        raise InvalidAudience from None
    parse_tag_list(tag_list, limits.message_tags)
    if len(data) > limits.data:
        raise DataTooLong
    whole = record(tag_list, data), 1
    return Publish(Batch((tag_list,), whole, envelope=Envelope(audience=audience)))


def _resume(limits: Limits, fields: _Fields) -> Command:
    """`a,b c …`, as `list` prints it: each a field of its own, and counted as one."""
    items = fields[1].split(b" ", MAX_ALTERNATIVES)
    if len(items) > MAX_ALTERNATIVES or not all(items):
        raise WrongArguments
    if fields[1].count(b",") > MAX_ALTERNATIVES * limits.subscription_tags:
        raise TooManyTags(limits.subscription_tags)  # counted before any is looked at
    # No set has more tags than bytes, and one: how many they are is looked at last, when the
    # tags of the whole line are known to be good.
    alternatives = [parse_tag_list(item, len(item) + 1, ASK) for item in unwrapped(items)]
    if max(map(len, alternatives)) > limits.subscription_tags:
        raise TooManyTags(limits.subscription_tags)
    return Resume(alternatives, start_from_text(fields[0]))


_DATA_COMMANDS: Final = frozenset({b"publish", b"publish-to", b"store"})

# word: (allowed numbers of arguments, how a command is made of them). The last argument has
# all that is left of the line, so `resume` has two, and looks itself at what is in the second.
WORDS: Final[dict[bytes, tuple[tuple[int, ...], _Make]]] = {
    b"ping": ((0,), lambda limits, fields: Ping()),
    b"publish": ((2,), _publish),
    b"subscribe": ((1, 2), _subscribe),
    b"unsubscribe": ((1,), _unsubscribe),
    b"list": ((0,), lambda limits, fields: ListSubscriptions()),
    b"listall": ((0,), lambda limits, fields: ListTags()),
    b"presence": ((1,), _on_presence(WatchPresence)),
    b"unpresence": ((1,), _on_presence(UnwatchPresence)),
    b"who": ((0,), lambda limits, fields: Who()),
    b"auth": ((1,), lambda limits, fields: Auth(fields[0].decode("utf-8", "replace"))),
    b"echo": ((1,), lambda limits, fields: Echo(_switch(fields[0]))),
    b"escape": ((1,), lambda limits, fields: Escape(_switch(fields[0]))),
    b"register": ((2,), _with_tags(Register)),
    b"unregister": ((1,), lambda limits, fields: Unregister(_token(fields[0]))),
    b"revoke": ((1,), lambda limits, fields: Revoke(_token(fields[0]))),
    b"token": ((1,), lambda limits, fields: ShowToken(_token(fields[0]))),
    b"tokens": ((0, 1), lambda limits, fields: ListTokens(*map(_token, fields))),
    b"set": ((2,), _with_tags(AddTags)),
    b"unset": ((2,), _with_tags(RemoveTags)),
    b"set-attr": ((2,), _set_attributes),
    b"register-with": ((2,), _register_with),
    b"set-terms": ((2,), _set_terms),
    b"revoke-jwt": ((2,), _revoke_issued),
    b"attr": ((1,), lambda limits, fields: ShowAttributes(_token(fields[0]))),
    b"tags": ((1,), lambda limits, fields: ShowTags(_token(fields[0]))),
    b"ids": ((1,), lambda limits, fields: Ids(_switch(fields[0]))),
    b"publish-to": ((2,), _publish_to),
    b"store": ((2,), _store),
    b"last": ((0,), lambda limits, fields: Last()),
    b"resume": ((2,), _resume),
}
