"""Tags, tag sets and messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.errors import EmptyTag, InvalidTag, InvalidToken, MistError, TooManyTags
from mist.message import (
    GRANT,
    Message,
    check_tag,
    check_token,
    format_tags,
    parse_tag_list,
    parse_tags,
)

GOOD = [
    "a",
    "room:1",
    "Ä",
    "/a/b",
    ".x",
    "a*b",
    "*a",
    "a>b",
    "x" * 255,
    "ä" * 127,
    "\U0001f600",
]
BAD = {
    "": EmptyTag,
    "a b": InvalidTag,
    "a,b": InvalidTag,
    "a\x00": InvalidTag,
    "a\x7f": InvalidTag,
    "a\x85": InvalidTag,
    "a\t": InvalidTag,
    "x" * 256: InvalidTag,
    "ä" * 128: InvalidTag,
    "\ud800": InvalidTag,
    "room:*": InvalidTag,
    "*": InvalidTag,
    "..x": InvalidTag,
    ">room": InvalidTag,
}


@pytest.mark.parametrize("tag", GOOD)
def test_good_tags_pass_unchanged(tag: str) -> None:
    assert check_tag(tag) == tag


@pytest.mark.parametrize(("tag", "error"), BAD.items())
def test_bad_tags_are_refused(tag: str, error: type[MistError]) -> None:
    with pytest.raises(error):
        check_tag(tag)


@pytest.mark.parametrize("tag", ["room:*", "*", ">room", ">room:*"])
def test_a_grant_may_carry_the_marks_of_grants(tag: str) -> None:
    assert check_tag(tag, GRANT) == tag


def test_not_even_a_grant_may_begin_as_derived_tags_do() -> None:
    with pytest.raises(InvalidTag):
        check_tag("..0=a", GRANT)


def test_a_tag_list_is_a_set() -> None:
    assert parse_tag_list(b"b,a,b", 2) == {"a", "b"}


def test_the_first_bad_tag_in_the_order_written_counts() -> None:
    with pytest.raises(EmptyTag):
        parse_tag_list(b"a,,b c", 64)
    with pytest.raises(InvalidTag):
        parse_tag_list(b"a,b c,", 64)


def test_the_number_of_tags_is_looked_at_last() -> None:
    with pytest.raises(EmptyTag):
        parse_tag_list(b"a,b,", 1)
    with pytest.raises(TooManyTags):
        parse_tag_list(b"a,b", 1)


def test_bad_utf8_is_an_invalid_tag() -> None:
    with pytest.raises(InvalidTag):
        parse_tag_list(b"a,\xff", 64)


def test_no_tags_at_all_are_an_empty_tag() -> None:
    with pytest.raises(EmptyTag):
        parse_tags([], 64)


tags = st.text(min_size=1, max_size=8).filter(lambda tag: _passes(tag))


def _passes(tag: str) -> bool:
    try:
        check_tag(tag)
    except MistError:
        return False
    return True


@given(st.frozensets(tags, min_size=1, max_size=10))
def test_writing_and_reading_a_tag_set_gives_it_back(found: frozenset[str]) -> None:
    text = format_tags(found)
    assert parse_tag_list(text.encode(), 10) == found
    assert text.encode().split(b",") == sorted(tag.encode() for tag in found)


@given(st.text())
def test_a_tag_passes_exactly_when_the_rules_hold(tag: str) -> None:
    try:
        size = len(tag.encode())
    except UnicodeEncodeError:
        size = 1000
    controls = {chr(c) for c in [*range(32), *range(127, 160)]}
    good = (
        1 <= size <= 255
        and not set(tag) & (controls | {" ", ","})
        and not tag.startswith(("..", ">"))
        and not tag.endswith("*")
    )
    assert _passes(tag) == good


@pytest.mark.parametrize("token", ["", "a b", "a\n", "x" * 256, "\ud800"])
def test_bad_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidToken):
        check_token(token)


def test_a_token_may_hold_what_tags_may_not() -> None:
    assert check_token("a,b*") == "a,b*"


def test_text_shows_what_is_no_utf8_as_replacement() -> None:
    assert Message(frozenset({"a"}), b"\xffx").text == "\ufffdx"
