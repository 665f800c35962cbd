"""What a peer asks for: one set of values for every protocol.

A protocol (`mist/protocols/`) turns bytes into commands and replies (`mist.replies`) into bytes; a
session (`mist/sessions/`) handles the commands. Neither knows the other's business, so a new
dialect is a new pair of translations and nothing else.

`Command` is the closed union of them: command dispatch covers it, and the type checker reports a
command that it forgets. A session answers every command with exactly one reply.

Commands are values: nobody changes one. They are not frozen because a `Publish` is made for
every chunk that arrives, and freezing would double what making it costs.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs

from mist.attributes import Attributes
from mist.audience import Audience
from mist.errors import CommandError, InvalidRevocation, MistError
from mist.message import TagSet
from mist.terms import UNCHANGED, Terms
from mist.wire import Batch, WireForm

__all__ = [
    "MAX_CLAIM",
    "AddTags",
    "Auth",
    "Bye",
    "Command",
    "Echo",
    "Escape",
    "Fetch",
    "Hangup",
    "Ids",
    "Invalid",
    "Last",
    "ListSubscriptions",
    "ListTags",
    "ListTokens",
    "Pause",
    "Ping",
    "Publish",
    "PublishOnce",
    "Refused",
    "Register",
    "RegistryChange",
    "RemoveTags",
    "Resume",
    "Revoke",
    "RevokeIssued",
    "SetAttributes",
    "SetTerms",
    "ShowAttributes",
    "ShowTags",
    "ShowToken",
    "Since",
    "Store",
    "Subscribe",
    "SubscribeNamed",
    "TokenCommand",
    "Unregister",
    "Unsubscribe",
    "UnsubscribeNamed",
    "UnwatchPresence",
    "WatchPresence",
    "Who",
]

MAX_CLAIM: Final = 255  # characters of `jti` and `sub`, by which JWTs are revoked


@attrs.define(kw_only=True)
class _Command:
    """What all commands have.

    Attributes:
        ref: whatever the protocol wants to see again beside the reply, such as a request
            number. No other layer looks at it.
    """

    ref: object = None


@attrs.define
class Publish(_Command):
    """Publish a batch of messages, in order."""

    batch: Batch


@attrs.define
class Store(Publish):
    """Publish one message, and say its id once it is durable."""


@attrs.define
class PublishOnce(_Command):
    """Publish one message, and say what came of it. With a key, a repeat publishes nothing.

    Attributes:
        tags, data: of the message.
        audience: None is everyone.
        key: an idempotency key; empty for none.
        digest: of what the peer wrote, which tells a repeat from another message.
        error: why it can't be published. A peer that may publish nothing is told only that.
    """

    tags: TagSet = frozenset()
    data: bytes = b""
    audience: Audience | None = None
    key: str = ""
    digest: bytes = b""
    error: CommandError | None = None


@attrs.define
class Subscribe(_Command):
    """Receive messages that carry all of `tags`."""

    tags: TagSet


@attrs.frozen
class Since:
    """A place in the history, where a replay begins.

    Attributes:
        after: messages with higher ids; 0 is all that is kept. None where `last` is given.
        last: the last so many messages that match; None where `after` is given.
        epoch: the log that `after` belongs to; None for this one, unchecked.
        literal: whether an id beyond the newest stands for itself, with nothing behind it yet.
        latest: of what is replayed, only the newest message of each tag with this pattern, see
            `mist.history.latest`; empty for all of it.
    """

    after: int | None = None
    last: int | None = None
    epoch: str | None = None
    literal: bool = False
    latest: str = ""

    def start(self, epoch: str, newest: int) -> int:
        """The id after which to read, where `last` isn't given.

        An id of another log, or one beyond the newest, means nothing here: any message may be
        new to the peer, so it is 0. Unless it is `literal`.

        Args:
            epoch, newest: of the log, as it is now.
        """
        after = self.after or 0
        if self.literal:
            after = min(after, newest)
        return after if after <= newest and self.epoch in (None, epoch) else 0


@attrs.define
class Resume(_Command):
    """Subscribe to several tag sets, all or none, with recovery from the history.

    First messages since a place in the history that match any of them, each once and in the
    order of their ids; then live ones, without a gap or a repeat. A subscription that exists
    stays, and is replayed again.

    Attributes:
        alternatives: at least one tag set.
        since: None for no replay.
        counted: whether the reply says how many messages are replayed.
    """

    alternatives: Sequence[TagSet]
    since: Since | None
    counted: bool = False


@attrs.define
class SubscribeNamed(_Command):
    """Receive messages that carry all of `tags`, besides any other subscription to them.

    A named subscription: each of its messages is delivered once more, in a form that tells the
    name. Where the name is in use, nothing changes.

    Attributes:
        name: what the peer calls it.
        form: a `mist.wire.WireForm`: how its deliveries are written.
        queue: a queue group: one of its members with the same `tags` gets each message. Empty
            for none.
    """

    tags: TagSet
    name: bytes
    form: WireForm
    queue: str = ""


@attrs.define
class UnsubscribeNamed(_Command):
    """Undo a `SubscribeNamed`. Where there is none, that is the answer: `NotSubscribed`.

    Attributes:
        most: None for at once; else once it has had so many messages since it was made.
    """

    name: bytes
    most: int | None = None


@attrs.define
class Fetch(_Command):
    """Replay from the history without subscribing; see `Resume`.

    Attributes:
        most: messages, the oldest of them; None for all.
    """

    tags: TagSet
    since: Since
    most: int | None = None


@attrs.define
class Last(_Command):
    """The newest position in the history."""


@attrs.define
class Ids(_Command):
    """Whether deliveries of this session carry their ids."""

    on: bool


@attrs.define
class Unsubscribe(_Command):
    """Undo one `Subscribe` of the same tags; nothing happens where there is none."""

    tags: TagSet


@attrs.define
class ListSubscriptions(_Command):
    """This session's subscriptions."""


