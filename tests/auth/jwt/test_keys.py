"""Which keys are used, and with which algorithms."""

import hmac
import json
from typing import Any

import pytest

from mist.auth.jwt.keys import MAX_JWKS, MAX_KEYS, parse_jwks, secret_key
from tests.auth.jwt.issuer import KEYS, SECRET, part, public

RSA_ALGORITHMS = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}


def parse(*keys: dict[str, Any]) -> list[set[str]]:
    """The algorithms of each key that is used."""
    return [set(key.algorithms) for key in parse_jwks(json.dumps({"keys": keys}).encode())]


@pytest.mark.parametrize(
    ("name", "changes", "algorithms"),
    [
        ("rsa", {}, RSA_ALGORITHMS),
        ("rsa", {"alg": "RS256"}, {"RS256"}),
        ("rsa", {"use": "sig", "key_ops": ["verify"]}, RSA_ALGORITHMS),
        ("p256", {}, {"ES256"}),
        ("p384", {}, {"ES384"}),
        ("p521", {}, {"ES512"}),
        ("ed", {}, {"EdDSA", "Ed25519"}),
        ("ed", {"alg": "Ed25519"}, {"EdDSA", "Ed25519"}),
        ("rsa", {"kid": None, "x5c": ["ignored"], "x5t": 7}, RSA_ALGORITHMS),
    ],
)
def test_the_type_of_a_key_decides_on_its_algorithms(
    name: str, changes: dict[str, Any], algorithms: set[str]
) -> None:
    assert parse(public(name, **changes)) == [algorithms]


@pytest.mark.parametrize(
    "changes",
    [
        {"alg": "HS256"},
        {"alg": "none"},
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"kid": 7},
        {"kid": "x" * 256},
        {"kty": "oct", "k": part(SECRET)},
        {"kty": "ABC"},
        {"kty": ["RSA"]},
        {"n": None},
        {"n": "!"},
        {"n": 7},
        {"e": part((2**64 + 1).to_bytes(9, "big"))},
        {"d": "AQAB"},
        {"alg": 7},
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(changes: dict[str, Any]) -> None:
    assert parse(public("rsa", **changes), public("ed")) == [{"EdDSA", "Ed25519"}]


@pytest.mark.parametrize("bits", [1024, 2047, 4097])
def test_an_rsa_key_of_an_unusual_size_is_left_out(bits: int) -> None:
    n = part((1 << (bits - 1) | 1).to_bytes(bits // 8 + 1, "big"))
    assert parse({"kty": "RSA", "n": n, "e": "AQAB"}, public("ed")) == [{"EdDSA", "Ed25519"}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no JWKS"),
        (b"[]", "no JWKS"),
        (b"{}", "no JWKS"),
        (b'{"keys": 1}', "no JWKS"),
        (b'{"keys": []}', "no key that can be used"),
        (b'{"keys": [{}]}', "no key that can be used"),
        (b"\xff", "no JWKS"),
        (b"[" * 100_000, "no JWKS"),
        (b'{"keys": [' + b"[" * 100_000, "no JWKS"),
        (b" " * MAX_JWKS + b" ", "more than 262,144 bytes"),
        (json.dumps({"keys": [{}] * (MAX_KEYS + 1)}).encode(), "more than 100 keys"),
    ],
)
def test_what_is_no_jwks_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_jwks(text)


def test_a_private_key_is_not_used() -> None:
    private = {**KEYS["ed"].as_dict(private=True), "kid": "ed"}
    with pytest.raises(ValueError, match="no key"):
        parse(private)


def test_a_secret_verifies_hs256_alone() -> None:
    key = secret_key(SECRET)
    assert key.algorithms == {"HS256"}
    assert key.verifies("HS256", b"x", hmac.digest(SECRET, b"x", "sha256"))
    assert not key.verifies("HS512", b"x", hmac.digest(SECRET, b"x", "sha512"))
    assert SECRET.decode() not in repr(key)
