"""What a peer is answered: one set of values for every protocol.

A session answers every command (`mist.commands`) with exactly one reply; the protocol decides
whether it has a wire form (the line protocol writes nothing for a `Done`). Some of them are
notices as well or only, which answer no command: `Behind`, `Revoked`, and those of presence.
"""

from collections.abc import Sequence

import attrs

from mist.attributes import Attributes
from mist.errors import MistError
from mist.message import TagSet
from mist.token_info import TokenInfo, TokenPage

__all__ = [
    "Attendee",
    "Behind",
    "CaughtUp",
    "Connections",
    "Done",
    "Failed",
    "Fetched",
    "Newest",
    "PresenceChanged",
    "PresenceEnded",
    "Present",
    "Reply",
    "Resumed",
    "Revoked",
    "SortedTags",
    "Stored",
    "Subscriptions",
    "Tags",
    "TokenAttributes",
    "TokenShown",
    "Tokens",
]


class Reply:
    """Base of replies and notices."""

    __slots__ = ()


@attrs.frozen
class Done(Reply):
    """The command has taken effect."""


@attrs.frozen
class Failed(Reply):
    """The command was refused or failed, and nothing has changed."""

    error: MistError

    def __attrs_post_init__(self) -> None:
        self.error.as_value()


@attrs.frozen
class Subscriptions(Reply):
    """Canonical tag lists (`b"a,b"`), in the order made, each once."""

    tag_lists: Sequence[bytes]


@attrs.frozen
class Tags(Reply):
    """A set of tags: what a token grants, and in the client those of all subscriptions, too."""

    tags: TagSet


@attrs.frozen
class SortedTags(Reply):
    """The tags of all subscriptions, sorted: there may be a million, which make no set quickly."""

    tags: Sequence[str]


@attrs.frozen
class TokenAttributes(Reply):
    """The attributes of a token."""

    attributes: Attributes


@attrs.frozen
class TokenShown(Reply):
    """All that is known of a token but its text."""

    token: TokenInfo


@attrs.frozen
class Tokens(Reply):
    """Some of the tokens."""

    page: TokenPage


@attrs.frozen
class Connections(Reply):
    """Sessions on all listeners: now, and since the start."""

    connected: int
    lifetime: int


@attrs.frozen
class Stored(Reply):
    """The message is durable, and queued for every subscriber that is connected.

    Attributes:
        id: its place in the history.
    """

    id: int


@attrs.frozen
class Newest(Reply):
    """The newest position in the history.

    Attributes:
        id: 0 before the first message.
    """

    epoch: str
    id: int


@attrs.frozen
class Resumed(Reply):
    """What a `Resume` begins with, before its first message.

    Attributes:
        epoch: which log this is.
        id: messages above it are live.
        recovered: whether all that was asked for is still kept. Never True with a loss.
        first: the lowest id that is kept.
        count: messages that are replayed; None where that wasn't asked for.
    """

    epoch: str
    id: int
    recovered: bool
    first: int
    count: int | None = None


@attrs.frozen
class Fetched(Reply):
    """What a `Fetch` begins with, before its first message.

    Attributes:
        epoch, recovered, first: as of `Resumed`.
        count: messages that are replayed.
    """

    epoch: str
    recovered: bool
    first: int
    count: int


@attrs.frozen
class CaughtUp(Reply):
    """The replay of a `Resume` or a `Fetch` is complete.

    As a notice it ends any stretch of replay, that of a `Behind` or the first of a `Resume`; see
    `mist.protocols.Protocol.keeps_up`.
    """


@attrs.frozen
class Behind(Reply):
    """A notice: what follows is replayed from the history, until a `CaughtUp`.

    The session was too slow for live delivery, or more was published while a `Resume` was
    replayed.

    Attributes:
        counts: how many messages are replayed for each subscription, in the order made. A message
            that several match counts for the first of them; subscriptions without any are left
            out.
    """

    counts: Sequence[tuple[TagSet, int]]


@attrs.frozen
class Revoked(Reply):
    """A notice: this subscription was ended by a change of its token.

    Attributes:
        name: of a named subscription; None for any other.
    """

    tags: TagSet
    name: bytes | None = None


@attrs.frozen
class Attendee:
    """One who is present at a tag set: a user's client, however many sessions it has.

    Attributes:
        user, client: empty where there is none.
        since: when the first of its sessions there came, Unix seconds.
    """

    user: str
    client: str
    since: float


def _forms() -> dict[str, bytes]:
    return {}


@attrs.frozen
class Present(Reply):
    """Who is present at a tag set; also a notice, which replaces all that was told before.

    Attributes:
        count: of `attendees`; of sessions, where there are too many of these for a list.
        attendees: the first to come first; None where there are too many for a list.
        forms: its wire forms, by dialect: one object is told to all who watch.
    """

    tags: TagSet
    count: int
    attendees: Sequence[Attendee] | None
    forms: dict[str, bytes] = attrs.field(factory=_forms, eq=False, repr=False)


@attrs.frozen
class PresenceChanged(Reply):
    """A notice: who has joined and who has left.

    Attributes:
        count: how many there are now.
        forms: as of `Present`.
    """

    tags: TagSet
    joined: Sequence[Attendee]
    left: Sequence[Attendee]
    count: int
    forms: dict[str, bytes] = attrs.field(factory=_forms, eq=False, repr=False)


@attrs.frozen
class PresenceEnded(Reply):
    """A notice: nothing more is told of the presence there, since the token changed."""

    tags: TagSet
