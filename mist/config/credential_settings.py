"""Settings of credentials that are issued elsewhere: JWTs, and a callout."""

from pathlib import Path

import attrs

from mist.config import kinds
from mist.config.options import about

__all__ = ["CredentialSettings"]


@attrs.frozen(kw_only=True)
class CredentialSettings:
    """See the module, and `mist.config.settings.Settings`."""

    jwt_jwks: tuple[str, ...] = attrs.field(
        default=(),
        repr=lambda places: repr(tuple(map(kinds.without_password, places))),
        metadata=about(
            kinds.WEB_OR_FILE,
            "Keys of an issuer of JWTs, a JWKS; needs the extra jwt",
            repeatable=True,
        ),
    )
    jwt_secret_file: Path | None = attrs.field(
        default=None,
        metadata=about(
            kinds.path(),
            "File that holds a secret of 32 bytes or more, with which JWTs are signed by HS256",
        ),
    )
    jwt_issuer: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(kinds.CLAIM_VALUE, "What iss of a JWT may be", repeatable=True),
    )
    jwt_audience: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(kinds.CLAIM_VALUE, "What aud of a JWT may name", repeatable=True),
    )
    jwt_claim: str = attrs.field(
        default="mist",
        metadata=about(kinds.CLAIM, "Claim of a JWT that has its tags and attributes"),
    )
    jwt_max_age: float = attrs.field(
        default=30 * 86_400.0,
        metadata=about(
            kinds.seconds(1.0),
            "Longest life of a JWT; revocations are kept for as long",
        ),
    )

    auth_url: str | None = attrs.field(
        default=None,
        repr=lambda url: repr(url and kinds.without_password(url)),
        metadata=about(
            kinds.WEB_URL,
            "Where it is asked what a token grants that is not registered; needs the extra jwt",
        ),
    )
    auth_url_subscribe: str | None = attrs.field(
        default=None,
        repr=lambda url: repr(url and kinds.without_password(url)),
        metadata=about(
            kinds.WEB_URL,
            "Where it is asked about subscriptions that a token doesn't grant; needs the extra jwt",
        ),
    )
    auth_url_secret_file: Path | None = attrs.field(
        default=None,
        metadata=about(
            kinds.path(),
            "File that holds a secret of 32 bytes or more, with which these questions are signed",
        ),
    )

    @property
    def accepts_jwts(self) -> bool:
        """Whether JWTs are accepted at all."""
        return bool(self.jwt_jwks) or self.jwt_secret_file is not None
