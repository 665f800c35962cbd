"""Claims: what a token says, and whether that holds now and here (RFC 7519, section 4.1).

`exp` is needed, and the others count where they are there or are asked for. Times have 30 s of
leeway, since clocks differ. Grants and attributes come in one claim, `mist` unless configured:

    "mist": {"tags": ["room:1", ">room:1"], "attributes": {"groups": ["staff"]}}

Both mean what they mean of a registered token. `sub` is the attribute `user`.

The longest life that a token may have bounds how long a revocation has to be kept. It counts from
`iat`; without one, from now.
"""

from typing import Any, Final

import attrs
import msgspec

from mist.attributes import Attributes
from mist.auth.grant import Grant
from mist.auth.issued import Rejected, SharedGrants, check_grants
from mist.auth.jwt import LEEWAY
from mist.commands import MAX_CLAIM

__all__ = ["Claims", "Expectations", "read_claims"]

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@attrs.frozen
class Expectations:
    """What tokens have to say.

    Attributes:
        issuers: one of which `iss` has to be; none for any.
        audiences: one of which `aud` has to name; none for any, or none at all.
        claim: with grants and attributes.
        max_age: seconds from `iat` to `exp`, at most.
        max_tags: in a token.
    """

    issuers: frozenset[str] = frozenset()
    audiences: frozenset[str] = frozenset()
    claim: str = "mist"
    max_age: float = 30 * 86_400.0
    max_tags: int = 1_000


@attrs.frozen
class Claims:
    """The claims of a token, those that count.

    Attributes:
        issuer, subject, token: `iss`, `sub` and `jti`; empty where it has none.
        issued: `iat`, Unix seconds; where it has none, the earliest time that it may have.
        expires: `exp`, Unix seconds.
        grant, attributes: as of a registered token.
    """

    issuer: str
    subject: str
    token: str
    issued: float
    expires: float
    grant: Grant
    attributes: Attributes


def read_claims(text: bytes, expected: Expectations, now: float, grants: SharedGrants) -> Claims:
    """The claims of a token whose signature is right.

    Args:
        now: Unix seconds.
        grants: of tokens before.

    Raises:
        Rejected: see there.
    """
    try:
        claims = _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Rejected("malformed", "the claims of the token are no JSON object") from None
    issued, expires = _times(claims, expected.max_age, now)
    issuer = _text(claims, "iss")
    if expected.issuers and issuer not in expected.issuers:
        raise Rejected("issuer", "the token has another issuer (iss)")
    if expected.audiences and expected.audiences.isdisjoint(_audience(claims)):
        raise Rejected("audience", "the token is for another audience (aud)")
    subject = _text(claims, "sub")
    where = f"claim {expected.claim!r}"
    given = claims.get(expected.claim)
    grant, attributes = check_grants(given, where, subject, expected.max_tags, grants)
    return Claims(issuer, subject, _text(claims, "jti"), issued, expires, grant, attributes)


def _times(claims: dict[str, Any], max_age: float, now: float) -> tuple[float, float]:
    expires = _time(claims, "exp")
    if expires is None:
        raise Rejected("claims", "the token has no time at which it expires (exp)")
    if expires + LEEWAY <= now:
        raise Rejected("expired", "the token has expired (exp)")
    not_before = _time(claims, "nbf")
    if not_before is not None and not_before - LEEWAY > now:
        raise Rejected("early", "the token is not valid yet (nbf)")
    issued = _time(claims, "iat")
    if issued is None:
        issued = expires - max_age
    if issued - LEEWAY > now:
        raise Rejected("early", "the token is from the future (iat), or has no iat and lasts long")
    if expires - issued > max_age:
        raise Rejected("age", f"the token lasts longer than {max_age:.0f} s (exp - iat)")
    return issued, expires


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise Rejected("claims", f"{name} of the token is no time in Unix seconds")
    return float(value)


def _text(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name, "")
    if not isinstance(value, str) or len(value) > MAX_CLAIM:
        raise Rejected("claims", f"{name} of the token is no text of up to {MAX_CLAIM} characters")
    return value


def _audience(claims: dict[str, Any]) -> list[str]:
    value = claims.get("aud", [])
    several = value if isinstance(value, list) else [value]
    return [each for each in several if isinstance(each, str)]
