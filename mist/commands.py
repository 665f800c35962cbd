"""What a peer asks and what it gets: one set of values for every protocol.

A protocol (`mist/protocols/`) turns bytes into `Command`s and `Reply`s into bytes; a session
(`mist/sessions/`) handles the commands. Neither knows the other's business, so a new dialect is a
new pair of translations and nothing else.

A session answers every command with exactly one reply; whether that reply has a wire form
is the protocol's affair (the line protocol says nothing about a `Done`).

Commands are values: nobody changes one. They are not frozen because a `Publish` is made for
every chunk that arrives, and freezing would double what making it costs.
"""

from collections.abc import Sequence

import attrs

from mist.audience import Attributes
from mist.errors import MistError
from mist.message import TagSet
from mist.wire import Batch, WireForm

__all__ = [
    "AddTags",
    "Auth",
    "Behind",
    "Bye",
    "CaughtUp",
    "Command",
    "Connections",
    "Done",
    "Echo",
    "Escape",
    "Failed",
    "Fetch",
    "Fetched",
    "Hangup",
    "Ids",
    "Invalid",
    "Last",
    "ListSubscriptions",
    "ListTags",
    "Newest",
    "Ping",
    "Publish",
    "Register",
    "RemoveTags",
    "Reply",
    "Resume",
    "Resumed",
    "Revoked",
    "SetAttributes",
    "ShowAttributes",
    "ShowTags",
    "Since",
    "Store",
    "Stored",
    "Subscribe",
    "SubscribeNamed",
    "Subscriptions",
    "Tags",
    "TokenAttributes",
    "TokenCommand",
    "Unregister",
    "Unsubscribe",
    "UnsubscribeNamed",
    "Who",
]


@attrs.define(kw_only=True)
class Command:
    """Something a peer asks for.

    Attributes:
        ref: whatever the protocol wants to see again beside the reply, such as a request
            number. No other layer looks at it.
    """

    ref: object = None


@attrs.define
class Publish(Command):
    """Publish a batch of messages, in order."""

    batch: Batch


@attrs.define
class Store(Publish):
    """Publish one message, and say its id once it is durable."""


@attrs.define
class Subscribe(Command):
    """Receive messages that carry all of `tags`."""

    tags: TagSet


@attrs.frozen
class Since:
    """A place in the history, where a replay begins.

    Attributes:
        after: messages with higher ids; 0 is all that is kept. None where `last` says it.
        last: the last so many messages that match; None where `after` says it.
        epoch: the log that `after` belongs to; None believes it is this one.
        literal: whether an id beyond the newest is what it says, and nothing is there yet.
    """

    after: int | None = None
    last: int | None = None
    epoch: str | None = None
    literal: bool = False

    def start(self, epoch: str, newest: int) -> int:
        """The id after which to read, where it isn't `last` that says it.

        That of another log, or one beyond the newest, means nothing here: everything may be
        news then, and it is 0. Unless it is `literal`.

        Args:
            epoch, newest: where the log stands.
        """
        after = self.after or 0
        if self.literal:
            after = min(after, newest)
        return after if after <= newest and self.epoch in (None, epoch) else 0


@attrs.define
class Resume(Command):
    """Subscribe to several tag sets as one, all or none: first what was, then what comes.

    Messages since a place in the history that match any of them, each once and in the order
    of their ids; then live, without a gap or a repeat. One that exists stays, and is replayed
    again.

    Attributes:
        alternatives: at least one tag set.
        since: None for no replay.
        counted: whether the answer is to say how many messages come.
    """

    alternatives: Sequence[TagSet]
    since: Since | None
    counted: bool = False


@attrs.define
class SubscribeNamed(Command):
    """Receive messages that carry all of `tags`, besides any other subscription to them.

    Each of its messages comes for it alone, in a form that tells its name. One of a name that
    is in use stays what it was.

    Attributes:
        name: what the peer calls it.
        form: a `mist.wire.WireForm`: how its deliveries are written.
        queue: where it isn't empty, one of all that share it and `tags` gets each message.
    """

    tags: TagSet
    name: bytes
    form: WireForm
    queue: str = ""


@attrs.define
class UnsubscribeNamed(Command):
    """Undo a `SubscribeNamed`; nothing happens where there is none.

    Attributes:
        most: None for now; else when it has had so many messages since it was made.
    """

    name: bytes
    most: int | None = None


@attrs.define
class Fetch(Command):
    """What was, and nothing of what comes; see `Resume`.

    Attributes:
        most: messages, of the oldest; None for all.
    """

    tags: TagSet
    since: Since
    most: int | None = None


@attrs.define
class Last(Command):
    """The newest position in the history."""


@attrs.define
class Ids(Command):
    """Whether deliveries of this session carry their ids."""

    on: bool


@attrs.define
class Unsubscribe(Command):
    """Undo one `Subscribe` of the same tags; nothing happens where there is none."""

    tags: TagSet


