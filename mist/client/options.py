"""Connection options and connection state of a client."""

import ssl
from enum import Enum

import attrs

from mist.client.backoff import Backoff

__all__ = ["Options", "State"]


class State(Enum):
    """State of a client's connection."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


@attrs.frozen(kw_only=True)
class Options:
    """How to connect and reconnect; see `mist.client.connect`. Times are in seconds."""

    reconnect: bool
    wait: bool
    backoff: Backoff
    connect_seconds: float
    keepalive_seconds: float
    ssl_context: ssl.SSLContext | None
