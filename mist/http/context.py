"""The context of a request: the server, as its HTTP routes see it."""

from collections.abc import Callable

import attrs

from mist.config import Config, Listen
from mist.http.access import Access
from mist.http.open_streams import Streams
from mist.http.ticket_store import Tickets
from mist.sessions.hub import Hub
from mist.sessions.known_nodes import NodeState

__all__ = ["Context"]


@attrs.frozen
class Context:
    """What all routes of a server share.

    Attributes:
        hub: what all sessions share.
        config: the server's settings.
        listening: all its listeners, with the ports actually bound.
        access: authenticates requests.
        is_draining: whether the server is shutting down.
        started: when it started, Unix seconds.
        tickets: issued by any listener, accepted by all.
        streams: open on any listener.
        describe: what the server says of itself.
    """

    hub: Hub
    config: Config
    listening: tuple[Listen, ...]
    access: Access
    is_draining: Callable[[], bool]
    started: float
    tickets: Tickets
    streams: Streams
    describe: Callable[[], NodeState]
