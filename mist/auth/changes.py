"""Changes of tokens: the commands of a peer, and those that only the HTTP API makes."""

import attrs

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth.record import Record
from mist.commands import (
    AddTags,
    Register,
    RemoveTags,
    Revoke,
    RevokeIssued,
    SetAttributes,
    SetTerms,
    Unregister,
)
from mist.errors import CommandError
from mist.message import TagSet
from mist.terms import UNCHANGED, Terms

__all__ = ["Amend", "ById", "Change", "Discard", "Enroll", "Outcome", "Remove"]


@attrs.frozen
class Enroll:
    """Register a token with all of `tags`, with `attributes` and `terms`, or not at all.

    Attributes:
        token: never shown by `repr`.
    """

    token: str = attrs.field(repr=False)
    tags: TagSet
    attributes: Attributes
    terms: Terms = UNCHANGED


@attrs.frozen
class Amend:
    """Change the tags, attributes and terms of the token with this id, all of it or nothing.

    Attributes:
        add, remove: tags; one that is in both is removed.
        attributes, unset: as in `SetAttributes`.
        terms: as in `SetTerms`.
    """

    id: str
    add: TagSet = frozenset()
    remove: TagSet = frozenset()
    attributes: Attributes = NO_ATTRIBUTES
    unset: frozenset[str] = frozenset()
    terms: Terms = UNCHANGED


@attrs.frozen
class Remove:
    """Remove the token with this id."""

    id: str


@attrs.frozen
class Discard:
    """Remove the token with this id if it has expired. Where it hasn't, or isn't there, it is no
    error, and changes nothing: another server may have been first."""

    id: str


Change = (
    Register
    | Enroll
    | Unregister
    | Revoke
    | AddTags
    | RemoveTags
    | SetAttributes
    | SetTerms
    | RevokeIssued
    | Amend
    | Remove
    | Discard
)
"""A change of a token, named by its text, as in the commands, or by its id; or a revocation of
what was issued elsewhere."""

ById = Amend | Remove | Discard
"""Those that name the token by its id."""

Outcome = Record | None | CommandError
"""The result of a change: the token's record, None where it is removed, or why it was refused."""
