"""What a peer asks for: one set of values for every protocol.

A protocol (`mist/protocols/`) turns bytes into commands and replies (`mist.replies`) into bytes; a
session (`mist/sessions/`) handles the commands. Neither knows the other's business, so a new
dialect is a new pair of translations and nothing else.

`Command` is the closed union of them: command dispatch covers it, and the type checker reports a
command that it forgets. A session answers every command with exactly one reply.

Commands are values: nobody changes one. They are not frozen because a `Publish` is made for
every chunk that arrives, and freezing would double what making it costs.
"""

from typing import TypeAlias

import attrs

from mist.commands.base import (
    BaseCommand,
)
from mist.commands.publishing import (
    Publish,
    PublishOnce,
    Store,
)
from mist.commands.session import (
    Auth,
    Bye,
    Echo,
    Escape,
    Hangup,
    Invalid,
    Pause,
    Ping,
    Who,
)
from mist.commands.subscribing import (
    Fetch,
    Ids,
    Last,
    ListSubscriptions,
    ListTags,
    Resume,
    Since,
    Subscribe,
    SubscribeNamed,
    Unsubscribe,
    UnsubscribeNamed,
    UnwatchPresence,
    WatchPresence,
)
from mist.commands.tokens import (
    MAX_CLAIM,
    AddTags,
    ListTokens,
    Register,
    RegistryChange,
    RemoveTags,
    Revoke,
    RevokeIssued,
    SetAttributes,
    SetTerms,
    ShowAttributes,
    ShowTags,
    ShowToken,
    TokenCommand,
    Unregister,
)
from mist.errors import MistError

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


@attrs.define
class Refused(BaseCommand):
    """A command that is not handled; its error has its place in the order of replies.

    Attributes:
        command: as it was sent.
        error: why not.
    """

    command: "Command" = attrs.field(kw_only=False)
    error: MistError = attrs.field(kw_only=False)


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
