"""What is told of presence, in the two ways that dialects have: JSON objects, and lines.

As fields of an object:

    {"tags":["room:7"],"count":2,"listed":true,"present":[{"user":"1","since":1700000000.5}, …]}
    {"tags":["room:7"],"count":2345,"listed":false}
    {"tags":["room:7"],"count":3,"joined":[{"user":"2","client":"tab","since":…}],"left":[]}

As lines, with attendees as attributes are written elsewhere:

    present room:7 2 since=1700000000.5&user=1 client=tab&since=1700000009&user=2
    crowded room:7 2345
    joined room:7 3 since=1700000010&user=3
    left room:7 2 since=1700000000.5&user=1

A notice goes to all who watch, so each form of it is made once.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from mist.fields import write
from mist.message import format_tags
from mist.replies import Attendee, PresenceChanged, Present

__all__ = ["PRESENCE_WORDS", "Told", "as_fields", "as_lines", "formed"]

Told = Present | PresenceChanged

PRESENCE_WORDS: Final = (b"present", b"crowded", b"joined", b"left")
"""What the lines begin with."""


def formed(told: Told, name: str, make: Callable[[Told], bytes]) -> bytes:
    """A form, made where it isn't there yet.

    Args:
        name: of the dialect.
    """
    form = told.forms.get(name)
    if form is None:
        form = told.forms[name] = make(told)
    return form


def as_fields(told: Told) -> dict[str, object]:
    """The fields of an object; raw JSON for the longest of them."""
    fields: dict[str, object] = {"tags": sorted(told.tags), "count": told.count}
    if isinstance(told, PresenceChanged):
        fields["joined"] = list(map(_fields_of, told.joined))
        fields["left"] = list(map(_fields_of, told.left))
        return fields
    fields["listed"] = told.attendees is not None
    if told.attendees is not None:
        listed = formed(told, "", _listed)
        fields["present"] = msgspec.Raw(listed)
    return fields


def _listed(told: Told) -> bytes:
    assert isinstance(told, Present)
    return msgspec.json.encode(list(map(_fields_of, told.attendees or ())))


def _fields_of(attendee: Attendee) -> dict[str, object]:
    fields: dict[str, object] = {}
    if attendee.user:
        fields["user"] = attendee.user
    if attendee.client:
        fields["client"] = attendee.client
    fields["since"] = attendee.since
    return fields


def as_lines(told: Told) -> bytes:
    """Whole lines: one, or one each for those who have joined and those who have left."""
    return formed(told, "line", _lines)


def _lines(told: Told) -> bytes:
    tag_list = format_tags(told.tags)
    if isinstance(told, PresenceChanged):
        # The count stands as it is after each: those who joined are counted first.
        before = told.count + len(told.left)
        lines = [_line("joined", tag_list, before, told.joined)] if told.joined else []
        if told.left:
            lines.append(_line("left", tag_list, told.count, told.left))
        return b"".join(lines)
    if told.attendees is None:
        return b"crowded %b %d\n" % (tag_list.encode(), told.count)
    return _line("present", tag_list, told.count, told.attendees)


def _line(word: str, tag_list: str, count: int, attendees: Iterable[Attendee]) -> bytes:
    return f"{' '.join([word, tag_list, str(count), *map(_text_of, attendees)])}\n".encode()


def _text_of(attendee: Attendee) -> str:
    fields = {"since": (f"{attendee.since:.3f}".rstrip("0").rstrip("."),)}
    if attendee.user:
        fields["user"] = (attendee.user,)
    if attendee.client:
        fields["client"] = (attendee.client,)
    return write(fields)
