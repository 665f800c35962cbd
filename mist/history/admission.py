"""Who may get what is read from a history: the audience that a message was published for."""

from typing import Final

from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.attribute_index import is_global, reaches
from mist.errors import InvalidAudience
from mist.history.record import Stored
from mist.message import Envelope

__all__ = ["admitted", "envelope_of"]


class _Nobody(Audience):
    """What an audience admits that nobody can read."""

    def admits(self, attributes: Attributes) -> bool:
        return False


_NOBODY: Final = _Nobody(clients=frozenset("?"))


def envelope_of(stored: Stored) -> Envelope:
    """What its messages have beside tags and data."""
    return Envelope(stored.time, stored.publisher, _audience(stored), stored.meta)


def admitted(stored: Stored, attributes: Attributes) -> Stored | None:
    """What of it a session with these attributes may get; None for nothing."""
    if stored.audience is None and not attributes.site:
        return stored
    audience = _audience(stored)
    may = [
        reaches(audience, attributes, is_global(tag_list.tags)) for tag_list, _, _ in stored.entries
    ]
    if all(may):
        return stored
    return stored.keep([(place, 0) for place, each in enumerate(may) if each])


def _audience(stored: Stored) -> Audience | None:
    if stored.audience is None:
        return None
    try:
        return Audience.parse(stored.audience)
    except InvalidAudience:  # of another version's making: rather nobody than everyone
        return _NOBODY
