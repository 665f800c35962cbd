"""Tags, tag sets and messages: their rules and limits.

A *tag* is a short text. A *message* carries a set of tags T and opaque data. A
*subscription* names a set of tags S. It matches exactly when S ⊆ T:

    subscription {a, b}   message {a, b, c}   matches
    subscription {a, b}   message {a}         does not
    subscription {a}      message {ab}        looks as if it should, but does not: tags are
                                              compared whole, never by prefix

A *tag list* is the wire form of a tag set: tags joined by commas, UTF-8, in any order and
with repeats. Its *canonical* form is sorted bytewise without repeats; code point order is
the same as the byte order of UTF-8, so `sorted()` on `str` is that order.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs

from mist.addresses import (
    EVERYTHING,
    MAX_LEVELS,
    MAX_TOKENS,
    asks_well,
    grants_well,
    is_subject,
    publishes_well,
)
from mist.audience import Audience
from mist.errors import CommandError, EmptyTag, InvalidTag, InvalidToken, TooManyTags

__all__ = [
    "ASK",
    "EVENTS",
    "GRANT",
    "MAX_CREDENTIAL",
    "MAX_DATA",
    "MAX_MESSAGE_TAGS",
    "MAX_REPEATS",
    "MAX_SUBSCRIPTION_TAGS",
    "MAX_TAG",
    "MAX_TOKEN",
    "MAX_TOKEN_TAGS",
    "NOT_IN_TAGS",
    "PUBLISH",
    "Envelope",
    "Limits",
    "Message",
    "TagSet",
    "TagUse",
    "check_tag",
    "check_token",
    "explain_invalid_tag",
    "format_tags",
    "has_more_strings",
    "is_tag_pattern",
    "occurs_more",
    "parse_tag_list",
    "parse_tags",
]

MAX_TAG = 255  # bytes of UTF-8 in one tag
MAX_TOKEN = 255  # bytes of UTF-8 in one token that is registered
MAX_CREDENTIAL = 8_192  # bytes of one that is issued elsewhere, a JWT
MAX_DATA = 1_048_576  # bytes of data in one message
MAX_MESSAGE_TAGS = 64  # distinct tags in one message
MAX_SUBSCRIPTION_TAGS = 16  # distinct tags in one subscription
MAX_TOKEN_TAGS = 64  # distinct tags in one token command
MAX_REPEATS = 16  # times as many tags as are allowed distinct ones, above which none is looked at

_LOOK: Final = 16_384  # bytes that marks are counted in at a time
_SHOWN: Final = 60  # characters of a tag in an error

EVENTS: Final = "mist:"
"""With which the tags of a server's own events begin: no token may get or publish what has them."""

TagSet = frozenset[str]
"""A message's or a subscription's tags. Never empty where it came through the parsers here."""


@attrs.frozen
class Limits:
    """How large what a peer sends may be. Every endpoint checks the same object.

    Attributes:
        data: bytes of data in a message.
        line: bytes of one line of a text protocol, its LF not counted.
        message_tags: distinct tags in a message.
        subscription_tags: distinct tags in a subscription.
        token_tags: distinct tags in one token command.
        frame: bytes of one WebSocket message sent to the server.
        matches: distinct tag sets subscribed to that one message may match.
    """

    data: int = MAX_DATA
    line: int = MAX_DATA + 65_536
    message_tags: int = MAX_MESSAGE_TAGS
    subscription_tags: int = MAX_SUBSCRIPTION_TAGS
    token_tags: int = MAX_TOKEN_TAGS
    frame: int = 131_072
    matches: int = 250_000


class TagUse:
    """What a tag is used for; decides which beginnings and ends are reserved.

    PUBLISH: may not end in `*` (a grant's prefix mark), nor begin with `..` (derived tags) or
    `>` (a right to publish). An address is one that something can be published to.
    ASK (subscribe): the same, but for addresses that are patterns; and `*` alone is everything.
    GRANT (token commands): may not begin with `..`; both marks keep their meaning.
    """

    __slots__ = ("address", "reserved_ends", "reserved_starts")

    def __init__(
        self,
        reserved_starts: tuple[str, ...],
        reserved_ends: tuple[str, ...],
        address: Callable[[str], bool],
    ) -> None:
        self.reserved_starts = reserved_starts
        self.reserved_ends = reserved_ends
        self.address = address

    def allows(self, tag: str) -> bool:
        """Whether a tag that isn't empty breaks none of its rules."""
        if tag.startswith(_MARKS):
            # What ends in a star is a subject's pattern, or a grant's prefix.
            fits = self.address(tag)
            return fits and (tag[0] == "." or not tag.endswith(self.reserved_ends))
        return not (tag.startswith(self.reserved_starts) or tag.endswith(self.reserved_ends))


