"""Presence of a server: opened where `--presence` names tags."""

from collections.abc import Mapping, Sequence

from mist.broker.presence import Presence, PresenceTags
from mist.sessions.hub import Hub
from mist.sessions.presence import PresenceService
from mist.sessions.realm_presence import RealmPresence

__all__ = ["join_presence", "open_presence"]


def open_presence(hub: Hub, patterns: Sequence[str]) -> None:
    """Keep presence for tags of these patterns; none without any. Before the first session."""
    if patterns:
        hub.broker.presence = presence = Presence(PresenceTags(patterns), hub.now)
        hub.presence = PresenceService(presence, hub.flush_scheduler)


def join_presence(hub: Hub) -> None:
    """Have presence tell of all nodes, where there are others. Once the hub has them."""
    service, nodes = hub.presence, hub.nodes
    if service is None or nodes is None:
        return

    async def ask(question: bytes) -> Mapping[str, bytes]:
        return (await nodes.ask(question, often=True))[0]

    async def living() -> set[str]:
        return {each.id for each in await nodes.all() if not each.is_silent}

    service.others = RealmPresence(
        ask,
        living,
        lambda: nodes.name,
        keys=lambda: service.keys,
        concerned=service.concerned,
        changed=service.note_changed,
    )
