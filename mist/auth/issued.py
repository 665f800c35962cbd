"""Records of credentials that no registry has: made when one is checked."""

import attrs

from mist.auth.record import Record

__all__ = ["IssuedRecord"]


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
