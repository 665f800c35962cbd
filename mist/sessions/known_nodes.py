"""A node, as it tells of itself and as others know it; a server without an engine is one, too."""

import attrs
import msgspec

__all__ = ["KnownNode", "NodeState"]


class NodeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says of itself.

    Nodes of several versions hear each other: fields have defaults, and none changes its meaning.

    Attributes:
        name: for people, see `--node`.
        advertise: the URL at which clients reach it; None where it is not known.
        uptime: seconds.
        not_ready: why it is not ready, a code of `NotReady`; empty where it is.
        lag: seconds that it is behind the engine's log.
        offset: of the last record that it has applied.
        newest: the highest id that it has delivered.
        erasing: offset of the first erasure that it has not carried out yet; 0 where it has all.
        registry: version of its tokens.
        sealing: whether it seals the archive.
        accounts: the minute, since 1970, up to which its usage accounting is in the archive; 0
            where it keeps none.
        sessions: connected now.
        lifetime: sessions since its start.
        tag_sets: distinct ones that its sessions are subscribed to.
        connections: sessions now, by transport.
        member: see `mist.broker.queue_shares.QueueShares.node`.
    """

    name: str = ""
    version: str = ""
    advertise: str | None = None
    uptime: float = 0.0
    not_ready: str = ""
    lag: float = 0.0
    offset: int = 0
    newest: int = 0
    erasing: int = 0
    registry: int = 0
    sealing: bool = False
    accounts: int = 0
    sessions: int = 0
    lifetime: int = 0
    tag_sets: int = 0
    connections: dict[str, int] = msgspec.field(default_factory=dict)
    member: str = ""


@attrs.frozen
class KnownNode:
    """A node, as another one knows it.

    Attributes:
        id: the name under which it has entered the engine, which is another one after a restart.
        age: seconds since its last heartbeat, by the engine's clock.
        is_self: whether it is the one that says so.
        is_silent: whether it has died, is cut off from the engine, or stands still.
    """

    id: str
    state: NodeState
    age: float
    is_self: bool
    is_silent: bool = False
