"""What clients of subjects are answered: `+OK`, `PONG`, and `-ERR` with the words of NATS."""

from typing import Final

import attrs

from mist.commands import Auth, Command, Invalid, Ping, Publish, SubscribeNamed, UnsubscribeNamed
from mist.errors import (
    DataTooLong,
    HistoryUnavailable,
    LineTooLong,
    NotGranted,
    NotSubscribed,
    TooManyConnections,
    TooManyRequests,
    TooManySubscriptions,
    Unauthorized,
    UnknownCommand,
    WrongArguments,
)
from mist.protocols.subjects.commands import InvalidField, InvalidSubject, Options
from mist.protocols.subjects.forms import subject_of

__all__ = [
    "Ending",
    "Owed",
    "acknowledgement",
    "close_error",
    "error_line",
    "failure",
    "subscription_violation",
]

_OK: Final = b"+OK\r\n"
_MAX_SUBJECT: Final = 512  # bytes; clients compare it with their own, so it should be whole
_CLOSE_ERRORS: Final = {
    4008: "Slow Consumer",
    4401: "User Authentication Revoked",
    4408: "Stale Connection",
    4429: "Too many requests",
}
_UNAUTHENTICATED_CLOSE_ERRORS: Final = {  # 4401 has been answered already
    4408: "Authentication Timeout",
    4429: "maximum connections exceeded",
}


@attrs.define
class Owed:
    """The acknowledgements that a verbose client is owed for a batch; a command's `ref`.

    Attributes:
        count: messages in it.
        failed: whether it was refused, which was answered instead.
        instead: what the fence behind it is answered with, in place of as many `+OK`.
    """

    count: int
    failed: bool = False
    instead: bytes = b""


@attrs.define
class Ending:
    """One UNSUB, which may mean several subscriptions; their commands' `ref`.

    Attributes:
        name: a sid or a subject, as it was written; empty where the client didn't ask for it.
        left: of those subscriptions, how many have yet to be ended.
        found: whether there was one of them.
    """

    name: bytes
    left: int = 1
    found: bool = False

    def end_one(self, found: bool) -> bool:
        """Note what came of one of them; whether it was the last."""
        self.found = self.found or found
        self.left -= 1
        return not self.left


def error_line(text: str) -> bytes:
    """An error, as clients read it."""
    return b"-ERR '%b'\r\n" % text.encode()


def subscription_violation(subject: str, queue: str) -> str:
    """Why a client has no such subscription, to which it finds its own by these very words."""
    using = f' using queue "{queue}"' if queue else ""
    return f'Permissions Violation for Subscription to "{subject}"{using}'


def close_error(code: int, *, unauthenticated: bool) -> bytes:
    """The last line to a peer, where clients know one for why the session ended.

    Nothing where the server shuts down: a client that gets an error may not reconnect.

    Args:
        code: see `mist.sessions.close_reason.CloseReason`.
    """
    text = (_UNAUTHENTICATED_CLOSE_ERRORS if unauthenticated else _CLOSE_ERRORS).get(code)
    return error_line(text) if text else b""


def failure(command: Command, error: Exception, options: Options) -> bytes:
    """The answer to a command that failed; it is noted where a later answer depends on it."""
    match command:
        case Invalid(error=InvalidSubject() as wrong, name=name) if options.is_nats:
            return error_line(_violation(wrong, name))
        case Invalid(error=wrong, name=name):
            return error_line(_error_text(wrong, name))  # to an unauthenticated peer as well
        case Publish(batch=batch, ref=owed):
            if isinstance(owed, Owed):
                owed.failed = True
            text = _error_text(error, "PUB", batch.tag_lists[0][1:].decode())
            # A session reports this error once for a whole batch, which then has one subject,
            # and others for each message.
            count = batch.count if isinstance(error, NotGranted) else 1
            return error_line(text) * count
        case SubscribeNamed(tags=tags, queue=queue):
            return error_line(_error_text(error, "SUB", subject_of(tags), queue))
        case Auth() if isinstance(error, TooManyConnections):
            return b""  # `close_error` says it
        case UnsubscribeNamed(ref=Ending() as ending) if isinstance(error, NotSubscribed):
            return _ended(ending, options) if ending.end_one(found=False) else b""
        case _:
            return error_line(_error_text(error, None))


def acknowledgement(command: Command, options: Options) -> bytes:
    """The answer to a command that has taken effect; empty where the client wants none."""
    match command:
        case Ping(ref=Owed(count=count, failed=failed, instead=instead)):
            return b"" if failed else instead or _OK * count
        case Ping():
            return b"PONG\r\n"
        case Auth():
            return _OK if options.verbose else b""
        case SubscribeNamed():
            return _OK if options.is_verbose else b""
        case UnsubscribeNamed(ref=Ending() as ending):
            return _ended(ending, options) if ending.end_one(found=True) else b""
        case _:
            return b""


def _ended(ending: Ending, options: Options) -> bytes:
    """The one answer to an UNSUB.

    NATS takes it for done where there is no such subscription: it may have ended by itself.
    """
    if not options.is_verbose or not ending.name:
        return b""
    if ending.found or options.is_nats:
        return _OK
    return error_line(f"subject {_quoted(ending.name)} not found in you subscriptions")


def _error_text(error: Exception, name: str | None, subject: str = "", queue: str = "") -> str:
    """What stands between the quotes of `-ERR '…'`.

    Args:
        error: what is wrong.
        name: of the command.
        subject, queue: that it is about, where that can be read.
    """
    match error:
        case UnknownCommand(fields=fields):
            return f"unknown command: {_quoted(fields)}"
        case InvalidField():
            return f"{name} command: {error}"
        case WrongArguments():
            return f"{name} command: insufficient arguments"
        case InvalidSubject() if name == "SUB":
            return f"failed to add subscriber: invalid subject: {error}"
        case InvalidSubject():
            return f"{name} command: invalid subject: {error}"
        case DataTooLong():
            return f"{name} command: {error}"
        case Unauthorized():
            return "Authorization Violation"
        case NotGranted() if name == "PUB":
            return f'Permissions Violation for Publish to "{subject}"'
        case TooManyRequests() if name == "PUB":
            # In words at which clients don't end the connection, as they do at those unknown.
            return f'Permissions Violation for Publish to "{subject}": too many requests'
        case TooManyRequests() if name == "SUB":
            return f"{subscription_violation(subject, queue)}: too many requests"
        case NotGranted():
            return subscription_violation(subject, queue)
        case TooManySubscriptions():
            return "maximum subscriptions exceeded"
        case LineTooLong():
            return "maximum control line exceeded"
        case HistoryUnavailable():
            return HistoryUnavailable.message  # its text is for the operator
        case _:
            return str(error)


def _violation(error: InvalidSubject, name: str | None) -> str:
    """What a client of NATS is told of a subject that can't be used here.

    NATS itself allows most of them. Clients end the connection at an error that they don't know,
    nats-py even at `Invalid Subject`; at this one they fail what it is about, and go on.
    """
    subject = _quoted(error.subject, _MAX_SUBJECT)
    if name == "SUB":
        text = subscription_violation(subject, _quoted(error.queue))
    elif error.is_reply:
        text = f'Permissions Violation for Publish with Reply of "{subject}"'
    else:
        text = f'Permissions Violation for Publish to "{subject}"'
    return f"{text}: {error}"


def _quoted(raw: bytes, most: int = 64) -> str:
    """A word of the peer's, harmless: cut, and without what ends a line."""
    text = raw[:most].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
