"""What can be done to a token: the commands of a peer, and what only programs here ask for."""

import attrs

from mist.audience import NO_ATTRIBUTES, Attributes
from mist.auth.record import Record
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.errors import CommandError
from mist.message import TagSet

__all__ = ["Amend", "ById", "Change", "Enroll", "Outcome", "Remove"]


@attrs.frozen
class Enroll:
    """Make a token known with all of `tags` and with `attributes`, or not at all.

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
    """Forget the token with this id."""

    id: str


Change = Register | Enroll | Unregister | AddTags | RemoveTags | SetAttributes | Amend | Remove
"""What can be done to a token: by its text, as the commands say it, or by its id."""

ById = Amend | Remove
"""Those that name the token by its id."""

Outcome = Record | None | CommandError
"""What a change came to: the token's record, None where there is none any more, or why not."""
