"""What a server says of itself: to the other nodes of its engine, and to operators."""

from mist.sessions.hub import Hub
from mist.sessions.known_nodes import NodeState
from mist.sessions.readiness import not_ready
from mist.version import __version__

__all__ = ["describe"]


def describe(hub: Hub, *, name: str, advertise: str | None, uptime: float) -> NodeState:
    """A server as it is now. O(transports).

    Args:
        name, advertise, uptime: see `NodeState`.
    """
    reason = not_ready(hub)
    sessions, sequencer = hub.sessions, hub.sequencer
    return NodeState(
        name=name,
        version=__version__,
        advertise=advertise,
        uptime=round(uptime, 3),
        not_ready="" if reason is None else reason.code,
        lag=0.0 if sequencer is None else round(sequencer.lag, 3),
        newest=0 if sequencer is None else sequencer.newest,
        registry=hub.registry.number,
        sealing=hub.sealer is not None and hub.sealer.sealing,
        accounts=0 if hub.side_tables is None else hub.side_tables.accounted,
        sessions=sessions.connected,
        lifetime=sessions.lifetime,
        tag_sets=hub.broker.tag_sets(),
        connections=dict(sessions.connections),
    )
