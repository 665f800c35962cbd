"""Why a session ends, in a form that logs, metrics and close frames can use."""

from typing import Final

import attrs

__all__ = [
    "DISCONNECTED",
    "ENDED_BY_OPERATOR",
    "HISTORY_FORKED",
    "HISTORY_LOST",
    "INTERNAL_ERROR",
    "REGISTRY_UNAVAILABLE",
    "TOKEN_EXPIRED",
    "TOKEN_REVOKED",
    "CloseReason",
]


@attrs.frozen
class CloseReason:
    """Why a session ended.

    Attributes:
        code: a WebSocket close code (RFC 6455, 7.4; 4400 to 4499 are ours, read like HTTP's).
        reason: for the log and the close frame; no token, no peer's text.
        grace: seconds that the peer has to take what is queued for it.
    """

    code: int
    reason: str
    grace: float = 1.0


DISCONNECTED: Final = CloseReason(1006, "peer disconnected", grace=10.0)
"""The peer closed its side, or the connection broke. It may still be reading: `nc` is, after
the end of its input."""

ENDED_BY_OPERATOR: Final = CloseReason(4410, "session ended by an operator")
"""A service has ended it. Its credential is as good as before: the peer may connect again."""

HISTORY_LOST: Final = CloseReason(1011, "history is unavailable")
"""The session was being replayed from the history, which can't be read any more."""

HISTORY_FORKED: Final = CloseReason(1012, "the history has another epoch")
"""Messages that were acknowledged are lost, perhaps some that the peer has. It is to come back with
its position, and hears."""

INTERNAL_ERROR: Final = CloseReason(1011, "internal error")
"""What should be sent to the peer can't be told any more; the server's log says why."""

REGISTRY_UNAVAILABLE: Final = CloseReason(1013, "token registry is unavailable")
"""It can't be told any more whether the session's credential is good. The peer may come back with
it, and is let in once that can be told."""

TOKEN_EXPIRED: Final = CloseReason(4401, "token expired")
"""The time has come at which the session's token expires."""

TOKEN_REVOKED: Final = CloseReason(4401, "token revoked")
"""The session's token was revoked, or grants nothing any more."""
