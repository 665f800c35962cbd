"""Changes of tokens: the commands of a peer, and those that only the HTTP API makes."""

import attrs

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth.record import Record
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.errors import CommandError
from mist.message import TagSet

__all__ = ["Amend", "ById", "Change", "Enroll", "Outcome", "Remove"]


@attrs.frozen
class Enroll:
    """Register a token with all of `tags` and with `attributes`, or not at all.

    Attributes:
        token: never shown by `repr`.
    """

    token: str = attrs.field(repr=False)
    tags: TagSet
    attributes: Attributes


@attrs.frozen
class Amend:
    """Change the tags and attributes of the token with this id, all of it or nothing.

    Attributes:
        add, remove: tags; one that is in both is removed.
        attributes, unset: as in `SetAttributes`.
    """

    id: str
    add: TagSet = frozenset()
    remove: TagSet = frozenset()
    attributes: Attributes = NO_ATTRIBUTES
    unset: frozenset[str] = frozenset()


@attrs.frozen
class Remove:
    """Remove the token with this id."""

    id: str


Change = Register | Enroll | Unregister | AddTags | RemoveTags | SetAttributes | Amend | Remove
"""A change of a token, named by its text, as in the commands, or by its id."""

ById = Amend | Remove
"""Those that name the token by its id."""

Outcome = Record | None | CommandError
"""The result of a change: the token's record, None where it is removed, or why it was refused."""
