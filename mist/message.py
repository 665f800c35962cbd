"""What travels: tags, tag sets and messages; their rules and limits.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import attrs

from mist.addresses import EVERYTHING, asks_well, is_subject, publishes_well
from mist.errors import CommandError, EmptyTag, InvalidTag, InvalidToken, TooManyTags

if TYPE_CHECKING:
    from mist.audience import Audience

__all__ = [
    "ASK",
    "GRANT",
    "MAX_DATA",
    "MAX_MESSAGE_TAGS",
    "MAX_SUBSCRIPTION_TAGS",
    "MAX_TAG",
    "MAX_TOKEN",
    "MAX_TOKEN_TAGS",
    "PUBLISH",
    "Batch",
    "Entry",
    "Envelope",
    "Limits",
    "Message",
    "Run",
    "TagList",
    "TagSet",
    "TagUse",
    "check_tag",
    "check_token",
    "format_tags",
    "parse_tag_list",
    "parse_tags",
]

MAX_TAG = 255  # bytes of UTF-8 in one tag
MAX_TOKEN = 255  # bytes of UTF-8 in one token
MAX_DATA = 1_048_576  # bytes of data in one message
MAX_MESSAGE_TAGS = 64  # distinct tags in one message
MAX_SUBSCRIPTION_TAGS = 16  # distinct tags in one subscription
MAX_TOKEN_TAGS = 64  # distinct tags in one token command

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
    """

    data: int = MAX_DATA
    line: int = MAX_DATA + 65_536
    message_tags: int = MAX_MESSAGE_TAGS
    subscription_tags: int = MAX_SUBSCRIPTION_TAGS
    token_tags: int = MAX_TOKEN_TAGS
    frame: int = 131_072


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


def _grants_well(tag: str) -> bool:
    return asks_well(tag.removeprefix(">"))


_MARKS: Final = ("/", ".", "=", ">")  # with which an address begins, or the right to publish to one

PUBLISH = TagUse(("..", ">"), ("*",), lambda tag: tag[0] != ">" and publishes_well(tag))
ASK = TagUse(("..", ">"), ("*",), lambda tag: tag[0] != ">" and asks_well(tag))
GRANT = TagUse(("..",), (), _grants_well)


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
    audience: "Audience | None" = None
    meta: Mapping[str, bytes] | None = None


Run = tuple[bytes, bytes, int]
"""Consecutive messages with one tag list: `(tag list as written, wire, number of messages)`.

`wire` is the messages in line form, `publish TAGS DATA` and LF each. That form stands for a
message inside the server because most messages arrive and many leave in it: what needs
another form derives it, once, and only when somebody wants it.
"""


class Batch:
    """Messages on their way through the server, in the order published.

    What one read brought is one batch, so the layers between the socket and the outboxes are
    crossed once a read instead of once a message. Tag lists in it are not checked yet:
    whoever resolves them (`mist.broker.broker`) does, and only for those it has not seen before.

    Args:
        tag_lists: every tag list in it, some perhaps more than once.
        whole: all of it in line form and the number of messages, where it has come so; None
            where nobody has that.
        framable: False where some data may hold LF, so that its line form can't be sent as
            a line. Messages that arrived as lines never do.
        runs: see `Run`. More than one message stands in a run only where no data holds LF.
            None where `whole` is given, and `tag_lists` are one for each line, or one that
            all have.
        envelope: what all of its messages have beside.
    """

    __slots__ = ("_runs", "envelope", "framable", "tag_lists", "whole")

    def __init__(
        self,
        tag_lists: Sequence[bytes],
        whole: tuple[bytes, int] | None,
        framable: bool = True,
        runs: Sequence[Run] | None = None,
        envelope: Envelope | None = None,
    ) -> None:
        self.envelope = envelope
        self.tag_lists = tag_lists
        self.whole = whole
        self.framable = framable
        self._runs = runs

    @classmethod
    def of(cls, tags: TagSet, data: bytes) -> "Batch":
        """A batch of one message, with data of any content."""
        tag_list = format_tags(tags).encode()
        wire = b"publish %b %b\n" % (tag_list, data)
        return cls.of_runs([(tag_list, wire, 1)], framable=b"\n" not in data)

    @classmethod
    def of_runs(
        cls, runs: Sequence[Run], *, framable: bool = True, envelope: Envelope | None = None
    ) -> "Batch":
        """A batch of these runs."""
        return cls([run[0] for run in runs], None, framable, runs, envelope)

    @property
    def runs(self) -> Sequence[Run]:
        """The messages; lines are taken apart only where somebody asks for this."""
        if self._runs is None:
            assert self.whole is not None
            wire, count = self.whole
            if len(self.tag_lists) == 1:
                self._runs = [(self.tag_lists[0], wire, count)]
            else:
                self._runs = list(zip(self.tag_lists, BytesIO(wire).readlines(), repeat(1)))
        return self._runs


class TagList:
    """A tag list that has been checked, with what is derived from it once.

    Attributes:
        tags: the set.
        canonical: its canonical wire form.
        head: what a line-form message with these tags begins with: `publish a,b `.
        derived: what other wire forms have made of the tags; each keeps its own, and bounds it.
    """

    __slots__ = ("canonical", "derived", "head", "tags")

    def __init__(self, tags: TagSet) -> None:
        self.tags = tags
        self.canonical = format_tags(tags).encode()
        self.head = b"publish %b " % self.canonical
        self.derived: dict[object, Any] = {}

    def rewrite(self, prefix: bytes, wire: bytes, count: int) -> bytes:
        """A run's wire with `head` in the place of `prefix`, with which each message begins."""
        rest = wire[len(prefix) :]
        if count > 1:  # then no data holds LF
            rest = rest.replace(b"\n" + prefix, b"\n" + self.head)
        return self.head + rest

    def split(self, wire: bytes, count: int) -> list[bytes]:
        """The data of each message in a canonical `Run`'s wire."""
        data = wire[len(self.head) : -1]
        return [data] if count == 1 else data.split(b"\n" + self.head)


Entry = tuple[TagList, bytes, int]
"""A `Run` on its way out: its checked tag list, its canonical wire, its number of messages."""


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


def parse_tags(tags: Iterable[str], limit: int, use: TagUse = PUBLISH) -> TagSet:
    """A tag set from texts, in any order and with repeats.

    Raises:
        EmptyTag, InvalidTag: for the first bad one in the order given, or if there is none.
            Or two subjects, of which a message can have one.
        TooManyTags: more than `limit` distinct ones; looked at last.
    """
    given = list(tags)
    if use is ASK and EVERYTHING.issuperset(given) and given:
        return EVERYTHING
    found = frozenset([check_tag(tag, use) for tag in given])
    if not found:
        raise EmptyTag
    if use is not GRANT and len(found) > 1 and sum(map(is_subject, found)) > 1:
        raise InvalidTag
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
    return parse_tags(map(_decode_tag, raw.split(b",")), limit, use)


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
