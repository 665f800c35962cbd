"""Deliveries as JSON objects, and each in a frame."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.message import Envelope
from mist.protocols.json.forms import JSON_OBJECT_FRAMES, JSON_OBJECTS
from mist.protocols.rfc6455 import text_frame
from mist.wire import Batch, Entry, TagList

AC = frozenset("ca")


def entry(data: bytes, tags: frozenset[str] = AC) -> Entry:
    [(_, wire, count)] = Batch.of(tags, data).runs
    return TagList(tags), wire, count


def run(messages: list[bytes], tags: frozenset[str] = AC) -> Entry:
    tag_list = TagList(tags)
    return tag_list, b"".join(tag_list.head + data + b"\n" for data in messages), len(messages)


@pytest.mark.parametrize(
    ("data", "written"),
    [
        (b"hi", b'{"command":"publish","tags":["a","c"],"data":"hi"}\n'),
        (b"", b'{"command":"publish","tags":["a","c"]}\n'),
        (b"<>&/'", b'{"command":"publish","tags":["a","c"],"data":"<>&/\'"}\n'),
        (b'"\\', b'{"command":"publish","tags":["a","c"],"data":"\\"\\\\"}\n'),
        (b"1\n2\r\t", b'{"command":"publish","tags":["a","c"],"data":"1\\n2\\r\\t"}\n'),
        (b"\x00\x7f", b'{"command":"publish","tags":["a","c"],"data":"\\u0000\x7f"}\n'),
        ("ü😀".encode(), '{"command":"publish","tags":["a","c"],"data":"ü😀"}\n'.encode()),
        (b"a\xff", '{"command":"publish","tags":["a","c"],"data":"a\ufffd"}\n'.encode()),
        (b'""', b'{"command":"publish","tags":["a","c"],"data":"\\"\\""}\n'),
    ],
)
def test_a_delivery_looks_as_the_page_says(data: bytes, written: bytes) -> None:
    assert JSON_OBJECTS.pieces([entry(data)]) == [written]
    assert JSON_OBJECTS.join([entry(data)], framable=False) == (written, 1)
    assert JSON_OBJECT_FRAMES.pieces([entry(data)]) == [text_frame(written)]
    assert JSON_OBJECT_FRAMES.join([entry(data)], framable=False) == (text_frame(written), 1)


def test_tags_are_sorted_as_their_bytes_are_and_written_as_json() -> None:
    tags = frozenset({"ä", "b", '"', "\\", "<&>", "z"})
    [piece] = JSON_OBJECTS.pieces([entry(b"", tags)])
    assert piece == '{"command":"publish","tags":["\\"","<&>","\\\\","b","z","ä"]}\n'.encode()


DATA = st.binary(max_size=150) | st.text(max_size=50).map(str.encode) | st.just(b"")
LINES = DATA.map(lambda data: data.replace(b"\n", b""))
RUNS = st.lists(
    st.tuples(
        st.sampled_from([AC, frozenset("x"), frozenset({"%d", "\\n"})]),
        st.lists(LINES, min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@given(RUNS)
def test_deliveries_carry_their_data_one_by_one_or_joined(
    runs: list[tuple[frozenset[str], list[bytes]]],
) -> None:
    entries = [run(messages, tags) for tags, messages in runs]
    pieces = JSON_OBJECTS.pieces(entries)
    meant = [(sorted(tags), data) for tags, messages in runs for data in messages]
    for (tags, data), piece in zip(meant, pieces, strict=True):
        found = json.loads(piece)
        text = data.decode("utf-8", "replace")
        assert found == {"command": "publish", "tags": tags} | ({"data": text} if text else {})
        assert piece.endswith(b"}\n")
        assert piece.count(b"\n") == 1
    for framable in (True, False):
        assert JSON_OBJECTS.join(entries, framable=framable) == (b"".join(pieces), len(pieces))
    frames = [text_frame(piece) for piece in pieces]
    assert JSON_OBJECT_FRAMES.pieces(entries) == frames
    assert JSON_OBJECT_FRAMES.join(entries, framable=True) == (b"".join(frames), len(frames))


@given(st.lists(st.tuples(DATA, st.booleans()), max_size=5))
def test_data_may_hold_line_feeds(messages: list[tuple[bytes, bool]]) -> None:
    entries = [entry(data, AC if odd else frozenset("b")) for data, odd in messages]
    wire, count = JSON_OBJECTS.join(entries, framable=False)
    assert count == len(messages)
    found = [json.loads(line).get("data", "") for line in wire.splitlines()]
    assert found == [data.decode("utf-8", "replace") for data, _ in messages]


def test_ids_and_what_else_a_message_has_are_not_told() -> None:
    assert not JSON_OBJECTS.numbered
    assert not JSON_OBJECT_FRAMES.numbered
    for form in (JSON_OBJECTS, JSON_OBJECT_FRAMES):
        plain = form.pieces([entry(b"x")])
        assert form.pieces([entry(b"x")], firsts=[7], envelope=Envelope(publisher="p")) == plain
        joined = form.join([entry(b"x")], framable=True, firsts=[7], envelope=Envelope(time=1.0))
        assert joined == (plain[0], 1)
