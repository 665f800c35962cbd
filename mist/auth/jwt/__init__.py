"""JSON Web Tokens (RFC 7519) in place of registered tokens: signed elsewhere, checked here.

    keys        one key, and the algorithms that it may be used with
    key_set     the keys of all issuers: fetched, cached, fetched again for an unknown `kid`
    claims      what a token says, checked: times, issuer, audience, and what it grants
    verifier    a token's text to a record, as the registry has them

A token is three parts of base64url: a header, claims and a signature. Nothing of the header is
trusted but two hints, `alg` and `kid`: the key decides which algorithms it takes, so that neither
`none` nor a public key as the secret of an HMAC is ever possible; keys, or addresses of keys, that
come with a token (`jwk`, `x5c`, `jku`, `x5u`) are not looked at; and one with `crit` is refused.
Claims are read once the signature is known to be right.

The modules need the extra `jwt`, so they are imported only where it is configured.
"""

from typing import Final

__all__ = ["LEEWAY"]

LEEWAY: Final = 30.0
"""Seconds by which clocks may differ."""
