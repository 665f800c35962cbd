"""Who a message is for: the attributes of a session, and audiences that choose among them.

    Attributes    what is known of a session, from its token: client, user, groups, others
    Audience      which sessions a message is for; None in its place is everyone

An audience is an AND of ORs over attributes:

    clients AND (users OR groups) AND not except AND each other attribute

    what it says                    admits                          doesn't
    users=1;2                       user 1, user 2                  user 3, nobody known
    users=1&groups=3                user 1, whoever is in 3         user 2 in group 4
    clients=a&groups=3              client a in group 3             client b in 3, client a in 4
    groups=3&except=a               client b in 3, 3 with no id     client a, though it is in 3
    users=1&plan=pro                user 1 with plan pro            user 1 of whom no plan is known

Both have one text form, in which they are stored, travel on the line, and are compared:
fields joined by `&`, in each a name and its values joined by `;`. Values are percent-encoded,
and taken apart before they are decoded, so `%3B` is a letter of a value and never a second
one. Everything else that could be meant in two ways is refused rather than guessed: a name
given twice, a bare `,`, `+` or `=` in a value (`users=1,2`, `users=1;groups=3`), half an escape.
Nothing said is an error as well: a list of receivers that came out empty shall not reach everyone.

Ids are texts, compared whole; 7 in JSON is "7". Nothing here knows what they stand for.

One module, though a long one: both kinds have one grammar, and what reads it is private to them.
"""

import re
from collections.abc import Iterable, Mapping, Set
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Final, Self
from urllib.parse import quote, unquote_to_bytes

import attrs

from mist.errors import InvalidAudience

__all__ = [
    "MAX_AUDIENCE",
    "MAX_IDS",
    "NO_ATTRIBUTES",
    "Attributes",
    "Audience",
    "change_of_json",
    "format_change",
    "parse_change",
]

MAX_AUDIENCE = 16_384  # bytes of the text of an audience, or of a token's attributes
MAX_IDS = 1_000  # values in all, in either
_MAX_VALUE: Final = 255  # bytes of UTF-8 in one value

_NAME: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_WRITTEN: Final = re.compile(r"(?:[^\x00- \x7f-\x9f&;=,+%]|%[0-9A-Fa-f]{2})+")
# In an audience or of a session; the same in both, so that a name never means two things.
_OF_ATTRIBUTES: Final = frozenset({"client", "user", "groups"})
_RESERVED: Final = _OF_ATTRIBUTES | {"clients", "users", "except"}
_LONGEST_NAMES: Final = len("clients=&except=&groups=&users=")
_INTEGERS: Final = range(-(2**63), 2**64)

_Fields = dict[str, list[str]]


def _error(reason: str) -> InvalidAudience:
    # What is wrong, never what was written: that may be long, and of people.
    return InvalidAudience(f"Invalid audience or attributes: {reason}")


def _check(values: Iterable[str], others: Iterable[tuple[str, str]]) -> bool:
    """Look at every value and name. Whether their text is surely short enough.

    Making it costs more than all the rest, and those who read a million tokens don't need it.
    """
    count, most = 0, _LONGEST_NAMES
    for value in values:
        count += 1
        most += 3 * _check_value(value) + 1
    for name, value in others:
        _check_name(name)
        count += 1
        most += len(name) + 3 * _check_value(value) + 2
    _check_count(count)
    return most <= MAX_AUDIENCE


def _check_value(value: str) -> int:
    """Its bytes."""
    if not value:
        raise _error("an empty value")
    if not value.isprintable() and _CONTROL.search(value):
        raise _error("a control character in a value")
    size = _size(value)
    if size > _MAX_VALUE:
        raise _error(f"a value of more than {_MAX_VALUE} bytes")
    return size


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise _error("a name is 1 to 64 of a-z, 0-9, '_', '.' and '-'")
    if name in _RESERVED:
        raise _error(
            "an audience has clients, users, groups and except; a token has client, user and groups"
        )


def _check_count(count: int) -> None:
    if count > MAX_IDS:
        raise _error(f"more than {MAX_IDS} values")


