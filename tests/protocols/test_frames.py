"""JSON frames and the WebSocket framing beneath them."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.commands import Done, Failed, Invalid, Revoked, Subscriptions
from mist.errors import NotGranted
from mist.message import Batch, Entry, Limits, TagList
from mist.protocols.frames import JSON_FRAMES, FrameProtocol
from mist.protocols.rfc6455 import close_frame, ping_frame, text_frame


def payload(frame: bytes) -> bytes:
    """What is in one whole server frame."""
    short = frame[1] & 0x7F
    start = {126: 4, 127: 10}.get(short, 2)
    return frame[start:]


def reply(sent: str) -> str:
    """What a frame is answered with where every command succeeds."""
    protocol = FrameProtocol(Limits())
    command = protocol.command(sent.encode())
    answer: Done | Failed | Subscriptions
    if isinstance(command, Invalid):
        answer = Failed(command.error)
    elif type(command).__name__ == "ListSubscriptions":
        answer = Subscriptions([b"a,b", b"c"])
    else:
        answer = Done()
    return payload(protocol.reply(command, answer)).decode()


BAD_TAGS = '{"success":false,"command":"subscribe","error":"tags must be a list of strings"}'
BAD_JSON = '{"success":false,"error":"Invalid json"}'
TABLE = [
    ('{"command":"subscribe","tags":["a","b"]}', '{"success":true,"command":"subscribe"}'),
    ('{"command":"unsubscribe","tags":["a"]}', '{"success":true,"command":"unsubscribe"}'),
    (
        '{"command":"list"}',
        '{"success":true,"command":"list","subscriptions":[["a","b"],["c"]]}',
    ),
    ('{"command":"ping"}', '{"success":true,"command":"ping"}'),
    ('{"command":"auth","token":"t"}', '{"success":true,"command":"auth"}'),
    (
        '{"command":"publish","tags":["a"],"data":"x"}',
        '{"success":false,"command":"publish",'
        '"error":"publishing is not allowed over websockets"}',
    ),
    ('{"command":"zz"}', '{"success":false,"command":"zz","error":"unknown command"}'),
    ('{"command":7}', '{"success":false,"error":"unknown command"}'),
    ("{}", '{"success":false,"error":"unknown command"}'),
    ("nonsense", BAD_JSON),
    ("[1]", BAD_JSON),
    ("7", BAD_JSON),
    ("", BAD_JSON),
    ("[" * 100_000, BAD_JSON),
    ('{"a":' * 50_000, BAD_JSON),
    ('{"command":"ping","ref":NaN}', BAD_JSON),
    ('{"command":"subscribe","tags":["\\ud800"]}', BAD_JSON),
    ('{"command":"subscribe"}', BAD_TAGS),
    ('{"command":"subscribe","tags":"a"}', BAD_TAGS),
    ('{"command":"subscribe","tags":["a",1]}', BAD_TAGS),
    (
        '{"command":"subscribe","tags":[]}',
        '{"success":false,"command":"subscribe","error":"Empty tag"}',
    ),
    (
        '{"command":"subscribe","tags":["a*"]}',
        '{"success":false,"command":"subscribe","error":"Invalid tag"}',
    ),
    (
        '{"command":"subscribe","tags":["a"],"since":0}',
        '{"success":false,"command":"subscribe","error":"History is off"}',
    ),
    (
        json.dumps({"command": "subscribe", "tags": [f"t{n}" for n in range(17)]}),
        '{"success":false,"command":"subscribe","error":"Too many tags"}',
    ),
    ('{"command":"auth"}', '{"success":false,"command":"auth","error":"token must be a string"}'),
    ('{"command":"ping","ref":1}', '{"success":true,"command":"ping","ref":1}'),
    ('{"command":"ping","ref":null}', '{"success":true,"command":"ping","ref":null}'),
    ('{"command":"ping","ref":false}', '{"success":true,"command":"ping","ref":false}'),
    ('{"command":"ping","ref":"ä\\n"}', '{"success":true,"command":"ping","ref":"ä\\n"}'),
    ('{"command":"ping","ref":1.5}', '{"success":true,"command":"ping","ref":1.5}'),
    (
        '{"command":"ping","ref":123456789012345678901234567890}',
        '{"success":true,"command":"ping","ref":123456789012345678901234567890}',
    ),
    (
        '{"command":"zz","ref":2}',
        '{"success":false,"command":"zz","error":"unknown command","ref":2}',
    ),
    (
        '{"command":"ping","ref":[1]}',
        '{"success":false,"command":"ping","error":"ref must be a JSON scalar"}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "answer"), TABLE, ids=[row[0][:40] for row in TABLE])
def test_every_row_is_answered_to_the_byte(sent: str, answer: str) -> None:
    assert reply(sent) == answer


def test_a_binary_frame_and_a_refused_subscription_are_answered() -> None:
    protocol = FrameProtocol(Limits())
    command = protocol.binary(b"x")
    assert isinstance(command, Invalid)
    found = payload(protocol.reply(command, Failed(command.error)))
    assert found == b'{"success":false,"error":"binary frames are not understood"}'
    command = protocol.command(b'{"command":"subscribe","tags":["a"]}')
    found = payload(protocol.reply(command, Failed(NotGranted())))
    assert json.loads(found)["error"] == "not granted by the token"


def test_a_revocation_names_the_subscription() -> None:
    notice = FrameProtocol(Limits()).notice(Revoked(frozenset("ba")))
    assert payload(notice) == b'{"success":false,"command":"revoked","tags":["a","b"]}'


@given(st.binary(max_size=200))
def test_any_message_is_answered(data: bytes) -> None:
    protocol = FrameProtocol(Limits())
    command = protocol.command(data)
    if isinstance(command, Invalid):
        answer = json.loads(payload(protocol.reply(command, Failed(command.error))))
        assert answer["success"] is False


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


def test_messages_of_any_number_of_sizes_are_framed_and_few_sizes_kept() -> None:
    tag_list = TagList(frozenset("ab"))
    for _ in range(2):
        for size in range(500):
            wire = b"publish a,b " + b"x" * size + b"\n"
            [frame] = JSON_FRAMES.pieces([(tag_list, wire, 1)])
            assert payload(frame) == b'{"keys":["a","b"],"data":"%b"}' % (b"x" * size)
    assert len(tag_list.derived[JSON_FRAMES]) <= 64


def test_a_delivery_looks_as_the_page_says() -> None:
    assert payload(JSON_FRAMES.pieces([entry(b"x")])[0]) == b'{"keys":["a","b"],"data":"x"}'
    assert payload(JSON_FRAMES.pieces([entry(b"\xff")])[0]) == b'{"keys":["a","b"],"data64":"/w=="}'


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65_535, b"\x81\x7e\xff\xff"),
        (65_536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_a_frame_header_grows_with_its_payload(size: int, header: bytes) -> None:
    frame = text_frame(b"x" * size)
    assert frame.startswith(header)
    assert len(frame) == len(header) + size


def test_control_frames_are_small_whatever_the_reason() -> None:
    assert ping_frame() == b"\x89\x00"
    assert close_frame(1001) == b"\x88\x02\x03\xe9"
    frame = close_frame(4401, "ä" * 200)
    assert frame[1] <= 125
    frame[4:].decode()
