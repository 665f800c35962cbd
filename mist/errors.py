"""Every error mist raises on purpose: one tree, each class with a stable `code`.

`code` is what protocols, metrics and logs key on; a protocol owns one table from
`code` to its wire form (`mist/protocols/`). The text of an error is written for the
person who reads it, and never holds a token or a secret.

    MistError
    ├── CommandError            a peer's command can't be handled
    │   ├── UnknownCommand, WrongArguments, ExpectedOnOff, NotAllowed
    │   ├── EmptyTag, InvalidTag, TooManyTags, TooManyMatches, NotGranted
    │   ├── LineTooLong, DataTooLong
    │   ├── InvalidToken, TokenNotFound, TokenExists, RegistryUnavailable
    │   ├── InvalidAudience, ClientTaken
    │   ├── TooManySubscriptions, NotSubscribed
    │   ├── PresenceOff, TooManyWatches
    │   ├── HistoryOff, LatestOff, InvalidPosition, KeyConflict
    │   ├── HistoryUnavailable
    │   │   └── HistoryDamaged
    │   └── Unauthorized
    ├── ProtocolViolation       a peer broke the protocol; its session ends
    ├── StartupError            the server can't start as configured
    │   └── ConfigError
    └── ClientError             raised by mist.client
        ├── ConnectError, ConnectionLost, ClientClosed
        └── RemoteError         the server answered with an error
"""

from typing import ClassVar, Self

__all__ = [
    "ClientClosed",
    "ClientError",
    "ClientTaken",
    "CommandError",
    "ConfigError",
    "ConnectError",
    "ConnectionLost",
    "DataTooLong",
    "EmptyTag",
    "ExpectedOnOff",
    "HistoryDamaged",
    "HistoryOff",
    "HistoryUnavailable",
    "InvalidAudience",
    "InvalidExpiry",
    "InvalidName",
    "InvalidPosition",
    "InvalidRevocation",
    "InvalidTag",
    "InvalidToken",
    "KeyConflict",
    "LatestOff",
    "LineTooLong",
    "MistError",
    "NotAllowed",
    "NotGranted",
    "NotSubscribed",
    "PresenceOff",
    "ProtocolViolation",
    "RegistryUnavailable",
    "RemoteError",
    "SessionEnded",
    "StartupError",
    "TokenExists",
    "TokenExpired",
    "TokenNotFound",
    "TokenRevoked",
    "TooManyConnections",
    "TooManyMatches",
    "TooManyRequests",
    "TooManySubscriptions",
    "TooManyTags",
    "TooManyWatches",
    "Unauthorized",
    "UnknownCommand",
    "WrongArguments",
]


class MistError(Exception):
    """Root of the tree. Catch it to catch everything mist raises on purpose."""

    code: ClassVar[str] = "error"
    message: ClassVar[str] = "error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.message if message is None else message)

    def as_value(self) -> Self:
        """Itself, without a traceback: to be kept or returned where it was caught.

        With one it holds the frame that holds it, a cycle which only the collector would free. So
        does what was being handled when it was raised, even where it was raised from nothing.
        """
        self.__context__ = None
        if self.__cause__ is not None:
            self.__cause__.with_traceback(None)
        return self.with_traceback(None)


class CommandError(MistError):
    """A command that can't be handled. The session that sent it goes on."""


class UnknownCommand(CommandError):
    """No such command.

    Attributes:
        fields: the command as it was written, fields joined by single spaces. Bytes, since
            a peer may send anything.
    """

    code = "unknown_command"
    message = "Unknown command"

    def __init__(self, fields: bytes = b"") -> None:
        super().__init__()
        self.fields = fields


class WrongArguments(CommandError):
    """A command with too few or too many arguments.

    Attributes:
        fields: as in `UnknownCommand`.
    """

    code = "wrong_arguments"
    message = "Incorrect number of arguments"

    def __init__(self, fields: bytes = b"") -> None:
        super().__init__()
        self.fields = fields


class ExpectedOnOff(CommandError):
    """A switch was given something other than `on` or `off`."""

    code = "expected_on_off"
    message = "Expected on or off"


class NotAllowed(CommandError):
    """The command exists, but not for this kind of session."""

    code = "not_allowed"
    message = "not allowed"


class EmptyTag(CommandError):
    """A tag of length zero, or a list of tags without any."""

    code = "empty_tag"
    message = "Empty tag"


class InvalidTag(CommandError):
    """A tag that breaks the rules of `mist.message`."""

    code = "invalid_tag"
    message = "Invalid tag"


class TooManyTags(CommandError):
    """More distinct tags than the limit for this use.

    Attributes:
        limit: the largest number allowed.
    """

    code = "too_many_tags"
    message = "Too many tags"

    def __init__(self, limit: int = 0) -> None:
        super().__init__()
        self.limit = limit


class TooManyMatches(CommandError):
    """A message's tags satisfy more distinct subscriptions than one message may.

    Attributes:
        limit: the largest number allowed.
    """

    code = "too_many_matches"
    message = "Too many matches"

    def __init__(self, limit: int = 0) -> None:
        super().__init__()
        self.limit = limit


class NotGranted(CommandError):
    """The session's token doesn't allow this subscription."""

    code = "not_granted"
    message = "not granted by the token"


class LineTooLong(CommandError):
    """A line longer than the limit; the rest of it was skipped."""

    code = "line_too_long"
    message = "Line too long"


class DataTooLong(CommandError):
    """A message's data over the limit (1 MiB unless configured)."""

    code = "data_too_long"
    message = "Data too long"


class InvalidToken(CommandError):
    """Not usable as a token: empty, over 255 bytes, control characters or spaces."""

    code = "invalid_token"
    message = "Invalid token"


