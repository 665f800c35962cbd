"""A registry record: everything known about one token but its text."""

from functools import cached_property

import attrs

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth.grant import Grant
from mist.message import TagSet

__all__ = ["Record"]


@attrs.frozen
class Record:
    """A registered token. A change of the token makes a new record with the same `id`.

    Attributes:
        id: random, so it reveals nothing of the token; it names the token in logs, metrics and
            the history. A token that is registered again gets a new one.
        digest: HMAC-SHA-256 of the token, 32 bytes. Not in the repr: someone who has it and
            the key can test guesses.
        tags: in the form given, marks (`*`, `>`) included. May be empty: a token whose last
            tag was removed is still known, and grants nothing.
        created: when it was registered, Unix seconds.
        attributes: who holds it; see `mist.attributes`.
        expires: Unix seconds from which on it is no good; None for never.
        name: for those who manage tokens; empty for none. See `mist.terms`.
    """

    id: str
    digest: bytes = attrs.field(repr=False)
    tags: TagSet
    created: float
    attributes: Attributes = NO_ATTRIBUTES
    expires: float | None = None
    name: str = ""

    def expired(self, now: float) -> bool:
        """Whether it has expired.

        Args:
            now: Unix seconds.
        """
        return self.expires is not None and self.expires <= now

    @cached_property
    def grant(self) -> Grant:
        """What the tags allow. Made when first asked for: few tokens of many are in use."""
        return Grant(self.tags)
