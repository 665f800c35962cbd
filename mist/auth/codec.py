"""Records as the values of a shared store: sealed, so that making one takes the key.

A value is a seal and then a JSON array. The seal is an HMAC under a key that is derived from that
of the tokens, of the digest and the array. So a value that is damaged, was made by another
program, or was copied from one token to another is told from a record, and grants nothing.

A record without an expiry has the first format, which all versions read; those that know no names
drop its name when they change it. One with an expiry has the second. Versions that know no expiry
take it for damaged, and so refuse its token rather than let it live for ever.

A seal doesn't tell the age of a value: anyone who can write to the store can put back an earlier
value of the same token, and so undo its revocation.
"""

import hmac
import re
from typing import Final

import msgspec

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth.digests import Digests
from mist.auth.record import Record
from mist.errors import InvalidAudience
from mist.message import format_tags

__all__ = ["Codec"]

_FORMAT: Final = 1
_EXPIRING: Final = 2  # the format of a record with an expiry
_SEAL: Final = 16  # bytes of a seal; 128 bits
_ID: Final = re.compile(r"[0-9a-f]{16}")


class _Value(msgspec.Struct, array_like=True, frozen=True):
    format: int
    id: str
    tags: str  # sorted, joined by commas
    created: float  # Unix seconds
    attributes: str  # see `Attributes.text`
    name: str = ""
    expires: float | None = None  # Unix seconds; only in the second format


_decoder: Final = msgspec.json.Decoder(_Value)
_encode: Final = msgspec.json.Encoder().encode


class Codec:
    """See the module.

    Args:
        key: of the tokens' digests.

    Attributes:
        fingerprint: names the key, and doesn't help to guess it.
    """

    def __init__(self, key: bytes) -> None:
        digests = Digests(key)
        self.fingerprint = digests.fingerprint
        self._seals = Digests(digests.of_bytes(b"mist shared tokens: seals"))

    def encode(self, record: Record) -> bytes:
        """The value of a record."""
        plain = (record.id, format_tags(record.tags), record.created, record.attributes.text)
        if record.expires is not None:
            text = _encode((_EXPIRING, *plain, record.name, record.expires))
        elif record.name:
            text = _encode((_FORMAT, *plain, record.name))
        else:
            text = _encode((_FORMAT, *plain))
        return self._seal(record.digest, text) + text

    def decode(self, digest: bytes, value: bytes) -> Record:
        """The record in a value.

        Raises:
            ValueError: it is none.
        """
        seal, text = value[:_SEAL], value[_SEAL:]
        if len(digest) != 32 or not hmac.compare_digest(self._seal(digest, text), seal):
            raise ValueError("the seal of a record is not right")
        try:
            found = _decoder.decode(text)
            # Most tokens have none: they share one value.
            attributes = Attributes.parse(found.attributes) if found.attributes else NO_ATTRIBUTES
        except (msgspec.MsgspecError, InvalidAudience):
            raise ValueError("not a record of this version of mist") from None
        expected = _FORMAT if found.expires is None else _EXPIRING
        if found.format != expected or not _ID.fullmatch(found.id):
            raise ValueError("not a record of this version of mist")
        tags = frozenset(found.tags.split(",") if found.tags else ())
        return Record(found.id, digest, tags, found.created, attributes, found.expires, found.name)

    def _seal(self, digest: bytes, text: bytes) -> bytes:
        return self._seals.of_bytes(digest + text)[:_SEAL]