class TokenNotFound(CommandError):
    """The registry has no such token."""

    code = "token_not_found"
    message = "Token not found"


class TokenExists(CommandError):
    """The registry already has this token."""

    code = "token_exists"
    message = "already exists"


class InvalidExpiry(CommandError):
    """Not a time at which a token may expire: see `mist.terms`. Also one that has passed."""

    code = "invalid_expiry"
    message = "Invalid expiry"


class InvalidRevocation(CommandError):
    """Not what can be revoked of tokens that were issued elsewhere: `jti` or `sub`, and a value."""

    code = "invalid_revocation"
    message = "Invalid revocation: expected jti or sub, and its value"


class InvalidName(CommandError):
    """Not a name of a token: see `mist.terms`."""

    code = "invalid_name"
    message = "Invalid name"


class TokenExpired(CommandError):
    """The session's token has expired, so that the session ends."""

    code = "token_expired"
    message = "Token expired"


class TokenRevoked(CommandError):
    """The session's token was revoked, so that the session ends."""

    code = "token_revoked"
    message = "Token revoked"


class SessionEnded(CommandError):
    """An operator has ended the session. The peer may connect again."""

    code = "session_ended"
    message = "Session ended by an operator"


class TooManyRequests(CommandError):
    """More requests, messages or bytes than the token may have in this time.

    Attributes:
        retry_after: seconds after which it may be tried again.
    """

    code = "too_many_requests"
    message = "Too many requests"

    def __init__(self, retry_after: float = 1.0) -> None:
        super().__init__()
        self.retry_after = retry_after


class TooManyConnections(TooManyRequests):
    """The token has as many connections as it may."""

    code = "too_many_connections"
    message = "Too many connections"


class RegistryUnavailable(CommandError):
    """The change could not be stored (a full disk, say), so it was not made."""

    code = "registry_unavailable"
    message = "Registry is unavailable"


class InvalidAudience(CommandError):
    """Not an audience, or not the attributes of a token: see `mist.fields`.

    The text may say what is wrong with it, without quoting it.
    """

    code = "invalid_audience"
    message = "Invalid audience"


class ClientTaken(CommandError):
    """The client id belongs to another token, for as long as that one's client is alive."""

    code = "client_taken"
    message = "Client id is taken"


class TooManySubscriptions(CommandError):
    """The session holds as many subscriptions as it may."""

    code = "too_many_subscriptions"
    message = "Too many subscriptions"


class NotSubscribed(CommandError):
    """The session has no such named subscription."""

    code = "not_subscribed"
    message = "Not subscribed"


class PresenceOff(CommandError):
    """Presence was asked for at tags that the server keeps none of; see `--presence`."""

    code = "presence_off"
    message = "Presence is off for these tags"


class TooManyWatches(CommandError):
    """The session, its token, or the server watches the presence of as many tag sets as it may."""

    code = "too_many_watches"
    message = "Too many presence watches"


class HistoryOff(CommandError):
    """The command needs a message history, and this server keeps none."""

    code = "history_off"
    message = "History is off"


class LatestOff(CommandError):
    """The latest values of these tags are not kept: no `--latest` covers them."""

    code = "latest_off"
    message = "Latest values are off"


class InvalidPosition(CommandError):
    """Not a place in a message history: see `mist.commands.Since`."""

    code = "invalid_position"
    message = "Invalid position"


class KeyConflict(CommandError):
    """The idempotency key was used for another message."""

    code = "idempotency_conflict"
    message = "that key was used for another message"


class HistoryUnavailable(CommandError):
    """The log could not be written or read: a full disk, say. Nothing was stored.

    The text may say more, for a person who looks after the server; what a peer is told is
    `message`.
    """

    code = "history_unavailable"
    message = "History is unavailable"


class NumberUnknown(MistError):
    """A message was published, but its number in its channel could not be read.

    Attributes:
        id: of the message in the history.
    """

    code = "number_unknown"

    def __init__(self, id_: int) -> None:
        super().__init__(f"message {id_} was published, but its number can't be read")
        self.id = id_


class HistoryDamaged(HistoryUnavailable):
    """A block of the log is not what was written.

    Attributes:
        first: the lowest id that may be in it.
        last: the highest; what lies behind can be read. 0 where it is not known, and nothing
            can.
        reason: what is wrong, for a person.
    """

    code = "history_damaged"

    def __init__(self, first: int, reason: str, last: int = 0) -> None:
        super().__init__(f"History is damaged at {first}: {reason}")
        self.first = first
        self.last = last
        self.reason = reason


class Unauthorized(CommandError):
    """A secret or a token was demanded, and this was not it."""

    code = "unauthorized"
    message = "Unauthorized"


class ProtocolViolation(MistError):
    """The peer broke the protocol beyond what its session can survive."""

    code = "protocol_violation"
    message = "Protocol violation"


class StartupError(MistError):
    """The server can't start: a port in use, a folder that can't be written, a bad certificate.

    The text is one line, fit to print as it is.
    """

    code = "startup"


class ConfigError(StartupError):
    """A setting that can't be used: an unknown key, a bad value, two that contradict."""

    code = "config"


class ClientError(MistError):
    """Root of what `mist.client` raises."""

    code = "client"


class ConnectError(ClientError):
    """The server could not be reached, or refused the connection."""

    code = "connect"


class ConnectionLost(ClientError):
    """The connection broke while an answer was awaited."""

    code = "connection_lost"
    message = "connection lost"


class ClientClosed(ClientError):
    """The client was closed, by this side."""

    code = "client_closed"
    message = "client is closed"


class RemoteError(ClientError):
    """The server answered with an error.

    Attributes:
        text: what the server said, without the `error` before it.
    """

    code = "remote"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
