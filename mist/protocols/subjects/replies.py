"""What clients of subjects are answered: `+OK`, `PONG`, and `-ERR` with the words of NATS."""

from typing import Final

import attrs

from mist.commands import Auth, Command, Invalid, Ping, Publish, SubscribeNamed, UnsubscribeNamed
from mist.errors import NotGranted
from mist.protocols.subjects.commands import Options, error_text
from mist.protocols.subjects.forms import subject_of

__all__ = ["Mixed", "Owed", "acknowledgement", "close_error", "error_line", "failure"]

_OK: Final = b"+OK\r\n"
_CLOSE_ERRORS: Final = {
    4008: "Slow Consumer",
    4401: "User Authentication Revoked",
    4408: "Stale Connection",
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
class Mixed:
    """A batch of several subjects; a command's `ref`.

    Attributes:
        refused: whether the token doesn't allow all of them. Then none was published; they are
            tried one by one, since what comes in one read must not make a difference.
    """

    refused: bool = False


def error_line(text: str) -> bytes:
    """An error, as clients read it."""
    return b"-ERR '%b'\r\n" % text.encode()


def close_error(code: int, *, unauthenticated: bool) -> bytes:
    """The last line to a peer, where clients know one for why the session ended.

    Nothing where the server shuts down: a client that gets an error may not reconnect.

    Args:
        code: see `mist.sessions.close_reason.CloseReason`.
    """
    text = (_UNAUTHENTICATED_CLOSE_ERRORS if unauthenticated else _CLOSE_ERRORS).get(code)
    return error_line(text) if text else b""


def failure(command: Command, error: Exception) -> bytes:
    """The answer to a command that failed; it is noted where a later answer depends on it."""
    match command:
        case Invalid(error=wrong, name=name):
            return error_line(error_text(wrong, name))  # to an unauthenticated peer as well
        case Publish(ref=Mixed() as mixed) if isinstance(error, NotGranted):
            mixed.refused = True
            return b""
        case Publish(batch=batch, ref=owed):
            if isinstance(owed, Owed):
                owed.failed = True
            text = error_text(error, "PUB", batch.tag_lists[0][1:].decode())
            # A session reports this error once for a whole batch, and others for each message.
            count = sum(run[2] for run in batch.runs) if isinstance(error, NotGranted) else 1
            return error_line(text) * count
        case SubscribeNamed(tags=tags):
            return error_line(error_text(error, "SUB", subject_of(tags)))
        case _:
            return error_line(error_text(error, None))


def acknowledgement(command: Command, options: Options) -> bytes:
    """The answer to a command that has taken effect; empty where the client wants none."""
    match command:
        case Ping(ref=Owed(count=count, failed=failed, instead=instead)):
            return b"" if failed else instead or _OK * count
        case Ping():
            return b"PONG\r\n"
        case Auth():
            return _OK if options.verbose else b""
        case SubscribeNamed() | UnsubscribeNamed(ref=None):
            return _OK if options.is_verbose else b""
        case _:
            return b""
