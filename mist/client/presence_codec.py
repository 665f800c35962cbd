"""Presence as servers write it, on lines and in frames, to what it says."""

from collections.abc import Sequence
from typing import Any

from mist.client.line_codec import decode_text
from mist.errors import InvalidAudience, ProtocolViolation
from mist.fields import only, read
from mist.message import TagSet
from mist.replies import Attendee, PresenceChanged, Present

__all__ = ["PRESENCE_WORDS", "read_presence_frame", "read_presence_line"]

PRESENCE_WORDS = frozenset({b"present", b"crowded", b"joined", b"left"})
"""What lines of presence begin with."""


def read_presence_line(word: bytes, rest: bytes) -> Present | PresenceChanged:
    """What a line says.

    Raises:
        ProtocolViolation: it isn't one.
    """
    tag_list, *fields = decode_text(rest).split(" ")
    try:
        count, *entries = fields
        attendees = list(map(_attendee, entries))
        number = _count(int(count))
    except (InvalidAudience, ValueError):
        raise _invalid() from None
    tags = frozenset(tag_list.split(","))
    match word:
        case b"present":
            return Present(tags, number, attendees)
        case b"crowded":
            return Present(tags, number, None)
        case b"joined":
            return PresenceChanged(tags, attendees, [], number)
        case _:
            return PresenceChanged(tags, [], attendees, number)


def _attendee(text: str) -> Attendee:
    fields = read(text)
    user, client = fields.pop("user", [""]), fields.pop("client", [""])
    return Attendee(only(user), only(client), float(only(fields.pop("since"))))


def read_presence_frame(frame: dict[str, Any]) -> Present | PresenceChanged:
    """What a frame says. Raises as the line, or `KeyError`, `TypeError`, `ValueError`."""
    tags: TagSet = frozenset(frame["tags"])
    count = _count(frame["count"])
    if "joined" in frame:
        return PresenceChanged(tags, _listed(frame["joined"]), _listed(frame["left"]), count)
    return Present(tags, count, _listed(frame["present"]) if frame["listed"] else None)


def _listed(entries: list[dict[str, Any]]) -> Sequence[Attendee]:
    return [
        Attendee(str(each.get("user", "")), str(each.get("client", "")), float(each["since"]))
        for each in entries
    ]


def _count(number: int) -> int:
    if type(number) is not int or number < 0:
        raise _invalid()
    return number


def _invalid() -> ProtocolViolation:
    return ProtocolViolation("the server sent an invalid list of presence")
