"""Records of credentials that no registry has: made when one is checked."""

import attrs

from mist.attributes import Attributes
from mist.auth.limits import check_limits
from mist.auth.record import Record
from mist.errors import CommandError
from mist.message import EVENTS, GRANT, TagSet, parse_tags

__all__ = ["IssuedRecord", "Rejected", "check_grants"]


@attrs.frozen
class IssuedRecord(Record):
    """The record of a credential that was issued elsewhere, for as long as it is in use.

    Its `id` is that of whom it was issued to: limits hold for all credentials of a user together,
    and a client keeps its id when it has a new one. It names nothing in the registry.

    Attributes:
        issued: when, Unix seconds.
        token_mark, user_mark: digests under which it may be revoked, see `mist.auth.revocations`;
            empty where it has no name, or is no user's.
    """

    issued: float = 0.0
    token_mark: bytes = attrs.field(default=b"", repr=False)
    user_mark: bytes = attrs.field(default=b"", repr=False)

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


def check_grants(
    given: object, where: str, subject: str, max_tags: int
) -> tuple[TagSet, Attributes]:
    """Grants and attributes that come from elsewhere: `{"tags": […], "attributes": {…}}`.

    Args:
        where: they are, for the text of an error.
        subject: who it is; empty where the attributes say so.
        max_tags: at most.

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
    if any(tag.lstrip("@>=").startswith(EVENTS) for tag in tags):
        raise Rejected("grants", f"{where} grants tags of the server's own (mist:)")
    try:
        found = parse_tags(tags, max_tags, GRANT)
        known = Attributes.of_json({**attributes, **({"user": subject} if subject else {})})
        check_limits(known)
    except CommandError as error:
        raise Rejected("grants", f"{where}: {error}") from None
    return found, known