@attrs.define
class ListSubscriptions(Command):
    """This session's subscriptions."""


@attrs.define
class ListTags(Command):
    """Every distinct tag that anyone is subscribed to."""


@attrs.define
class Ping(Command):
    """Alive? Also the fence: its reply follows everything that the commands before it caused."""


@attrs.define
class Who(Command):
    """How many sessions there are, and were."""


@attrs.define
class Auth(Command):
    """Present a secret (services) or a token (browsers, mid-session).

    Attributes:
        credential: never shown by `repr`, so that no log line can hold it.
    """

    credential: str = attrs.field(repr=False)


@attrs.define
class Echo(Command):
    """Whether this session receives what it publishes itself."""

    on: bool


@attrs.define
class Escape(Command):
    """Whether deliveries of this session escape LF, CR and backslash."""

    on: bool


@attrs.define
class TokenCommand(Command):
    """Base of the commands on the token registry.

    Attributes:
        token: never shown by `repr`.
    """

    token: str = attrs.field(repr=False)


@attrs.define
class Register(TokenCommand):
    """Make a token known, with all of `tags` or not at all."""

    tags: TagSet


@attrs.define
class Unregister(TokenCommand):
    """Forget a token, and end its live sessions."""


@attrs.define
class AddTags(TokenCommand):
    """Grant a token more tags."""

    tags: TagSet


@attrs.define
class RemoveTags(TokenCommand):
    """Take tags from a token; subscriptions that are no longer allowed end."""

    tags: TagSet


@attrs.define
class SetAttributes(TokenCommand):
    """Say more of whom a token is for, or take it back; what isn't named stays as it is.

    Live sessions of the token have what is said at once.

    Attributes:
        attributes: what to set. Groups take the place of those it had.
        unset: names of attributes to be forgotten, none of them also in `attributes`.
    """

    attributes: Attributes
    unset: frozenset[str] = frozenset()


@attrs.define
class ShowAttributes(TokenCommand):
    """The attributes of a token."""


@attrs.define
class ShowTags(TokenCommand):
    """The tags of a token."""


@attrs.define
class Invalid(Command):
    """Something that is not a command; it has its place in the order of replies all the same.

    Attributes:
        error: what is wrong with it.
        name: the command's name as written, where one could be made out.
    """

    error: MistError
    name: str | None = None


@attrs.define
class Hangup(Command):
    """The peer can't be what it should be (an HTTP client, say): end the session.

    Attributes:
        reason: for the log and the close frame; none of the peer's words.
        code: a WebSocket close code.
    """

    reason: str
    code: int = 4400


@attrs.define
class Bye(Command):
    """The peer ends the session in good order."""


class Reply:
    """Base of what answers a command, and of `Revoked`, which nobody asked for."""

    __slots__ = ()


@attrs.frozen
class Done(Reply):
    """Carried out."""


@attrs.frozen
class Failed(Reply):
    """Not carried out, and nothing was changed."""

    error: MistError


@attrs.frozen
class Subscriptions(Reply):
    """Canonical tag lists (`b"a,b"`), in the order made, each once."""

    tag_lists: Sequence[bytes]


@attrs.frozen
class Tags(Reply):
    """A set of tags: of a token, or of all subscriptions."""

    tags: TagSet


@attrs.frozen
class TokenAttributes(Reply):
    """The attributes of a token."""

    attributes: Attributes


@attrs.frozen
class Connections(Reply):
    """Sessions on all listeners: now, and since the start."""

    connected: int
    lifetime: int


@attrs.frozen
class Stored(Reply):
    """The message is durable, and everyone who is there has it queued.

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
        recovered: whether everything that was asked for is there. Never True with a loss.
        first: the lowest id that is kept.
        count: messages that come; None where nobody asked.
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
        count: messages that come.
    """

    epoch: str
    recovered: bool
    first: int
    count: int


@attrs.frozen
class CaughtUp(Reply):
    """What a `Resume` with a place, or a `Fetch`, ends with: all that was has been brought.

    As a notice it is what a stretch of the history ends with, `Behind` or the first of a
    `Resume`; see `mist.protocols.Protocol.keeps_up`.
    """


@attrs.frozen
class Behind(Reply):
    """Not an answer but a notice: what follows comes from the history, until a `CaughtUp`.

    The session was too slow for what is live; or more was published while a `Resume` brought
    what was.

    Attributes:
        counts: how many messages come for each subscription, in the order made. One that several
            match is counted for the first of them; those for which nothing comes are left out.
    """

    counts: Sequence[tuple[TagSet, int]]


@attrs.frozen
class Revoked(Reply):
    """Not an answer but a notice: this subscription was ended by a change of its token.

    Attributes:
        name: of one that has a name of its own.
    """

    tags: TagSet
    name: bytes | None = None
