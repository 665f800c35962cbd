"""Digests of tokens: what a registry knows of a token's text."""

import hashlib
from typing import Final

from mist.errors import InvalidToken
from mist.message import check_token

__all__ = ["Digests"]

_FINGERPRINT: Final = b"mist shared tokens: fingerprint"  # no token: it has spaces


class Digests:
    """HMAC-SHA-256 (RFC 2104) of tokens under one key, whose part of the work is done once.

    `hmac.digest` sets up two hash functions, and hashes the key into both, for each message: that
    is more than half of its time for a token.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = hashlib.sha256().block_size
        if len(key) > block:
            key = hashlib.sha256(key).digest()
        key = key.ljust(block, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def of(self, token: str) -> bytes | None:
        """The digest that a token is stored under; None for a text that can't be a token."""
        try:
            check_token(token)
        except InvalidToken:
            return None
        return self.of_bytes(token.encode())

    def derive(self, kind: str, value: str) -> bytes:
        """A digest that no token has: none of them has a control character."""
        return self.of_bytes(f"\0{kind}\0{value}".encode("utf-8", "surrogatepass"))

    @property
    def fingerprint(self) -> bytes:
        """Names the key, and doesn't help to guess it. Kept with what the key is needed for."""
        return self.of_bytes(_FINGERPRINT)

    def of_bytes(self, message: bytes) -> bytes:
        """The HMAC of any message."""
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()
