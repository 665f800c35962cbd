"""Records of credentials that were issued elsewhere, on their way between nodes."""

import pytest

from mist.attributes import Attributes
from mist.auth.issued import IssuedRecord
from mist.auth.issued_codec import decode_issued, encode_issued
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore

RECORD = IssuedRecord(
    id="0123456789abcdef",
    digest=b"d" * 32,
    tags=frozenset({"room:1", ">room:1"}),
    created=1.5,
    attributes=Attributes(user="7", groups=frozenset({"a", "b"})),
    expires=2.5,
    issued=1.0,
    token_mark=b"t" * 32,
    user_mark=b"u" * 32,
)


def test_a_record_comes_back_as_it_was() -> None:
    registry = LocalRegistry(MemoryStore())
    value = encode_issued(registry, RECORD, "ticket-1")
    assert decode_issued(registry, value, "ticket-1") == RECORD


def test_what_was_not_sealed_for_this_purpose_with_this_key_is_refused() -> None:
    registry = LocalRegistry(MemoryStore())
    value = encode_issued(registry, RECORD, "ticket-1")
    for other, text, purpose in (
        (registry, value, "ticket-2"),
        (LocalRegistry(MemoryStore()), value, "ticket-1"),
        (registry, value[:-1] + b"x", "ticket-1"),
        (registry, b"\0" * 16 + value[16:], "ticket-1"),
        (registry, b"", "ticket-1"),
    ):
        with pytest.raises(ValueError, match="seal"):
            decode_issued(other, text, purpose)
