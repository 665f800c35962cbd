"""Fields: the text and JSON form that attributes and audiences share, and its limits.

    groups=a;b&plan=pro&users=1      fields joined by `&`; in each a name, and values joined by `;`

Values are percent-encoded, and taken apart before they are decoded, so `%3B` is a letter of a
value and never a second one. Everything else that could be meant in two ways is refused rather
than guessed: a name given twice, a bare `,`, `+` or `=` in a value (`users=1,2`,
`users=1;groups=3`), half an escape, a field without a value.

Ids are texts, compared whole; 7 in JSON is "7". Nothing here knows what they stand for.
"""

import re
from collections.abc import Iterable, Mapping, Sized
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from mist.errors import InvalidAudience

__all__ = [
    "MAX_AUDIENCE",
    "MAX_IDS",
    "OF_ATTRIBUTES",
    "Fields",
    "check",
    "check_count",
    "check_name",
    "check_text",
    "check_value",
    "id_text",
    "ids",
    "invalid",
    "only",
    "read",
    "refuse_null",
    "write",
]

MAX_AUDIENCE = 16_384  # bytes of the text of an audience, or of a token's attributes
MAX_IDS = 1_000  # values in all, in either
_MAX_VALUE: Final = 255  # bytes of UTF-8 in one value

_NAME: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_WRITTEN: Final = re.compile(r"(?:[^\x00- \x7f-\x9f&;=,+%]|%[0-9A-Fa-f]{2})+")
# Of an audience or of a session; the same in both, so that a name never means two things.
OF_ATTRIBUTES: Final = frozenset({"client", "user", "groups"})
_RESERVED: Final = OF_ATTRIBUTES | {"clients", "users", "except"}
_LONGEST_NAMES: Final = len("clients=&except=&groups=&users=")
_INTEGERS: Final = range(-(2**63), 2**64)

Fields = dict[str, list[str]]
"""Names as they are written, and their values, decoded."""


def invalid(reason: str) -> InvalidAudience:
    """The error for a text, a value or a list that breaks these rules."""
    # What is wrong, never what was written: that may be long, and of people.
    return InvalidAudience(f"Invalid audience or attributes: {reason}")


def check(values: Iterable[str], others: Iterable[tuple[str, str]]) -> bool:
    """Check every value and name, and say whether their text is surely short enough.

    Making the text to measure it costs more than all the rest, and who reads a million tokens
    needs none of it.

    Raises:
        InvalidAudience: one of them breaks the rules, or there are too many.
    """
    count, most = 0, _LONGEST_NAMES
    for value in values:
        count += 1
        most += 3 * check_value(value) + 1
    for name, value in others:
        check_name(name)
        count += 1
        most += len(name) + 3 * check_value(value) + 2
    check_count(count)
    return most <= MAX_AUDIENCE


def check_value(value: str) -> int:
    """Check a value, and return its bytes of UTF-8.

    Raises:
        InvalidAudience: it can't be one.
    """
    if not value:
        raise invalid("an empty value")
    if not value.isprintable() and _CONTROL.search(value):
        raise invalid("a control character in a value")
    size = _size(value)
    if size > _MAX_VALUE:
        raise invalid(f"a value of more than {_MAX_VALUE} bytes")
    return size


def check_name(name: str) -> None:
    """Check the name of an attribute that isn't client, user or groups."""
    if not _NAME.fullmatch(name):
        raise invalid("a name is 1 to 64 of a-z, 0-9, '_', '.' and '-'")
    if name in _RESERVED:
        raise invalid(
            "an audience has clients, users, groups and except; a token has client, user and groups"
        )


def check_count(count: int) -> None:
    """Check how many values there are in all."""
    if count > MAX_IDS:
        raise invalid(f"more than {MAX_IDS} values")


def check_text(text: str) -> None:
    """Check how long a text is."""
    if len(text) > MAX_AUDIENCE or _size(text) > MAX_AUDIENCE:
        raise invalid(f"more than {MAX_AUDIENCE} bytes as text")


def _size(text: str) -> int:
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        raise invalid("not Unicode") from None


def write(fields: Mapping[str, Iterable[str]]) -> str:
    """The canonical text: sorted, without repeats, all but `A-Za-z0-9_.-~` encoded."""
    return "&".join(
        f"{name}={';'.join(quote(value, safe='') for value in sorted(set(fields[name])))}"
        for name in sorted(fields)
        if fields[name]
    )


def read(text: str) -> Fields:
    """The fields of a text, names as they are, values decoded. At least one of each."""
    check_text(text)
    fields: Fields = {}
    for field in text.split("&"):
        name, equals, values = field.partition("=")
        if not equals:
            raise invalid("a field is name=value")
        if name in fields:
            raise invalid("a name is given twice")
        written = values.split(";")
        check_count(len(written))
        fields[name] = list(map(_decode, written))
    return fields


def _decode(written: str) -> str:
    if not _WRITTEN.fullmatch(written):
        raise invalid(
            "a value has at least one character, "
            "and is percent-encoded where it isn't letters and digits"
        )
    try:
        return unquote_to_bytes(written).decode() if "%" in written else written
    except UnicodeDecodeError:
        raise invalid("not UTF-8") from None


def only(values: list[str]) -> str:
    """The value of a field that has one."""
    if len(values) != 1:
        raise invalid("this attribute has one value")
    return values[0]


def ids(values: object) -> frozenset[str]:
    """Ids from what stands where a list of them belongs; none for None.

    An empty list is an error: receivers that came out empty shall not be everyone.
    """
    if values is None:
        return frozenset()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise invalid("ids come in a list")
    if isinstance(values, Sized):  # a body has room for a million, which would all be looked at
        check_count(len(values))
    found = frozenset(map(id_text, values))
    if not found:
        raise invalid("an empty list")
    return found


def id_text(value: object) -> str:
    """A value as text. 7.0 is the same number as 7 in JSON; a bool is none but to Python."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # before `in`, which would count up to a float
    if isinstance(value, int) and not isinstance(value, bool) and value in _INTEGERS:
        return str(value)
    raise invalid("an id is a text or a whole number of at most 64 bits")


def refuse_null(mapping: Mapping[str, object]) -> None:
    """Refuse a null, which is a value that somebody failed to find; else it would be left out."""
    if any(value is None for value in mapping.values()):
        raise invalid("null is no value")
