"""Records as sealed values: what is not genuine is not a record."""

import attrs
import msgspec
import pytest

from mist.attributes import Attributes
from mist.auth import Record
from mist.auth.codec import Codec

CODEC = Codec(b"k" * 32)
DIGEST = bytes(range(32))


def record(*tags: str, attributes: str = "") -> Record:
    return Record("0123456789abcdef", DIGEST, frozenset(tags), 1.1, Attributes.parse(attributes))


@pytest.mark.parametrize("tags", [[], ["a"], ["b", "a"], ["Ä", "room:*", ">x", "*", "'", '"\\']])
@pytest.mark.parametrize("text", ["", "user=1", "client=c&groups=a;b%26;%C3%BC&plan=pro&site=x"])
def test_what_was_encoded_is_decoded(tags: list[str], text: str) -> None:
    one = record(*tags, attributes=text)
    assert CODEC.decode(DIGEST, CODEC.encode(one)) == one


@pytest.mark.parametrize(("expires", "name"), [(None, "ä"), (1798761600.25, ""), (9.0, "b'\"")])
def test_terms_are_encoded(expires: float | None, name: str) -> None:
    one = attrs.evolve(record("a", attributes="user=1"), expires=expires, name=name)
    assert CODEC.decode(DIGEST, CODEC.encode(one)) == one


def test_without_terms_a_value_is_that_of_the_version_before() -> None:
    assert CODEC.encode(record("a"))[16:] == b'[1,"0123456789abcdef","a",1.1,""]'


def test_versions_without_expiry_refuse_a_record_that_has_one_and_read_any_other() -> None:
    class Before(msgspec.Struct, array_like=True, frozen=True):
        format: int
        id: str
        tags: str
        created: float
        attributes: str

    def read(value: bytes) -> Before:
        return msgspec.json.decode(value[16:], type=Before)

    named = attrs.evolve(record("a"), name="b")
    assert read(CODEC.encode(named)) == read(CODEC.encode(record("a")))
    assert read(CODEC.encode(attrs.evolve(named, expires=9.0))).format == 2  # they know 1 alone


def test_equal_records_have_equal_values() -> None:
    assert CODEC.encode(record("a", "b")) == CODEC.encode(record("b", "a"))


def test_no_byte_of_a_value_can_be_changed() -> None:
    value = CODEC.encode(record("room:1", attributes="user=1"))
    for place in range(len(value)):
        damaged = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        with pytest.raises(ValueError, match="seal"):
            CODEC.decode(DIGEST, damaged)
        with pytest.raises(ValueError, match="seal"):
            CODEC.decode(DIGEST, value[:place])


def test_a_value_is_not_that_of_another_token_or_another_key() -> None:
    value = CODEC.encode(record("*"))
    with pytest.raises(ValueError, match="seal"):
        CODEC.decode(DIGEST[::-1], value)
    with pytest.raises(ValueError, match="seal"):
        Codec(b"l" * 32).decode(DIGEST, value)
    with pytest.raises(ValueError, match="seal"):
        CODEC.decode(DIGEST[:-1], value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b'[2,"0123456789abcdef","*",1.0,""]',
        b'[1,"0123456789ABCDEF","*",1.0,""]',
        b'[1,"","*",1.0,""]',
        b'[1,"0123456789abcdef",["*"],1.0,""]',
        b'[1,"0123456789abcdef","*",1.0,"groups"]',
        b'[1,"0123456789abcdef","*"]',
        b'[2,"0123456789abcdef","*",1.0,"",""]',
        b'[1,"0123456789abcdef","*",1.0,"","",9.0]',
        b'[2,"0123456789abcdef","*",1.0,"","","9"]',
        b'[1,"0123456789abcdef","*",1.0,"",null]',
    ],
)
def test_what_has_the_seal_and_is_no_record_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a record"):
        CODEC.decode(DIGEST, CODEC._seal(DIGEST, text) + text)


def test_the_key_is_not_in_the_fingerprint_or_a_value() -> None:
    value = CODEC.encode(record("a"))
    assert len(CODEC.fingerprint) == 32
    assert CODEC.fingerprint != Codec(b"l" * 32).fingerprint
    assert b"k" * 8 not in CODEC.fingerprint + value
    assert DIGEST not in value