def _check_text(text: str) -> None:
    if len(text) > MAX_AUDIENCE or _size(text) > MAX_AUDIENCE:
        raise _error(f"more than {MAX_AUDIENCE} bytes as text")


def _size(text: str) -> int:
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        raise _error("not Unicode") from None


def _write(fields: Mapping[str, Iterable[str]]) -> str:
    """The canonical text: sorted, without repeats, all but `A-Za-z0-9_.-~` encoded."""
    return "&".join(
        f"{name}={';'.join(quote(value, safe='') for value in sorted(set(fields[name])))}"
        for name in sorted(fields)
        if fields[name]
    )


def _read(text: str) -> _Fields:
    """The fields of a text, names as they are, values decoded. At least one of each."""
    _check_text(text)
    fields: _Fields = {}
    for field in text.split("&"):
        name, equals, values = field.partition("=")
        if not equals:
            raise _error("a field is name=value")
        if name in fields:
            raise _error("a name is given twice")
        written = values.split(";")
        _check_count(len(written))
        fields[name] = list(map(_decode, written))
    return fields


def _decode(written: str) -> str:
    if not _WRITTEN.fullmatch(written):
        raise _error(
            "a value has at least one character, "
            "and is percent-encoded where it isn't letters and digits"
        )
    try:
        return unquote_to_bytes(written).decode() if "%" in written else written
    except UnicodeDecodeError:
        raise _error("not UTF-8") from None


def _only(values: list[str]) -> str:
    if len(values) != 1:
        raise _error("this attribute has one value")
    return values[0]


def _ids(values: object) -> frozenset[str]:
    """What stands in the place of a list of ids, which mustn't be empty; none for None."""
    if values is None:
        return frozenset()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise _error("ids come in a list")
    found = frozenset(map(_id, values))
    if not found:
        raise _error("an empty list")
    return found


def _id(value: object) -> str:
    """A value as text. 7.0 is the same number as 7 in JSON; a bool is none but to Python."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # before `in`, which would count up to a float
    if isinstance(value, int) and not isinstance(value, bool) and value in _INTEGERS:
        return str(value)
    raise _error("an id is a text or a whole number of at most 64 bits")


def _refuse_null(mapping: Mapping[str, object]) -> None:
    """What isn't to be said is left out: a null is a value that somebody failed to find."""
    if any(value is None for value in mapping.values()):
        raise _error("null is no value")


def _frozen(others: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(sorted(others.items())))


