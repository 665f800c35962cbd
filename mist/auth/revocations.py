"""Revocations of credentials that no registry has: kept as records that grant nothing.

A JWT is good until it expires, whatever its issuer thinks of it later. So what is revoked is kept:
a record of the registry without tags, under a digest of `jti` or `sub`. All stores keep it, all
nodes hear of it, it survives a restart, and it expires. No token has such a digest: the text that
it is made of begins with a control character, which is in no token.

    jti    the token with that name is no good
    sub    no token that was issued to the user until now is; what is issued later is good
"""

import hashlib

from mist.auth.issued import IssuedRecord
from mist.auth.registry import Registry

__all__ = ["is_revoked", "jti_mark", "owner_of", "sub_mark"]


def jti_mark(registry: Registry, jti: str) -> bytes:
    """The digest under which the revocation of a token is kept."""
    return registry.derive("jti", jti)


def sub_mark(registry: Registry, sub: str) -> bytes:
    """The digest under which the revocation of a user is kept."""
    return registry.derive("sub", sub)


def owner_of(mark: bytes, issuer: str) -> str:
    """The id of a user, in the form of a token's; the same at all nodes.

    Args:
        mark: the user's; or the digest of a credential that is nobody's.
    """
    named = mark + issuer.encode("utf-8", "surrogatepass")
    return hashlib.sha256(named).hexdigest()[:16]


def is_revoked(registry: Registry, record: IssuedRecord) -> bool:
    """Whether a credential was revoked."""
    if record.token_mark and registry.withheld(record.token_mark) is not None:
        return True
    revocation = registry.withheld(record.user_mark) if record.user_mark else None
    return revocation is not None and record.issued <= revocation.created
