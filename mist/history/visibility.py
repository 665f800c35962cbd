"""Targeted delivery of stored messages: which of them a session may get, by their audience."""

from typing import Final

from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.attribute_index import is_global, reaches
from mist.errors import InvalidAudience
from mist.history.record import Stored
from mist.message import Envelope, TagSet

__all__ = ["envelope_of", "may_get", "visible_to"]


class _Nobody(Audience):
    """An audience whose text can't be parsed: it admits nobody."""

    def admits(self, attributes: Attributes) -> bool:
        return False


_NOBODY: Final = _Nobody(clients=frozenset("?"))


def envelope_of(stored: Stored) -> Envelope:
    """The envelope of its messages: everything beside tags and data."""
    return Envelope(stored.time, stored.publisher, _audience(stored), stored.meta)


def visible_to(stored: Stored, attributes: Attributes) -> Stored | None:
    """The part of a publication that a session with these attributes may get; None is nothing."""
    if stored.audience is None and not attributes.site:
        return stored
    audience = _audience(stored)
    may = [
        reaches(audience, attributes, is_global(tag_list.tags)) for tag_list, _, _ in stored.entries
    ]
    if all(may):
        return stored
    return stored.keep([(place, 0) for place, each in enumerate(may) if each])


def may_get(audience: str | None, tags: TagSet, attributes: Attributes) -> bool:
    """Whether a session with these attributes may get messages with an audience and tags."""
    return reaches(_parsed(audience), attributes, is_global(tags))


def _audience(stored: Stored) -> Audience | None:
    return _parsed(stored.audience)


def _parsed(audience: str | None) -> Audience | None:
    if audience is None:
        return None
    try:
        return Audience.parse(audience)
    except InvalidAudience:  # from another version: admit nobody rather than everyone
        return _NOBODY