_MARKS: Final = ("/", ".", "=", ">")  # with which an address begins, or the right to publish to one

PUBLISH = TagUse(("..", ">"), ("*",), lambda tag: tag[0] != ">" and publishes_well(tag))
ASK = TagUse(("..", ">"), ("*",), lambda tag: tag[0] != ">" and asks_well(tag))
GRANT = TagUse(("..",), (), grants_well)


@attrs.frozen
class Message:
    """One message as a subscriber sees it.

    Attributes:
        tags: the tags it was published with.
        data: opaque bytes, exactly as published.
        id: its place in the history, from 1, ascending; None where there is no history.
    """

    tags: TagSet
    data: bytes
    id: int | None = None

    @property
    def text(self) -> str:
        """The data as text; bytes that are not UTF-8 become U+FFFD."""
        return self.data.decode("utf-8", "replace")


@attrs.frozen
class Envelope:
    """What messages have beside tags and data; most have none of it.

    Attributes:
        time: when they were published, Unix seconds; None is now.
        publisher: as in `mist.history.Publication`.
        audience: who may get them; None is everyone.
        meta: name to bytes, for the dialects: headers, an address for replies.
    """

    time: float | None = None
    publisher: str = ""
    audience: Audience | None = None
    meta: Mapping[str, bytes] | None = None


NOT_IN_TAGS: Final = r" ,\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""The characters that no tag has, for a class of a regular expression."""

# What most tag lists are made of, and what is good for any use: topics, and tags that are no
# addresses. One look at a whole list in C takes a tenth of the time that a look at each tag takes.
# What it doesn't match is `check_tag`'s to judge. There are at most 63 characters where each may
# take four bytes; and nothing is tried twice.
_OTHER: Final = rf"[^{NOT_IN_TAGS}"  # and closed by what it is not, either
_ENDS: Final = r"(?=,|\Z)"
_PLAIN: Final = (
    rf"(?![/.=>])(?>{_OTHER}]{{1,63}}+{_ENDS}|[!-+\--~]{{64,255}}+{_ENDS})(?<!\*)"
    rf"|(?={_OTHER}]{{1,63}}+{_ENDS})(?:/{_OTHER}/]*+){{1,{MAX_LEVELS}}}+{_ENDS}(?<!\*)"
)
_PLAIN_LIST: Final = re.compile(rf"(?:{_PLAIN})(?:,(?:{_PLAIN}))*+")


def _has_control(text: str) -> bool:
    # Unicode's category Cc is C0, DEL and C1, nothing else. isprintable() is C speed and
    # true for nearly every tag that is ever sent, so the loop runs for the odd ones only.
    return not text.isprintable() and any(c < " " or "\x7f" <= c <= "\x9f" for c in text)


def _utf8_length(text: str, error: type[CommandError]) -> int:
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        raise error from None


def check_tag(tag: str, use: TagUse = PUBLISH) -> str:
    """Return `tag` unchanged where the rules allow it for `use`.

    `room:1`, `Ä`, `/a/b`, `.x` pass; `a b`, `a,b`, a lone surrogate and `\\x00` do not;
    `room:*` passes as GRANT but not as PUBLISH, `.x.*` and `=/a` as ASK and GRANT.

    Raises:
        EmptyTag: it has no characters.
        InvalidTag: a space, comma or control character, over 255 bytes, not encodable
            as UTF-8, or reserved for another use.
    """
    if not tag:
        raise EmptyTag
    if " " in tag or "," in tag or _has_control(tag):
        raise InvalidTag
    if not use.allows(tag):
        raise InvalidTag
    if _utf8_length(tag, InvalidTag) > MAX_TAG:
        raise InvalidTag
    return tag


def is_tag_pattern(text: str) -> bool:
    """Whether it may be a tag, or the beginning of tags and `*`.

    `order:*` matches order:1 and `order:`; `order` matches only itself; `*` alone is every tag.
    """
    if not text or " " in text or "," in text or _has_control(text):
        return False
    try:
        return _utf8_length(text, InvalidTag) <= MAX_TAG
    except InvalidTag:
        return False


def occurs_more(mark: bytes, text: bytes, most: int) -> bool:
    """Whether a byte occurs more than `most` times. Looks no further than it must."""
    for start in range(0, len(text), _LOOK):
        most -= text.count(mark, start, start + _LOOK)
        if most < 0:
            return True
    return False


def has_more_strings(json: bytes, most: int, start: int = 0, end: int | None = None) -> bool:
    """Whether a JSON text has surely more than `most` strings, before any of them is made.

    Quotes inside strings are escaped. One behind an escaped backslash looks like those, so there
    may be up to twice as many strings. Looks no further than it must.

    Args:
        start, end: of what is looked at, outside of strings; the whole text.
    """
    last = len(json) if end is None else end
    quotes = 2 * most + 1
    for first in range(start, last, _LOOK):
        until = min(first + _LOOK, last)
        # The backslash of an escaped quote may be the last byte before.
        quotes -= json.count(b'"', first, until) - json.count(b'\\"', max(first - 1, start), until)
        if quotes < 0:
            return True
    return False


