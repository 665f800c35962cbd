"""Records of credentials that no registry has, as values that cross from one node to another.

Sealed as the registry's own are (`mist.auth.codec`): what keeps them in between can't make one, nor
take one for another purpose.
"""

import hmac
from typing import Final

import msgspec

from mist.attributes import Attributes
from mist.auth.issued import IssuedRecord
from mist.auth.registry import Registry
from mist.errors import InvalidAudience

__all__ = ["decode_issued", "encode_issued"]

_SEAL: Final = 16  # bytes


class _Value(msgspec.Struct, array_like=True, frozen=True):
    id: str
    digest: bytes
    tags: list[str]
    created: float
    attributes: str  # see `Attributes.text`
    expires: float | None
    issued: float
    token_mark: bytes
    user_mark: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Value).decode


def encode_issued(registry: Registry, record: IssuedRecord, purpose: str) -> bytes:
    """The value of a record.

    Args:
        registry: whose key seals it.
        purpose: what it is for; another one can't be made of it.
    """
    text = _encode(
        _Value(
            record.id,
            record.digest,
            sorted(record.tags),
            record.created,
            record.attributes.text,
            record.expires,
            record.issued,
            record.token_mark,
            record.user_mark,
        )
    )
    return _seal(registry, purpose, text) + text


def decode_issued(registry: Registry, value: bytes, purpose: str) -> IssuedRecord:
    """The record in a value.

    Raises:
        ValueError: it is none that a server with this key has made for this purpose.
    """
    seal, text = value[:_SEAL], value[_SEAL:]
    if not hmac.compare_digest(_seal(registry, purpose, text), seal):
        raise ValueError("the seal of a record is not right")
    try:
        found = _decode(text)
        attributes = Attributes.parse(found.attributes)
    except (msgspec.MsgspecError, InvalidAudience):
        raise ValueError("not a record of this version of mist") from None
    return IssuedRecord(
        id=found.id,
        digest=found.digest,
        tags=frozenset(found.tags),
        created=found.created,
        attributes=attributes,
        expires=found.expires,
        issued=found.issued,
        token_mark=found.token_mark,
        user_mark=found.user_mark,
    )


def _seal(registry: Registry, purpose: str, text: bytes) -> bytes:
    return registry.derive("issued", f"{purpose}\0{text.hex()}")[:_SEAL]
