"""Idempotency keys (`Idempotency-Key`): a publish that is retried, because its answer was lost.

For 24 hours a repeat publishes nothing and gets the answer of the first request. A key belongs to
the credential it came with, so no client can probe or use up the keys of another. Only hashes of
key and body are stored; see `mist.history.idempotency`.
"""

import hashlib
import re
from typing import Final

from starlette.requests import Request

from mist.history import Key
from mist.history.idempotency import key_name
from mist.http.access import Caller
from mist.http.openapi import parameter
from mist.http.problems import Problem

__all__ = ["KEY", "conflict", "key_of"]

KEY: Final = parameter(
    "Idempotency-Key",
    "A repeat with the same key within 24 h is a no-op with the first answer.",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    place="header",
)

_TEXT: Final = re.compile(r"[ -~]{1,255}")


def key_of(request: Request, caller: Caller, body: bytes, kind: str) -> Key | None:
    """The key of a request; None where it has none.

    Args:
        kind: the body's media type, without parameters.

    Raises:
        Problem: there are several, or one that can't be a key (400).
    """
    keys = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if not keys:
        return None
    text = keys[0].decode("latin-1")
    if len(keys) > 1 or not _TEXT.fullmatch(text):
        raise Problem(
            400, "invalid_idempotency_key", "expected one Idempotency-Key: 1 to 255 ASCII letters"
        )
    owner = "service" if caller.is_service else f"token {caller.name}"
    # A media type contains no LF, so different pairs give different texts.
    digest = hashlib.sha256(kind.encode() + b"\n" + body).digest()
    return Key(key_name(owner, text), digest)


def conflict() -> Problem:
    """The answer to a key that was used for another request."""
    return Problem(422, "idempotency_conflict", "that key was used for another request")
