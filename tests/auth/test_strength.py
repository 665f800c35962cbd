"""Which tokens are weak: those that people think up, and never random ones."""

import base64
import secrets
import uuid

import pytest

from mist.auth.strength import weakness


@pytest.mark.parametrize(
    "token",
    [
        *("a", "t0ken", "password123", "hunter2hunter2"),
        *(16 * "1", 255 * "x", "abcdefghijklmnopqrstuvwxyz", "0123456789abcdef", 40 * "ab"),
        *("passwordpassword", "zyxwvutsrqponmlkjihgfedcba"),
    ],
)
def test_what_can_be_guessed_is_weak(token: str) -> None:
    assert weakness(token) is not None


def test_random_tokens_are_not_weak() -> None:
    for _ in range(500):
        for token in (
            secrets.token_hex(16),
            secrets.token_urlsafe(16),
            base64.b32encode(secrets.token_bytes(20)).decode().lower(),
            str(uuid.uuid4()),
        ):
            assert weakness(token) is None, token


def test_no_reason_holds_the_token() -> None:
    assert "s3cret" not in str(weakness("s3cret"))
