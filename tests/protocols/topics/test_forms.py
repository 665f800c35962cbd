"""Deliveries to guble's clients, to the byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.message import Envelope, format_tags
from mist.protocols.rfc6455 import binary_frame, text_frame
from mist.protocols.topics.forms import (
    APPLICATION,
    HEADERS,
    MESSAGE_ID,
    USER,
    TopicForm,
    json_line,
    notification,
    rfc3339,
)
from mist.wire import Entry, TagList

FORM = TopicForm(lambda: 1420110000.9)


def entry(tags: str, *datas: bytes) -> Entry:
    tag_list = TagList(frozenset(tags.split(",")))
    return tag_list, b"".join(tag_list.head + data + b"\n" for data in datas), len(datas)


def envelope(**meta: bytes) -> Envelope:
    names = {"user": USER, "application": APPLICATION, "id": MESSAGE_ID, "headers": HEADERS}
    return Envelope(time=1420110001.5, meta={names[name]: value for name, value in meta.items()})


def test_a_delivery_tells_all_that_guble_knows_of_a_message() -> None:
    found = FORM.pieces(
        [entry("/foo/bar", b"Hello World")],
        firsts=[42],
        envelope=envelope(user=b"user01", application=b"phone1", id=b"id123", headers=b'{"K": 1}'),
    )
    assert found == [
        text_frame(b'/foo/bar,42,user01,phone1,id123,1420110001\n{"K": 1}\nHello World')
    ]


def test_what_other_endpoints_do_not_know_is_empty() -> None:
    assert FORM.pieces([entry("/a,b", b"x")]) == [text_frame(b"/a,0,,,,1420110000\n\nx")]
    assert FORM.pieces([entry("/a", b"")], envelope=Envelope()) == [
        text_frame(b"/a,0,,,,1420110000\n\n")
    ]


def test_ids_count_on_within_a_run_and_begin_anew_with_the_next() -> None:
    entries = [entry("/a", b"1", b"2"), entry("b", b"3"), entry("/c", b"4")]
    assert FORM.pieces(entries, firsts=[7, 9, 20]) == [
        text_frame(b"/a,7,,,,1420110000\n\n1"),
        text_frame(b"/a,8,,,,1420110000\n\n2"),
        text_frame(b"/c,20,,,,1420110000\n\n4"),
    ]
    wire, count = FORM.join(entries, framable=True, firsts=[7, 9, 20])
    assert (wire, count) == (b"".join(FORM.pieces(entries, firsts=[7, 9, 20])), 3)


def test_of_several_topics_the_first_in_byte_order_is_told() -> None:
    assert FORM.pieces([entry("/b,/a/z,.s.t,+", b"x")]) == [
        text_frame(b"/a/z,0,,,,1420110000\n\nx")
    ]


def test_what_is_no_utf_8_is_a_binary_frame() -> None:
    assert FORM.pieces([entry("/a", b"\xff")]) == [binary_frame(b"/a,0,,,,1420110000\n\n\xff")]
    assert FORM.pieces([entry("/ä", "ö\n€".encode())]) == [
        text_frame("/ä,0,,,,1420110000\n\nö\n€".encode())
    ]


def test_nothing_that_a_service_wrote_ends_a_field_or_a_line() -> None:
    odd = envelope(user=b"a,b\nc", application=b"\r\n,", id=b"\n", headers=b'{\n"a": 1}\n')
    [frame] = FORM.pieces([entry("/a", b"x")], envelope=odd)
    assert frame == text_frame(b'/a,0,abc,,,1420110001\n{ "a": 1} \nx')


tags = st.sets(st.sampled_from(["/a", "/a/b", "/ä", "x", ".s", "zz"]), min_size=1)


@given(st.lists(st.tuples(tags, st.binary(max_size=200)), max_size=8), st.integers(1, 2**53))
def test_any_data_comes_whole(messages: list[tuple[set[str], bytes]], first: int) -> None:
    entries = [entry(format_tags(tags), data) for tags, data in messages]
    frames = FORM.pieces(entries, firsts=[first + place for place in range(len(entries))])
    expected = []
    for place, (published, data) in enumerate(messages):
        if topics := sorted(tag.encode() for tag in published if tag[0] == "/"):
            expected.append((topics[0], b"%d" % (first + place), data))
    found = []
    for frame in frames:
        head, _, data = payload(frame).split(b"\n", 2)
        fields = head.split(b",")
        assert len(fields) == 6
        found.append((fields[0], fields[1], data))
        assert (frame[0] == 0x81) == is_utf8(payload(frame))
    assert found == expected


def payload(frame: bytes) -> bytes:
    return frame[{126: 4, 127: 10}.get(frame[1], 2) :]


def is_utf8(data: bytes) -> bool:
    return data.decode("utf-8", "replace").encode() == data


@pytest.mark.parametrize(
    ("time", "text"),
    [(0.0, "1970-01-01T00:00:00Z"), (1420110000.999, "2015-01-01T11:00:00Z")],
)
def test_times_are_rfc_3339(time: float, text: str) -> None:
    assert rfc3339(time) == text


def test_json_stands_on_one_line() -> None:
    assert json_line({"a": 'x"\n', "b": 0}) == b'{"a":"x\\"\\n","b":0}'
    assert json_line({"a": "x", "b": 0}, spaced=True) == b'{"a": "x", "b": 0}'
    assert notification("#a b") == text_frame(b"#a b")
    assert notification("#a b", b"{}") == text_frame(b"#a b\n{}")
