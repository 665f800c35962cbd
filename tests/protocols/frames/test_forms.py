"""Deliveries as JSON frames."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.message import Limits
from mist.protocols.frames import FrameProtocol
from mist.protocols.frames.forms import JSON_FRAMES
from mist.protocols.rfc6455 import TEXT_HEADERS
from mist.wire import Batch, Entry, TagList


def payload(frame: bytes) -> bytes:
    """What is in one whole server frame."""
    short = frame[1] & 0x7F
    start = {126: 4, 127: 10}.get(short, 2)
    return frame[start:]


def entry(data: bytes) -> Entry:
    [(_, wire, count)] = Batch.of(frozenset("ba"), data).runs
    return TagList(frozenset("ba")), wire, count


@given(st.lists(st.one_of(st.binary(max_size=300), st.text().map(str.encode)), max_size=8))
def test_deliveries_carry_their_data_exactly(messages: list[bytes]) -> None:
    frames = JSON_FRAMES.pieces([entry(data) for data in messages])
    for data, frame in zip(messages, frames, strict=True):
        found = json.loads(payload(frame))
        assert found["keys"] == ["a", "b"]
        if "data64" in found:
            assert base64.b64decode(found["data64"]) == data
            with pytest.raises(UnicodeDecodeError):
                data.decode()
        else:
            assert found["data"] == data.decode()


def test_messages_of_any_size_are_framed_and_headers_of_usual_sizes_kept() -> None:
    tag_list = TagList(frozenset("ab"))
    for _ in range(2):
        for size in [*range(500), 5_000, 70_000]:
            wire = b"publish a,b " + b"x" * size + b"\n"
            [frame] = JSON_FRAMES.pieces([(tag_list, wire, 1)])
            assert payload(frame) == b'{"keys":["a","b"],"data":"%b"}' % (b"x" * size)
    assert max(TEXT_HEADERS) < 4_096


def test_a_delivery_looks_as_the_page_says() -> None:
    assert payload(JSON_FRAMES.pieces([entry(b"x")])[0]) == b'{"keys":["a","b"],"data":"x"}'
    assert payload(JSON_FRAMES.pieces([entry(b"\xff")])[0]) == b'{"keys":["a","b"],"data64":"/w=="}'


@pytest.mark.parametrize(
    ("data", "firsts", "meant"),
    [
        ([b"x"], [1], [b'{"keys":["a","b"],"data":"x","id":1}']),
        ([b"\xff"], [2], [b'{"keys":["a","b"],"data64":"/w==","id":2}']),
        (
            [b"50%d", b"\n%", b""],
            [7, 5, (1 << 53) - 1],
            [
                b'{"keys":["a","b"],"data":"50%d","id":7}',
                b'{"keys":["a","b"],"data":"\\n%","id":5}',
                b'{"keys":["a","b"],"data":"","id":9007199254740991}',
            ],
        ),
        (
            [b"%", b"\xff"],
            [8, 9],
            [
                b'{"keys":["a","b"],"data":"%","id":8}',
                b'{"keys":["a","b"],"data64":"/w==","id":9}',
            ],
        ),
    ],
)
def test_a_delivery_with_an_id_looks_as_the_page_says(
    data: list[bytes], firsts: list[int], meant: list[bytes]
) -> None:
    entries = [entry(each) for each in data]
    frames = JSON_FRAMES.pieces(entries, firsts=firsts)
    assert [payload(frame) for frame in frames] == meant
    joined = JSON_FRAMES.join(entries, framable=False, firsts=firsts)
    assert joined == (b"".join(frames), len(frames))


def test_json_frames_carry_ids_whatever_was_asked_for() -> None:
    assert JSON_FRAMES.numbered
    protocol = FrameProtocol(Limits())
    for on in (True, False):
        protocol.ids(on)
        assert protocol.form is JSON_FRAMES


DATA = st.binary(max_size=150) | st.text(max_size=150).map(str.encode)
RUN = st.tuples(
    st.lists(DATA.map(lambda data: data.replace(b"\n", b"")), min_size=1, max_size=4),
    st.integers(1, (1 << 53) - 100),
)


@given(st.lists(RUN, max_size=4))
def test_deliveries_with_ids_read_back_give_the_ids_and_the_data(
    runs: list[tuple[list[bytes], int]],
) -> None:
    tag_list = TagList(frozenset("ab"))
    entries = [
        (tag_list, b"".join([b"publish a,b %b\n" % each for each in data]), len(data))
        for data, _ in runs
    ]
    frames = JSON_FRAMES.pieces(entries, firsts=[first for _, first in runs])
    found = []
    for frame in frames:
        text = payload(frame)
        size = len(frame) - len(text)
        assert size == (2 if len(text) < 126 else 4)
        delivery = json.loads(text)
        assert list(delivery) in (["keys", "data", "id"], ["keys", "data64", "id"])
        data64 = delivery.get("data64")
        data = delivery["data"].encode() if data64 is None else base64.b64decode(data64)
        found.append((delivery["id"], data))
    assert found == [pair for data, first in runs for pair in enumerate(data, first)]
    without = [json.loads(payload(frame)) for frame in JSON_FRAMES.pieces(entries)]
    numbered = [json.loads(payload(frame)) for frame in frames]
    assert [{**each, "id": other["id"]} for each, other in zip(without, numbered, strict=True)] == (
        numbered
    )
