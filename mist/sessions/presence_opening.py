"""Presence of a server: opened where `--presence` names tags."""

from collections.abc import Sequence

from mist.broker.presence import Presence, PresenceTags
from mist.sessions.hub import Hub
from mist.sessions.presence import PresenceService

__all__ = ["open_presence"]


def open_presence(hub: Hub, patterns: Sequence[str]) -> None:
    """Keep presence for tags of these patterns; none without any. Before the first session."""
    if patterns:
        hub.broker.presence = presence = Presence(PresenceTags(patterns), hub.now)
        hub.presence = PresenceService(presence, hub.flush_scheduler)
