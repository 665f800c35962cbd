"""Positions in a history: every way to write one, and what is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.commands import Since
from mist.errors import InvalidPosition
from mist.protocols.positions import MAX_ID, position_from_json, position_from_text, start_from_text

TEXTS: list[tuple[bytes, Since]] = [
    (b"0", Since(after=0)),
    (b"5", Since(after=5)),
    (b"9007199254740991", Since(after=MAX_ID)),
    (b"-1", Since(last=1)),
    (b"-9007199254740991", Since(last=MAX_ID)),
    (b"ab12:0", Since(after=0, epoch="ab12")),
    (b"ab12:77", Since(after=77, epoch="ab12")),
    (b"7:8", Since(after=8, epoch="7")),
    (b"-:8", Since(after=8, epoch="-")),
    (b"x" * 255 + b":1", Since(after=1, epoch="x" * 255)),
]
NO_TEXTS = [
    *(b"", b" ", b"x", b"-", b"-0", b"+5", b"05", b"00", b"5.0", b"1e3", b"5 ", b" 5", b"5\r"),
    *(b"5\n", b"1_000", b"0x5", b"9007199254740992", b"-9007199254740992", b"9" * 100_000),
    *(b"\xd9\xa3", b"\xb2", b"--5", b":", b":5", b"e:", b"e:-5", b"e:x", b"e:05", b"e f:5"),
    *(b"e:f:5", b"\xff:5", "ä:5".encode(), b"e\x00:5", b"x" * 256 + b":1", b"e:9007199254740992"),
]


@pytest.mark.parametrize(("written", "meant"), TEXTS, ids=lambda value: repr(value)[:40])
def test_a_text_is_the_place_it_means(written: bytes, meant: Since) -> None:
    assert position_from_text(written) == meant


@pytest.mark.parametrize("written", NO_TEXTS, ids=lambda value: repr(value)[:40])
def test_another_text_is_no_place(written: bytes) -> None:
    with pytest.raises(InvalidPosition):
        position_from_text(written)


LATEST: list[tuple[bytes, str]] = [
    (b"latest=order:*", "order:*"),
    (b"latest=order:5", "order:5"),  # and not an id of an epoch
    (b"latest=*", "*"),
    (b"latest=/a/*", "/a/*"),
    (b"latest=\xc3\xa4*", "ä*"),
    (b"latest=" + b"x" * 255, "x" * 255),
]
NO_LATEST = [b"latest=", b"latest=a b", b"latest=a,b", b"latest=\x7f", b"latest=\xff"]


@pytest.mark.parametrize(("written", "pattern"), LATEST, ids=lambda value: repr(value)[:40])
def test_a_subscription_may_start_with_latest_values(written: bytes, pattern: str) -> None:
    assert start_from_text(written) == Since(latest=pattern)


@pytest.mark.parametrize(
    "written", [*NO_TEXTS, *NO_LATEST, b"latest=" + b"x" * 256], ids=lambda value: repr(value)[:40]
)
def test_another_text_is_no_start(written: bytes) -> None:
    with pytest.raises(InvalidPosition):
        start_from_text(written)


@pytest.mark.parametrize(("written", "meant"), TEXTS, ids=lambda value: repr(value)[:40])
def test_a_subscription_may_start_at_each_place(written: bytes, meant: Since) -> None:
    assert start_from_text(written) == meant


JSON: list[tuple[str, Since]] = [
    ("0", Since(after=0)),
    ("-0", Since(after=0)),  # the same number in JSON
    ("5", Since(after=5)),
    ("9007199254740991", Since(after=MAX_ID)),
    ("-3", Since(last=3)),
    ('{"epoch":"ab12","id":5}', Since(after=5, epoch="ab12")),
    ('{"id":0,"epoch":"ab12"}', Since(after=0, epoch="ab12")),
    ('{"latest":"order:*"}', Since(latest="order:*")),
    ('{"latest":"*"}', Since(latest="*")),
]
NO_JSON = [
    *("null", "true", "false", '""', '"5"', '"ab12:5"', "5.0", "1e3", "[]", "[5]", "{}"),
    *("9007199254740992", "-9007199254740992", "1" + "0" * 400),
    *('{"id":5}', '{"epoch":"e"}', '{"epoch":5,"id":5}', '{"epoch":null,"id":5}'),
    *('{"epoch":"e","id":"5"}', '{"epoch":"e","id":-5}', '{"epoch":"e","id":5.0}'),
    *('{"epoch":"e","id":true}', '{"epoch":"e","id":false}', '{"epoch":"e","id":null}'),
    *('{"epoch":"","id":5}', '{"epoch":"e f","id":5}', '{"epoch":"e:f","id":5}'),
    *('{"epoch":"e","id":5,"x":1}', '{"epoch":"e\\n","id":5}', '{"epoch":"ä","id":5}'),
    '{"epoch":"e","id":9007199254740992}',
    *('{"latest":""}', '{"latest":1}', '{"latest":"a b"}', '{"latest":"a,b"}', '{"latest":"\\n"}'),
    *('{"latest":"a","id":1}', '{"latest":"\\ud800"}', '{"latest":"%s"}' % ("x" * 256)),
]


@pytest.mark.parametrize(("written", "meant"), JSON)
def test_a_json_value_is_the_place_it_means(written: str, meant: Since) -> None:
    assert position_from_json(json.loads(written)) == meant


@pytest.mark.parametrize("written", NO_JSON, ids=lambda value: value[:40])
def test_another_json_value_is_no_place(written: str) -> None:
    with pytest.raises(InvalidPosition):
        position_from_json(json.loads(written))


EPOCHS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"))


@given(st.integers(0, MAX_ID), st.none() | EPOCHS.filter(bool))
def test_an_id_is_the_same_place_as_text_and_as_json(number: int, epoch: str | None) -> None:
    meant = Since(after=number, epoch=epoch)
    text = str(number) if epoch is None else f"{epoch}:{number}"
    value: object = number if epoch is None else {"epoch": epoch, "id": number}
    assert position_from_text(text.encode()) == position_from_json(value) == meant


@given(st.integers(1, MAX_ID))
def test_a_number_of_last_messages_is_the_same_as_text_and_as_json(last: int) -> None:
    assert position_from_text(b"-%d" % last) == position_from_json(-last) == Since(last=last)


@given(st.binary(max_size=12) | st.text("0123456789-:e", max_size=12).map(str.encode))
def test_any_text_is_one_place_written_in_one_way_or_none(raw: bytes) -> None:
    try:
        since = position_from_text(raw)
    except InvalidPosition:
        return
    assert (since.after is None) != (since.last is None)
    number = since.after if since.last is None else -since.last
    prefix = f"{since.epoch}:" if since.epoch is not None else ""
    assert raw.decode() == f"{prefix}{number}"