@attrs.frozen
class Attributes:
    """What is known of a session: of its token, and never what it says itself, but `client`.

    Attributes:
        client: the id of one client, empty where it has none.
        user: whose token it is, empty where nobody is known.
        groups: that the user is in.
        others: by their names; read-only. `site` is one.

    Raises:
        InvalidAudience: a name or a value that can't be one, or too many or too much of them.
    """

    client: str = ""
    user: str = ""
    groups: frozenset[str] = frozenset()
    others: Mapping[str, str] = attrs.field(
        factory=dict,
        converter=_frozen,
        hash=False,  # a read-only dict has none; those that are equal still hash alike
    )

    def __attrs_post_init__(self) -> None:
        single = [value for value in (self.client, self.user) if value]
        if not _check([*single, *self.groups], self.others.items()):
            _check_text(self.text)

    @property
    def site(self) -> str:
        """The site that the token is bound to; empty where it is bound to none."""
        return self.others.get("site", "")

    @cached_property
    def text(self) -> str:
        """As it is stored with a token: `groups=a;b&plan=pro&user=1`. Empty where nothing is known.

        Canonical: equal attributes have equal texts.
        """
        fields: dict[str, Iterable[str]] = {name: (each,) for name, each in self.others.items()}
        fields["client"] = (self.client,) if self.client else ()
        fields["user"] = (self.user,) if self.user else ()
        fields["groups"] = self.groups
        return _write(fields)

    @classmethod
    def parse(cls, text: str) -> Self:
        """What a text says, its fields and values in any order. Nothing, where it is empty.

        Raises:
            InvalidAudience: it isn't one, or it is too long.
        """
        return cls.of_fields(_read(text)) if text else cls()

    @classmethod
    def of_fields(cls, fields: _Fields) -> Self:
        """From a text that has been taken apart. Takes out of `fields` what it takes in."""
        groups = frozenset(fields.pop("groups", ()))
        single = {name: _only(values) for name, values in fields.items()}
        return cls(single.pop("client", ""), single.pop("user", ""), groups, single)

    @classmethod
    def of_json(cls, mapping: Mapping[str, object]) -> Self:
        """From `{"user": 1, "groups": ["a", "b"], "plan": "pro"}`; values may be integers.

        Raises:
            InvalidAudience: an empty list, null, or anything that isn't attributes.
        """
        _refuse_null(mapping)
        groups = _ids(mapping.get("groups"))
        single = {name: _id(each) for name, each in mapping.items() if name != "groups"}
        for value in single.values():
            _check_value(value)
        return cls(single.pop("client", ""), single.pop("user", ""), groups, single)

    def amended(self, given: "Attributes", unset: Set[str] = frozenset()) -> Self:
        """These after a change: what is `given` is set, what is `unset` forgotten, the rest stays.

        Raises:
            InvalidAudience: they are too many now, or too long.
        """
        others = {**self.others, **given.others}
        return type(self)(
            "" if "client" in unset else given.client or self.client,
            "" if "user" in unset else given.user or self.user,
            frozenset() if "groups" in unset else given.groups or self.groups,
            {name: value for name, value in others.items() if name not in unset},
        )

    def as_json(self) -> dict[str, str | list[str]]:
        """What `of_json` reads; what isn't known is left out."""
        found: dict[str, str | list[str]] = {}
        if self.client:
            found["client"] = self.client
        if self.user:
            found["user"] = self.user
        if self.groups:
            found["groups"] = sorted(self.groups)
        return found | dict(self.others)


NO_ATTRIBUTES: Final = Attributes()
"""Of services, and of tokens that say nothing of whom they are for."""


def parse_change(text: str) -> tuple[Attributes, frozenset[str]]:
    """A change of attributes, `user=1&plan=`: what to set, and the names of what to unset.

    Raises:
        InvalidAudience: it isn't one, it is too long, or it says nothing.
    """
    _check_text(text)
    fields = text.split("&")
    # A value holds no `=` of its own, so at the end of a field it has nothing behind it.
    gone = [field[:-1] for field in fields if field.endswith("=")]
    rest = [field for field in fields if not field.endswith("=")]
    return _change(Attributes.of_fields(_read("&".join(rest))) if rest else NO_ATTRIBUTES, gone)


def change_of_json(mapping: Mapping[str, object]) -> tuple[Attributes, frozenset[str]]:
    """As `parse_change`, from `{"user": 1, "plan": null}`; this may say nothing."""
    gone = [name for name, value in mapping.items() if value is None]
    rest = {name: value for name, value in mapping.items() if value is not None}
    return _change(Attributes.of_json(rest), gone)


def format_change(given: Attributes, unset: Set[str]) -> str:
    """What `parse_change` reads."""
    return "&".join([*filter(None, [given.text]), *(f"{name}=" for name in sorted(unset))])


def _change(given: Attributes, gone: list[str]) -> tuple[Attributes, frozenset[str]]:
    unset = frozenset(gone)
    for name in unset - _OF_ATTRIBUTES:
        _check_name(name)
    if len(unset) < len(gone) or not unset.isdisjoint(given.as_json()):
        raise _error("a name is given twice")
    _check_count(len(unset))
    _check_text(format_change(given, unset))
    return given, unset