@attrs.define
class ListTags(_Command):
    """Every distinct tag that anyone is subscribed to."""


@attrs.define
class WatchPresence(_Command):
    """Who is present at `tags`, and from then on who joins and leaves; see `mist.broker.presence`.

    Where it is watched already, only the first is told again.
    """

    tags: TagSet


@attrs.define
class UnwatchPresence(_Command):
    """Undo a `WatchPresence`; nothing happens where there is none."""

    tags: TagSet


@attrs.define
class Ping(_Command):
    """Is the server alive? Also a fence: its reply follows all that the commands before caused."""


@attrs.define
class Who(_Command):
    """How many sessions there are now, and how many since the start."""


@attrs.define
class Auth(_Command):
    """Present a secret (services) or a token (browsers, mid-session).

    Attributes:
        credential: never shown by `repr`, so that no log line can hold it.
    """

    credential: str = attrs.field(repr=False)


@attrs.define
class Echo(_Command):
    """Whether this session receives what it publishes itself."""

    on: bool


@attrs.define
class Escape(_Command):
    """Whether deliveries of this session escape LF, CR and backslash."""

    on: bool


@attrs.define
class TokenCommand(_Command):
    """What the commands on the token registry have.

    Attributes:
        token: never shown by `repr`.
    """

    token: str = attrs.field(repr=False)


@attrs.define
class Register(TokenCommand):
    """Make a token known, with all of `tags` and its terms, or not at all."""

    tags: TagSet
    terms: Terms = UNCHANGED


@attrs.define
class Unregister(TokenCommand):
    """Forget a token, and end its live sessions."""


@attrs.define
class Revoke(TokenCommand):
    """As `Unregister`; an error where there is no such token.

    This command and those below take the id of a token as well, where no token has that text.
    """


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
    """Set or remove attributes of a token; those that aren't named stay as they are.

    Live sessions of the token have them at once.

    Attributes:
        attributes: what to set. Groups replace those it had.
        unset: names of attributes to remove, none of them also in `attributes`.
    """

    attributes: Attributes
    unset: frozenset[str] = frozenset()


@attrs.define
class SetTerms(TokenCommand):
    """Set when a token expires, or what it is called. Live sessions of the token end by it."""

    terms: Terms


@attrs.define
class RevokeIssued(_Command):
    """Revoke what was issued elsewhere, and end its sessions; see `mist.auth.revocations`.

    Attributes:
        kind: `jti` for one token; `sub` for all that a user was issued until now.
        value: of that claim; never shown by `repr`.

    Raises:
        InvalidRevocation: it can't be that of a token.
    """

    kind: str
    value: str = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if self.kind not in ("jti", "sub") or not 0 < len(self.value) <= MAX_CLAIM:
            raise InvalidRevocation


@attrs.define
class ShowAttributes(TokenCommand):
    """The attributes of a token."""


@attrs.define
class ShowTags(TokenCommand):
    """The tags of a token."""


@attrs.define
class ShowToken(TokenCommand):
    """All that is known of a token."""


@attrs.define
class ListTokens(_Command):
    """A page of all tokens.

    Attributes:
        after: the id after which it begins; empty for the first.
    """

    after: str = ""


@attrs.define
class Invalid(_Command):
    """Input that is no valid command; its error has its place in the order of replies.

    Attributes:
        error: what is wrong with it.
        name: the command's name as written, where one could be made out.
    """

    error: MistError
    name: str | None = None


@attrs.define
class Refused(_Command):
    """A command that is not handled; its error has its place in the order of replies.

    Attributes:
        command: as it was sent.
        error: why not.
    """

    command: "Command" = attrs.field(kw_only=False)
    error: MistError = attrs.field(kw_only=False)


@attrs.define
class Hangup(_Command):
    """The peer speaks another protocol (HTTP, say) or breaks this one: end the session.

    Attributes:
        reason: for the log and the close frame; no text of the peer's.
        code: a WebSocket close code.
    """

    reason: str
    code: int = 4400


@attrs.define
class Bye(_Command):
    """The peer ends the session."""


RegistryChange: TypeAlias = (
    Register | Unregister | Revoke | AddTags | RemoveTags | SetAttributes | SetTerms | RevokeIssued
)
"""What changes the token registry, and so waits for its disk."""


@attrs.define
class Pause(_Command):
    """Nothing: a protocol that has been reading for long lets others have their turns."""


Command: TypeAlias = (
    Publish
    | PublishOnce
    | Store
    | Subscribe
    | Unsubscribe
    | SubscribeNamed
    | UnsubscribeNamed
    | Resume
    | Fetch
    | Last
    | Ids
    | ListSubscriptions
    | ListTags
    | WatchPresence
    | UnwatchPresence
    | Ping
    | Who
    | Auth
    | Echo
    | Escape
    | RegistryChange
    | ShowAttributes
    | ShowTags
    | ShowToken
    | ListTokens
    | Invalid
    | Refused
    | Hangup
    | Bye
    | Pause
)
"""Every command there is."""
