"""What a link is told to do, and how it says that it stands."""

import random
import ssl
from collections.abc import Callable
from enum import Enum

import attrs

__all__ = ["Backoff", "Options", "State"]


class State(Enum):
    """How a client stands."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


@attrs.frozen
class Backoff:
    """How long to wait before an attempt: full jitter.

    A random time up to `base` doubled with each failure and never above `cap`. Random from
    zero on, since clients that lost the same server must not come back in step.

    Attributes:
        base: seconds, for the first attempt.
        cap: seconds.
    """

    base: float = 0.5
    cap: float = 30.0

    def delay(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after so many failures in a row, from 1."""
        return draw() * min(self.cap, self.base * 2.0 ** min(failures - 1, 60))


@attrs.frozen(kw_only=True)
class Options:
    """What a link is to do; see `mist.client.connect`. Times in seconds."""

    reconnect: bool
    wait: bool
    backoff: Backoff
    connect_seconds: float
    keepalive_seconds: float
    ssl_context: ssl.SSLContext | None
