"""Errors of the client. Their roots are in `mist.errors`.

    ClientError
    ├── BadArgument             (ValueError too) an invalid argument; nothing was sent
    │   └── Unframable          data with LF for the line protocol
    ├── Unsupported             (NotAllowed too) not available on this kind of connection
    ├── NoEventLoop             (RuntimeError too) neither asyncio nor trio runs
    ├── ConnectError
    │   └── Rejected            connecting again can't help
    │       └── AccessDenied    (Unauthorized too) a wrong or revoked secret or token
    ├── ConnectionLost
    │   └── Unconfirmed         messages were written, and never confirmed
    ├── RemoteError             the server answered with an error
    │   ├── HistoryOff          it keeps no messages
    │   ├── LatestOff           it keeps no latest values of these tags
    │   ├── HistoryUnavailable  it can't write or read its history now
    │   ├── RegistryUnavailable  it can't tell now which tokens are valid
    │   └── TooManyRequests     the token's sessions ask for more than it may
    ├── MessagesLost            a subscription missed messages at this point
    └── Revoked                 the token no longer allows this subscription

Tags, tokens and data that break the rules of `mist.message` raise the server's errors
(`InvalidTag`, `TooManyTags`, `DataTooLong` …), before anything is sent.
"""

from mist import errors
from mist.errors import (
    ClientError,
    ConnectError,
    ConnectionLost,
    NotAllowed,
    RemoteError,
    Unauthorized,
)
from mist.message import TagSet, format_tags

__all__ = [
    "AccessDenied",
    "BadArgument",
    "HistoryOff",
    "HistoryUnavailable",
    "LatestOff",
    "MessagesLost",
    "NoEventLoop",
    "RegistryUnavailable",
    "Rejected",
    "Revoked",
    "Temporary",
    "TooManyRequests",
    "Unconfirmed",
    "Unframable",
    "Unsupported",
    "remote_error",
]


class BadArgument(ClientError, ValueError):
    """An invalid argument: a malformed URL, a secret with a space in it."""

    code = "bad_argument"


class NoEventLoop(ClientError, RuntimeError):
    """A client was to be connected outside an event loop, or in one of another kind."""

    code = "no_event_loop"
    message = (
        "mist.client needs asyncio or trio to run; without an event loop, use mist.client.sync"
    )


class Unframable(BadArgument):
    """Data that holds LF, which would end the line that carries it."""

    code = "unframable"
    message = "data holds a line feed, which the line protocol can't carry"


class Unsupported(ClientError, NotAllowed):
    """A command that this kind of connection doesn't have, such as tokens over a WebSocket."""

    code = "unsupported"


class Rejected(ConnectError):
    """The server refused the connection, and would refuse it again."""

    code = "rejected"


class AccessDenied(Rejected, Unauthorized):
    """The secret or the token is wrong, missing, or was revoked while connected."""

    code = "access_denied"
    message = "access denied"


class Unconfirmed(ConnectionLost):
    """The connection broke after messages were written and before a fence confirmed them.

    Each was published once or not at all. They are not sent again.

    Attributes:
        count: how many messages.
    """

    code = "unconfirmed"

    def __init__(self, count: int) -> None:
        super().__init__(f"connection lost: {count} published messages were not confirmed")
        self.count = count


class MessagesLost(ClientError):
    """Messages are missing at this point of a subscription. Reading may go on.

    Attributes:
        count: messages dropped because the queue was full.
        reconnected: whether the connection was down meanwhile; how many messages were published
            then is not known.
        forgotten: whether the server's history no longer has all that was asked for.
    """

    code = "messages_lost"

    def __init__(self, count: int, *, reconnected: bool = False, forgotten: bool = False) -> None:
        parts = [f"{count} messages dropped"] if count else []
        if reconnected:
            parts.append("disconnected for a while")
        if forgotten:
            parts.append("some are no longer in the history")
        super().__init__(", ".join(parts))
        self.count = count
        self.reconnected = reconnected
        self.forgotten = forgotten


class HistoryOff(RemoteError):
    """The request needs a message history, and the server keeps none."""

    code = "history_off"

    def __init__(self) -> None:
        super().__init__(errors.HistoryOff.message)


class LatestOff(RemoteError):
    """The server doesn't keep the latest values of these tags."""

    code = "latest_off"

    def __init__(self) -> None:
        super().__init__(errors.LatestOff.message)


class HistoryUnavailable(RemoteError):
    """The server can't write or read its history, e.g. on a full disk. Nothing was stored."""

    code = "history_unavailable"

    def __init__(self) -> None:
        super().__init__(errors.HistoryUnavailable.message)


class RegistryUnavailable(RemoteError):
    """The server can't write its token registry, or not tell now whether a token was revoked."""

    code = "registry_unavailable"

    def __init__(self) -> None:
        super().__init__(errors.RegistryUnavailable.message)


class TooManyRequests(RemoteError):
    """The token's sessions ask for more at once than it may; later it is accepted."""

    code = "too_many_requests"

    def __init__(self) -> None:
        super().__init__(errors.TooManyRequests.message)


Temporary = HistoryUnavailable | RegistryUnavailable | TooManyRequests
"""What passes by itself."""


def remote_error(text: str) -> RemoteError:
    """The error for an error text of the server."""
    match text:
        case errors.HistoryOff.message:
            return HistoryOff()
        case errors.LatestOff.message:
            return LatestOff()
        case errors.HistoryUnavailable.message:
            return HistoryUnavailable()
        case errors.RegistryUnavailable.message:
            return RegistryUnavailable()
        case errors.TooManyRequests.message:
            return TooManyRequests()
        case _:
            return RemoteError(text)


class Revoked(ClientError):
    """The server ended this subscription: the token no longer allows it.

    Attributes:
        tags: of the subscription.
    """

    code = "revoked"

    def __init__(self, tags: TagSet) -> None:
        super().__init__(f"the token no longer allows {format_tags(tags)}")
        self.tags = tags
