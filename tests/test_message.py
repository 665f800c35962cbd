"""Tags, tag sets and messages."""

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mist.message
from mist.errors import CommandError, EmptyTag, InvalidTag, InvalidToken, MistError, TooManyTags
from mist.message import (
    ASK,
    GRANT,
    MAX_REPEATS,
    PUBLISH,
    Message,
    TagSet,
    TagUse,
    check_tag,
    check_token,
    format_tags,
    has_more_strings,
    occurs_more,
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


@pytest.mark.parametrize("bad", ["", " ", "a*", "..x", "\ud800"])
def test_far_too_many_tags_are_counted_and_not_looked_at(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    check = mist.message.check_tag
    monkeypatch.setattr(mist.message, "check_tag", lambda *args: looked.append("") or check(*args))
    most = 64 * MAX_REPEATS
    for use in (PUBLISH, ASK, GRANT):
        with pytest.raises(TooManyTags):
            parse_tags([bad] * (most + 1), 64, use)
        with pytest.raises(TooManyTags):
            parse_tag_list(b",".join([bad.encode("utf-8", "replace")] * (most + 1)), 64, use)
    assert not looked
    with pytest.raises((EmptyTag, InvalidTag)):
        parse_tags([bad] * most, 64)
    assert parse_tags(["a", "b"] * (most // 2), 64) == {"a", "b"}


@given(st.text(alphabet='"\\\\a,\n', max_size=12).map(json.dumps), st.integers(0, 40), st.data())
def test_strings_of_a_json_text_are_counted_as_far_as_needed(
    odd: str, count: int, data: st.DataObject
) -> None:
    text = json.dumps(["x" * n for n in range(count)] + [json.loads(odd)]).encode()
    with pytest.MonkeyPatch.context() as patch:
        # Wherever the text is cut to be counted, it comes to the same.
        patch.setattr(mist.message, "_LOOK", data.draw(st.integers(1, len(text) + 1)))
        least = (text.count(b'"') - text.count(b'\\"')) // 2
        assert least <= count + 1 <= 2 * least + 1
        assert has_more_strings(text, least - 1)
        assert not has_more_strings(text, least)
        assert has_more_strings(b'["", ' + text, least - 1, 5)
        assert not has_more_strings(b'["", ' + text + b'""', least, 5, 5 + len(text))
        commas = text.count(b",")
        assert not occurs_more(b",", text, commas)
        assert commas == 0 or occurs_more(b",", text, commas - 1)


ODD = st.sampled_from(
    [
        *(*GOOD, *BAD),
        *("/", "//", "/a/", "/*", "/a*", "/" * 32, "/" * 33, "/a b", "/a,b", "/\x85"),
        *("=/a", "=a", ">/a", ".a.*", ".a.>", ".a>", "."),
        *("x" * 63, "x" * 64, "ä" * 63, "ä" * 64, "*" * 255, "x" * 254 + "*"),
        *("/" + "ä" * 62, "/" + "ä" * 63, "/" + "x" * 300, "a\n", "a\n,b"),
    ]
)


@given(
    st.lists(ODD | st.text(max_size=3) | st.text("/.*>=,aä ", max_size=5), max_size=5),
    st.sampled_from([PUBLISH, ASK, GRANT]),
    st.integers(1, 4),
)
def test_a_list_is_judged_as_its_tags_are(given_: list[str], use: TagUse, limit: int) -> None:
    def outcome(parse: Callable[[], TagSet]) -> object:
        try:
            return parse()
        except CommandError as error:
            return type(error)

    expected = outcome(lambda: mist.message._parse_each(given_, limit, use))
    if len(given_) > limit * MAX_REPEATS:
        expected = TooManyTags
    assert outcome(lambda: parse_tags(given_, limit, use)) == expected
    joined = ",".join(given_)
    if joined.split(",") == given_ and "\ud800" not in joined:
        assert outcome(lambda: parse_tag_list(joined.encode(), limit, use)) == expected


def test_what_most_tags_are_is_judged_without_a_look_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mist.message, "check_tag", None)
    for tags in (["a", "room:1", "ä", "x" * 255], ["/a/b", "/"], ["a>b", "a*b", "*a"]):
        for use in (PUBLISH, ASK, GRANT):
            assert parse_tags(tags, 64, use) == set(tags)
            assert parse_tag_list(",".join(tags).encode(), 64, use) == set(tags)


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


@given(st.one_of(st.text(), st.text("./=>*ab", max_size=9)))
@example(".")
@example(".a*")
@example("=/a")
@example("/" * 33)
def test_a_tag_passes_exactly_when_the_rules_hold(tag: str) -> None:
    try:
        size = len(tag.encode())
    except UnicodeEncodeError:
        size = 1000
    controls = {chr(c) for c in [*range(32), *range(127, 160)]}
    good = (
        1 <= size <= 255
        and not set(tag) & (controls | {" ", ","})
        and not tag.startswith(("..", ">", "=/"))
    )
    if tag.startswith("."):
        tokens = tag[1:].split(".")
        good = good and len(tokens) <= 20 and not {"", "*", ">"} & set(tokens)
    else:
        good = good and not tag.endswith("*")
    if tag.startswith("/"):
        good = good and tag.count("/") <= 32
    assert _passes(tag) == good


@pytest.mark.parametrize("token", ["", "a b", "a\n", "x" * 256, "\ud800"])
def test_bad_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidToken):
        check_token(token)


def test_a_token_may_hold_what_tags_may_not() -> None:
    assert check_token("a,b*") == "a,b*"


def test_text_shows_what_is_no_utf8_as_replacement() -> None:
    assert Message(frozenset({"a"}), b"\xffx").text == "\ufffdx"
