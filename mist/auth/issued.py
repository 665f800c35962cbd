"""Records of credentials that no registry has: made when one is checked."""

from functools import cached_property
from typing import Final

import attrs

from mist.attributes import Attributes
from mist.auth.grant import Grant
from mist.auth.limits import check_limits
from mist.auth.record import Record
from mist.errors import CommandError
from mist.message import EVENTS, GRANT, parse_tags

__all__ = ["IssuedRecord", "Rejected", "SharedGrants", "check_grants"]

_MOST_TAGS: Final = 100_000  # in grants that are kept to be shared: some 10 MB


@attrs.frozen
class IssuedRecord(Record):
    """The record of a credential that was issued elsewhere, for as long as it is in use.

    Its `id` is that of whom it was issued to: limits hold for all credentials of a user together,
    and a client keeps its id when it has a new one. It names nothing in the registry.

    Attributes:
        issued: when, Unix seconds.
        token_mark, user_mark: digests under which it may be revoked, see `mist.auth.revocations`;
            empty where it has no name, or is no user's.
        shared: what the tags allow, where another record has that already.
        is_renewed: whether another one is asked for before it expires. It expires, then, since
            nobody could tell whether the credential is still good.
    """

    issued: float = 0.0
    token_mark: bytes = attrs.field(default=b"", repr=False)
    user_mark: bytes = attrs.field(default=b"", repr=False)
    shared: Grant | None = attrs.field(default=None, repr=False, eq=False)
    is_renewed: bool = attrs.field(default=False, repr=False)

    @cached_property
    def grant(self) -> Grant:
        """As of any record."""
        return Grant(self.tags) if self.shared is None else self.shared

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Those that there are."""
        return tuple(filter(None, (self.token_mark, self.user_mark)))


class Rejected(Exception):
    """A credential that isn't accepted. The text is for the client, and has nothing of it.

    Attributes:
        reason: one word for a count.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class SharedGrants:
    """Grants by the tags that they are made of, as written: most credentials have those of others.

    What is kept is bounded by the number of tags. O(tags of one) to find.
    """

    __slots__ = ("_grants", "_tags")

    def __init__(self) -> None:
        self._grants: dict[tuple[str, ...], Grant] = {}
        self._tags = 0

    def of(self, tags: list[str], where: str, max_tags: int) -> Grant:
        """What tags allow that come from elsewhere.

        Args:
            where: they are, for the text of an error.
            max_tags: at most.

        Raises:
            Rejected: they can't be those of a token, or are such as none may have.
        """
        key = tuple(tags)
        found = self._grants.get(key)
        if found is not None and len(found.tags) <= max_tags:
            return found
        if any(tag.lstrip("@>=").startswith(EVENTS) for tag in tags):
            raise Rejected("grants", f"{where} grants tags of the server's own (mist:)")
        try:
            found = Grant(parse_tags(tags, max_tags, GRANT))
        except CommandError as error:
            raise Rejected("grants", f"{where}: {error}") from None
        self._tags += len(key)
        if self._tags > _MOST_TAGS:
            self._grants.clear()
            self._tags = len(key)
        self._grants[key] = found
        return found


def check_grants(
    given: object, where: str, subject: str, max_tags: int, grants: SharedGrants
) -> tuple[Grant, Attributes]:
    """Grants and attributes that come from elsewhere: `{"tags": […], "attributes": {…}}`.

    Args:
        where: they are, for the text of an error.
        subject: who it is; empty where the attributes say so.
        max_tags: at most.
        grants: of credentials before.

    Raises:
        Rejected: they can't be those of a token, or grant what none may have.
    """
    if not isinstance(given, dict):
        raise Rejected("grants", f"{where} has no grants: it is no object with tags")
    tags, attributes = given.get("tags"), given.get("attributes", {})
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Rejected("grants", f"{where} has no grants: tags is no list of texts")
    if not isinstance(attributes, dict):
        raise Rejected("grants", f"{where}: attributes is no object")
    found = grants.of(tags, where, max_tags)
    try:
        if not attributes:
            return found, Attributes(user=subject)
        known = Attributes.of_json({**attributes, **({"user": subject} if subject else {})})
        check_limits(known)
    except CommandError as error:
        raise Rejected("grants", f"{where}: {error}") from None
    return found, known