def explain_invalid_tag(tags: Iterable[str], use: TagUse = PUBLISH) -> str:
    """Which tag of a list that isn't valid breaks which rule, for the people who wrote it.

    Apart from the check, whose error is what a peer is told, and which peers may cause often.
    """
    for tag in tags:
        if rule := _broken_rule(tag, use):
            shown = tag if len(tag) <= _SHOWN else f"{tag[:_SHOWN]}…"
            return f"Invalid tag {shown!r}: {rule}"
    return "Invalid tag: at most one of a message's or subscription's tags is a subject (.a.b)"


def _broken_rule(tag: str, use: TagUse) -> str:
    """The first rule that a tag breaks, in words; empty where it breaks none."""
    try:
        size = len(tag.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if " " in tag or "," in tag:
        return "a tag has no spaces and no commas"
    if _has_control(tag):
        return "a tag has no control characters"
    if size > MAX_TAG:
        return f"it has {size:,} bytes in UTF-8, and a tag has at most {MAX_TAG}"
    if not tag or use.allows(tag):
        return ""
    if tag.startswith(".."):
        return "tags that begin with .. are reserved"
    if tag.startswith(">") and use is not GRANT:
        return "only a token's tag may begin with >, for the right to publish"
    if tag.startswith((".", ">.")):
        return (
            f"a subject has 1 to {MAX_TOKENS} tokens separated by dots, none of them empty; "
            "wildcards (* and > as whole tokens, > as the last) are for subscriptions and tokens"
        )
    if tag.startswith("=/") and use is PUBLISH:
        return "only subscriptions and tokens name a channel alone (=/)"
    if tag.startswith(("/", "=/", ">/")) and not use.address(tag):
        return f"a topic has at most {MAX_LEVELS} levels"
    return "only a token's tag may end in *, for all tags with that prefix"


def parse_tags(tags: Iterable[str], limit: int, use: TagUse = PUBLISH) -> TagSet:
    """A tag set from texts, in any order and with repeats.

    Raises:
        EmptyTag, InvalidTag: for the first bad one in the order given, or if there is none.
            Or two subjects, of which a message can have one.
        TooManyTags: more than `limit` distinct ones; looked at last. But so many that most must
            be repeats (`MAX_REPEATS`) are only counted.
    """
    given = tags if isinstance(tags, list) else list(tags)
    if len(given) > limit * MAX_REPEATS:
        raise TooManyTags(limit)
    joined = ",".join(given)
    if joined.count(",") < len(given) and _PLAIN_LIST.fullmatch(joined):
        return _counted(frozenset(given), limit)
    return _parse_each(given, limit, use)


def _parse_each(given: Sequence[str], limit: int, use: TagUse) -> TagSet:
    """As `parse_tags`, one by one."""
    if use is ASK and EVERYTHING.issuperset(given) and given:
        return EVERYTHING
    found = frozenset([check_tag(tag, use) for tag in given])
    if not found:
        raise EmptyTag
    if use is not GRANT and len(found) > 1 and sum(map(is_subject, found)) > 1:
        raise InvalidTag
    return _counted(found, limit)


def _counted(found: TagSet, limit: int) -> TagSet:
    if len(found) > limit:
        raise TooManyTags(limit)
    return found


def _decode_tag(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidTag from None


def parse_tag_list(raw: bytes, limit: int, use: TagUse = PUBLISH) -> TagSet:
    """A tag set from its wire form, `b"b,a,b"` → `{a, b}`. Raises as `parse_tags`."""
    most = limit * MAX_REPEATS
    if len(raw) >= most and occurs_more(b",", raw, most - 1):
        raise TooManyTags(limit)
    try:
        text = raw.decode()
    except UnicodeDecodeError:  # which is told of in its turn
        return parse_tags(map(_decode_tag, raw.split(b",")), limit, use)
    if _PLAIN_LIST.fullmatch(text):
        return _counted(frozenset(text.split(",")), limit)
    return _parse_each(text.split(","), limit, use)


def format_tags(tags: Iterable[str]) -> str:
    """The canonical form: sorted bytewise, without repeats, joined by commas."""
    return ",".join(sorted(set(tags)))


def check_token(token: str) -> str:
    """Return `token` unchanged where it can be one.

    Raises:
        InvalidToken: empty, over 255 bytes of UTF-8, a control character or a space.
    """
    if not token or " " in token or _has_control(token):
        raise InvalidToken
    if _utf8_length(token, InvalidToken) > MAX_TOKEN:
        raise InvalidToken
    return token
