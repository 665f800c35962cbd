"""What the token registry is asked for, and what changes it."""

from typing import Final, TypeAlias

import attrs

from mist.attributes import Attributes
from mist.commands.base import BaseCommand
from mist.errors import InvalidRevocation
from mist.message import TagSet
from mist.terms import UNCHANGED, Terms

__all__ = [
    "MAX_CLAIM",
    "AddTags",
    "ListTokens",
    "Register",
    "RegistryChange",
    "RemoveTags",
    "Revoke",
    "RevokeIssued",
    "SetAttributes",
    "SetTerms",
    "ShowAttributes",
    "ShowTags",
    "ShowToken",
    "TokenCommand",
    "Unregister",
]

MAX_CLAIM: Final = 255  # characters of `jti` and `sub`, by which JWTs are revoked


@attrs.define
class TokenCommand(BaseCommand):
    """What the commands on the token registry have.

    Attributes:
        token: never shown by `repr`.
    """

    token: str = attrs.field(repr=False)


@attrs.define
class Register(TokenCommand):
    """Make a token known, with all of `tags` and its terms, or not at all."""

    tags: TagSet
    terms: Terms = UNCHANGED


@attrs.define
class Unregister(TokenCommand):
    """Forget a token, and end its live sessions."""


@attrs.define
class Revoke(TokenCommand):
    """As `Unregister`; an error where there is no such token.

    This command and those below take the id of a token as well, where no token has that text.
    """


@attrs.define
class AddTags(TokenCommand):
    """Grant a token more tags."""

    tags: TagSet


@attrs.define
class RemoveTags(TokenCommand):
    """Take tags from a token; subscriptions that are no longer allowed end."""

    tags: TagSet


@attrs.define
class SetAttributes(TokenCommand):
    """Set or remove attributes of a token; those that aren't named stay as they are.

    Live sessions of the token have them at once.

    Attributes:
        attributes: what to set. Groups replace those it had.
        unset: names of attributes to remove, none of them also in `attributes`.
    """

    attributes: Attributes
    unset: frozenset[str] = frozenset()


@attrs.define
class SetTerms(TokenCommand):
    """Set when a token expires, or what it is called. Live sessions of the token end by it."""

    terms: Terms


@attrs.define
class RevokeIssued(BaseCommand):
    """Revoke what was issued elsewhere, and end its sessions; see `mist.auth.revocations`.

    Attributes:
        kind: `jti` for one token; `sub` for all that a user was issued until now.
        value: of that claim; never shown by `repr`.

    Raises:
        InvalidRevocation: it can't be that of a token.
    """

    kind: str
    value: str = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if self.kind not in ("jti", "sub") or not 0 < len(self.value) <= MAX_CLAIM:
            raise InvalidRevocation


@attrs.define
class ShowAttributes(TokenCommand):
    """The attributes of a token."""


@attrs.define
class ShowTags(TokenCommand):
    """The tags of a token."""


@attrs.define
class ShowToken(TokenCommand):
    """All that is known of a token."""


@attrs.define
class ListTokens(BaseCommand):
    """A page of all tokens.

    Attributes:
        after: the id after which it begins; empty for the first.
    """

    after: str = ""


RegistryChange: TypeAlias = (
    Register | Unregister | Revoke | AddTags | RemoveTags | SetAttributes | SetTerms | RevokeIssued
)
"""What changes the token registry, and so waits for its disk."""
