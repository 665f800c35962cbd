"""Keys that tokens are verified with, and the algorithms that each may be used with.

The type of a key decides, never the token (RFC 8725, 3.1):

    RSA, 2,048 to 4,096 bits    RS256 RS384 RS512 PS256 PS384 PS512
    EC P-256, P-384, P-521      ES256, ES384, ES512
    OKP Ed25519                 EdDSA, which RFC 9864 calls Ed25519
    a secret, from a file       HS256

Where a key of a JWKS (RFC 7517) names an algorithm, it is that one alone. A set that anybody can
fetch holds no secrets, so its keys of type `oct` are left out. So are larger RSA keys, and those
with an unusual exponent: signatures that take a millisecond to check would keep everyone waiting.
"""

import base64
import itertools
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

__all__ = ["ALGORITHMS", "MAX_JWKS", "Key", "parse_jwks", "secret_key"]

MAX_JWKS: Final = 256 * 1024  # bytes
MAX_KEYS: Final = 100  # of one set
MAX_KID: Final = 255  # characters
_RSA_BITS: Final = range(2_048, 4_097)
_RSA_EXPONENT_BITS: Final = 32  # 65,537 has 17

_BASE64URL: Final = re.compile(r"[\w-]{1,2048}", re.ASCII)
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final[Mapping[str, tuple[str, ...]]] = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
}
ALGORITHMS: Final = frozenset({*_RSA, *itertools.chain(*_CURVES.values())})
"""That a key of a JWKS may be used with."""

_TYPES: Final[Mapping[str, type[RSAKey] | type[ECKey] | type[OKPKey]]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
# A private key would be a secret that everybody has who can fetch the set.
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


@attrs.frozen(eq=False)
class Key:
    """A key.

    Attributes:
        kid: names it in its set; empty where it has no name.
        algorithms: that it may be used with.
    """

    kid: str
    algorithms: frozenset[str]
    _key: Any = attrs.field(repr=False)

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether this key made a signature. Some 30 to 400 µs, for an RSA key 30 to 100.

        Args:
            algorithm: one of `algorithms`; any other verifies nothing.
            signed: the header and the claims, as they were written.
        """
        if algorithm not in self.algorithms:
            return False
        model = JWSRegistry.algorithms["EdDSA" if algorithm == "Ed25519" else algorithm]
        try:
            model.check_key(self._key)
            return model.verify(signed, signature, self._key)
        except (JoseError, ValueError):
            return False


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


def parse_jwks(text: bytes) -> list[Key]:
    """The keys of a JWKS that can be used here. The others are left out (RFC 7517, section 5).

    Raises:
        ValueError: it is none, it is too long, or it has no key that can be used. The text says
            which; it never has the key.
    """
    if len(text) > MAX_JWKS:
        raise ValueError(f"it has more than {MAX_JWKS:,} bytes")
    try:
        found = msgspec.json.decode(text, type=_Jwks).keys
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise ValueError('it is no JWKS, {"keys": […]}') from None
    if len(found) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    keys = [key for each in found if (key := _parse_key(each)) is not None]
    if not keys:
        raise ValueError("it has no key that can be used: RSA (2,048 to 4,096 bits), EC or Ed25519")
    return keys


def _parse_key(jwk: dict[str, Any]) -> Key | None:
    """A key of a set; None where it can't be used."""
    kid, use, operations = jwk.get("kid", ""), jwk.get("use", "sig"), jwk.get("key_ops", ["verify"])
    if not isinstance(kid, str) or len(kid) > MAX_KID or use != "sig":
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    member = _TYPES.get(jwk["kty"]) if isinstance(jwk.get("kty"), str) else None
    if member is None or not _PRIVATE.isdisjoint(jwk):
        return None
    # Only what makes the key; joserfc would check, and may refuse, all the rest.
    wanted: dict[str, str | list[str]] = {}
    for name in ("kty", "crv", "n", "e", "x", "y"):
        value = jwk.get(name, "-")
        if not isinstance(value, str) or not _BASE64URL.fullmatch(value):
            return None
        if name in jwk:
            wanted[name] = value
    if member is RSAKey and not (
        _bits(jwk.get("n")) in _RSA_BITS and 2 <= _bits(jwk.get("e")) <= _RSA_EXPONENT_BITS
    ):
        return None
    try:
        key = member.import_key(wanted)
        algorithms = frozenset(_RSA if isinstance(key, RSAKey) else _CURVES[key.curve_name])
    except Exception:  # joserfc lets errors of many kinds through: KeyError, ValueError, its own
        return None
    if "alg" in jwk:
        algorithms &= {"EdDSA", "Ed25519"} if jwk["alg"] in ("EdDSA", "Ed25519") else {jwk["alg"]}
    return Key(kid, algorithms, key) if algorithms else None


def _bits(number: str | None) -> int:
    """How many bits a number of a key has; it was checked to be base64url."""
    if number is None or len(number) % 4 == 1:
        return 0
    raw = base64.urlsafe_b64decode(number + "=" * (-len(number) % 4))
    return int.from_bytes(raw, "big").bit_length()


def secret_key(secret: bytes) -> Key:
    """A key for HS256."""
    return Key("", frozenset({"HS256"}), OctKey.import_key(secret))
