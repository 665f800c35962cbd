"""Selections of the log as people and programs write them: by tags, and from a time.

    a,b; c                  what carries a and b, or c
    /foo; .a.*              what is published to a topic or below it, or to such a subject
    2026-11-21T12:00:00Z    a moment
    1795262400000           the same

`GET /v1/log` of a server and the jobs that read archives take the same text, so that what was tried
on one works on the other.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from mist.errors import EmptyTag, TooManySubscriptions
from mist.message import ASK, TagSet, parse_tags
from mist.protocols.positions import MAX_ALTERNATIVES

__all__ = ["parse_alternative", "parse_moment", "split_alternatives"]

_BLANK: Final = " \t\r\n"  # what no tag has in it
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_DIGITS: Final = 15  # of milliseconds, which is beyond the year 9999


def split_alternatives(text: str) -> list[str]:
    """The parts of `a,b; c`, each for `parse_alternative`.

    Blanks around them don't count, and neither does a last `;`. `a;;b` is refused: nobody means
    an empty alternative, which would match all.

    Raises:
        EmptyTag: an empty one, or none at all.
        TooManySubscriptions: more than `MAX_ALTERNATIVES`.
    """
    parts = [part.strip(_BLANK) for part in text.split(";")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if not all(parts):
        raise EmptyTag
    if len(parts) > MAX_ALTERNATIVES:
        raise TooManySubscriptions
    return parts


def parse_alternative(text: str, limit: int) -> TagSet:
    """`a, b` → {a, b}: what is wanted has all of these. As subscriptions ask for them.

    Args:
        limit: distinct tags.

    Raises:
        EmptyTag, InvalidTag, TooManyTags: as `mist.message.parse_tags`.
    """
    return parse_tags((tag.strip(_BLANK) for tag in text.split(",")), limit, ASK)


def parse_moment(text: str) -> int:
    """Microseconds since 1970 of a time in ISO 8601, or in milliseconds since 1970.

    `2026-11-21`, `2026-11-21T12:00:00Z`, `2026-11-21 13:00+01:00`, `1795262400000`. Without an
    offset it is UTC, whatever the machine's zone, as everything in a log is.

    Raises:
        ValueError: neither of these, or outside the years 1970 to 9999.
    """
    words = text.strip(_BLANK)
    try:
        if words.isascii() and words.isdecimal() and len(words) <= _DIGITS:
            moment = _BEGIN + int(words) * _MILLISECOND
        else:
            moment = datetime.fromisoformat(words)
            moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment < _BEGIN:
        raise ValueError(
            f"not a time: {text!r}; try 2026-11-21T12:00:00Z or milliseconds since 1970"
        )
    return (moment - _BEGIN) // _MICROSECOND
