"""What the routes share."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from mist.config import Config, Listen
from mist.sessions.hub import Hub

if TYPE_CHECKING:
    from mist.http.access import Access
    from mist.http.subscribers import Streams
    from mist.http.tickets import Tickets

__all__ = ["Context"]


@attrs.frozen
class Context:
    """A server, as its HTTP routes see it.

    Attributes:
        hub: what all sessions share.
        config: how the server is set up.
        listening: all its listeners, ports made out.
        access: who asks, and what they may.
        is_draining: whether the server is on its way out.
        started: when it started, Unix seconds.
        tickets: of all its listeners.
        streams: of all its listeners.
    """

    hub: Hub
    config: Config
    listening: tuple[Listen, ...]
    access: "Access"
    is_draining: Callable[[], bool]
    started: float
    tickets: "Tickets"
    streams: "Streams"
