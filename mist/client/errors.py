"""What only a client raises. The roots are in `mist.errors`.

    ClientError
    ├── BadArgument             (ValueError too) can't be sent as it is; nothing was sent
    │   └── Unframable          data with LF for the line protocol
    ├── Unsupported             (NotAllowed too) this kind of connection has no such command
    ├── ConnectError
    │   └── Rejected            connecting again can't help
    │       └── AccessDenied    (Unauthorized too) a wrong secret or token, or one taken back
    ├── ConnectionLost
    │   └── Unconfirmed         publishes were written whose fate nobody knows
    ├── RemoteError             the server answered with an error
    │   ├── HistoryOff          it keeps no messages
    │   └── HistoryUnavailable  it can't write or read them now
    ├── MessagesLost            a subscription missed messages at this place
    └── Revoked                 the token doesn't allow this subscription any more

A tag, a token or data that break the rules of `mist.message` raise what the server would
raise (`InvalidTag`, `TooManyTags`, `DataTooLong` …), before anything is sent.
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
    "MessagesLost",
    "Rejected",
    "Revoked",
    "Unconfirmed",
    "Unframable",
    "Unsupported",
    "remote_error",
]


class BadArgument(ClientError, ValueError):
    """An argument that can't be used: a malformed URL, a secret with a space in it."""

    code = "bad_argument"


class Unframable(BadArgument):
    """Data that holds LF, which would end the line that carries it."""

    code = "unframable"
    message = "data holds a line feed, which the line protocol can't carry"


class Unsupported(ClientError, NotAllowed):
    """A command that this kind of connection doesn't have; publishing over a WebSocket, say."""

    code = "unsupported"


class Rejected(ConnectError):
    """The server can't be used like this, and trying again would not change it."""

    code = "rejected"


class AccessDenied(Rejected, Unauthorized):
    """The secret or the token is wrong, missing, or was taken back while connected."""

    code = "access_denied"
    message = "access denied"


class Unconfirmed(ConnectionLost):
    """The connection broke after publishes were written and before a fence came back.

    Each of them was carried out once or not at all. They are not sent again.

    Attributes:
        count: how many they are.
    """

    code = "unconfirmed"

    def __init__(self, count: int) -> None:
        super().__init__(f"connection lost: {count} published messages were not confirmed")
        self.count = count


class MessagesLost(ClientError):
    """At this place in the stream of messages some are missing. Reading may go on.

    Attributes:
        count: messages dropped because the queue was full.
        reconnected: whether the connection was down meanwhile too; how many messages passed
            by then is not known.
        forgotten: whether the server's history no longer has all that was asked for.
    """

    code = "messages_lost"

    def __init__(self, count: int, *, reconnected: bool = False, forgotten: bool = False) -> None:
        parts = [f"{count} messages dropped"] if count else []
        if reconnected:
            parts.append("disconnected for a while")
        if forgotten:
            parts.append("some are not in the history any more")
        super().__init__(", ".join(parts))
        self.count = count
        self.reconnected = reconnected
        self.forgotten = forgotten


class HistoryOff(RemoteError):
    """What was asked needs a message history, and the server keeps none."""

    code = "history_off"

    def __init__(self) -> None:
        super().__init__(errors.HistoryOff.message)


class HistoryUnavailable(RemoteError):
    """The server can't write or read its history now: a full disk, say. Nothing was stored."""

    code = "history_unavailable"

    def __init__(self) -> None:
        super().__init__(errors.HistoryUnavailable.message)


def remote_error(text: str) -> RemoteError:
    """What the server's words mean."""
    match text:
        case errors.HistoryOff.message:
            return HistoryOff()
        case errors.HistoryUnavailable.message:
            return HistoryUnavailable()
        case _:
            return RemoteError(text)


class Revoked(ClientError):
    """The server ended this subscription: the token doesn't allow it any more.

    Attributes:
        tags: of the subscription.
    """

    code = "revoked"

    def __init__(self, tags: TagSet) -> None:
        super().__init__(f"the token no longer allows {format_tags(tags)}")
        self.tags = tags