@attrs.frozen
class Audience:
    """Which sessions a message is for; see the module.

    Attributes:
        clients: one of these; any client where it is empty.
        users, groups: one of these users, or in one of these groups; where both are empty,
            whoever it is.
        excepted: none of these clients. A session without a client id is none of them.
        others: attributes that a session must have, each with that value; sorted by name.

    Raises:
        InvalidAudience: it says nothing, too much, or something that can't be.
    """

    clients: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    excepted: frozenset[str] = frozenset()
    others: tuple[tuple[str, str], ...] = ()

    def __attrs_post_init__(self) -> None:
        values = [*self.clients, *self.users, *self.groups, *self.excepted]
        if not values and not self.others:
            raise _error("it says nothing; leave it out for everyone")
        if not _check(values, self.others):
            _check_text(self.text)
        if list(self.others) != sorted(dict(self.others).items()):
            raise _error("names are sorted, each given once")

    def _lists(self) -> dict[str, frozenset[str]]:
        return {
            "clients": self.clients,
            "users": self.users,
            "groups": self.groups,
            "except": self.excepted,
        }

    def admits(self, attributes: Attributes) -> bool:
        """Whether a session with these attributes may get the message. O(groups + others).

        What isn't known of a session satisfies nothing.
        """
        client = attributes.client
        if (self.clients and client not in self.clients) or client in self.excepted:
            return False
        if self.users or self.groups:
            is_one = attributes.user in self.users  # empty, it is in no list: no id is empty
            if not is_one and self.groups.isdisjoint(attributes.groups):
                return False
        if not self.others:
            return True
        known = attributes.others
        return all(known.get(name) == value for name, value in self.others)

    @cached_property
    def text(self) -> str:
        """`clients=a&except=b&groups=3&plan=pro&users=1;2`: equal audiences have equal texts."""
        fields: dict[str, Iterable[str]] = {name: (each,) for name, each in self.others}
        return _write(fields | self._lists())

    @classmethod
    def parse(cls, text: str) -> "Audience":
        """What a text says, its fields and values in any order. Remembered for texts seen lately.

        Raises:
            InvalidAudience: it isn't one, says nothing, or is too long.
        """
        return _parse_short(text) if len(text) <= _SHORT else _parse_long(text)

    @classmethod
    def of(
        cls,
        clients: Iterable[str | int] | None = None,
        users: Iterable[str | int] | None = None,
        groups: Iterable[str | int] | None = None,
        excepted: Iterable[str | int] | None = None,
        others: Mapping[str, str | int] | None = None,
    ) -> Self:
        """Of ids that are texts or integers; a list that is None isn't there.

        Raises:
            InvalidAudience: an empty list, nothing at all, or see the class.
        """
        pairs = sorted((name, _id(value)) for name, value in (others or {}).items())
        return cls(_ids(clients), _ids(users), _ids(groups), _ids(excepted), tuple(pairs))

    @classmethod
    def of_json(cls, mapping: Mapping[str, object]) -> Self:
        """From `{"users": [1, 2], "except": ["a"], "plan": "pro"}`; values may be integers.

        Raises:
            InvalidAudience: an empty list, null, or anything that isn't an audience.
        """
        _refuse_null(mapping)
        clients, users, groups, excepted = (_ids(mapping.get(name)) for name in _LISTS)
        pairs = sorted((name, _id(each)) for name, each in mapping.items() if name not in _LISTS)
        return cls(clients, users, groups, excepted, tuple(pairs))

    def as_json(self) -> dict[str, str | list[str]]:
        """What `of_json` reads; ids are texts, sorted, and empty lists are left out."""
        lists = {name: sorted(values) for name, values in self._lists().items() if values}
        return lists | dict(self.others)


_LISTS: Final = ("clients", "users", "groups", "except")


def _parse(text: str) -> Audience:
    fields = _read(text)
    clients, users, groups, excepted = (frozenset(fields.pop(name, ())) for name in _LISTS)
    pairs = sorted((name, _only(values)) for name, values in fields.items())
    return Audience(clients, users, groups, excepted, tuple(pairs))


# What an audience holds is many times its text, so long ones get few places: some 30 MB in the
# first and 4 MB in the second is the worst that peers can bring about.
_SHORT: Final = 512  # characters
_parse_short = lru_cache(maxsize=1024)(_parse)
_parse_long = lru_cache(maxsize=16)(_parse)
