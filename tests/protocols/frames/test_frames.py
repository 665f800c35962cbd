"""JSON frames and the WebSocket framing beneath them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.commands import Invalid, PublishOnce, Resume, Since, Subscribe
from mist.errors import HistoryDamaged, HistoryOff, HistoryUnavailable, MistError, NotGranted
from mist.message import Limits
from mist.protocols.frames import FrameProtocol
from mist.protocols.rfc6455 import close_frame, ping_frame, text_frame
from mist.replies import Done, Failed, Resumed, Revoked, Stored, Subscriptions


def payload(frame: bytes) -> bytes:
    """What is in one whole server frame."""
    short = frame[1] & 0x7F
    start = {126: 4, 127: 10}.get(short, 2)
    return frame[start:]


def reply(sent: str) -> str:
    """What a frame is answered with where every command succeeds."""
    protocol = FrameProtocol(Limits())
    command = protocol.command(sent.encode())
    answer: Done | Failed | Resumed | Stored | Subscriptions
    if isinstance(command, Invalid):
        answer = Failed(command.error)
    elif type(command).__name__ == "ListSubscriptions":
        answer = Subscriptions([b"a,b", b"c"])
    elif isinstance(command, PublishOnce):
        answer = Stored(7)
    elif isinstance(command, Resume) and command.since is not None:
        answer = Resumed("ab12", 9, command.since.epoch is None, 3)
    else:
        answer = Done()
    return payload(protocol.reply(command, answer)).decode()


BAD_TAGS = '{"success":false,"command":"subscribe","error":"tags must be a list of strings"}'
BAD_SINCE = '{"success":false,"command":"subscribe","error":"Invalid position"}'
BAD_SEVERAL = (
    '{"success":false,"command":"subscribe",'
    '"error":"subscriptions must be a list of lists of strings, and not empty"}'
)
RESUMED = '{"success":true,"command":"subscribe","epoch":"ab12","id":9,"recovered":true}'
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
        '{"success":true,"command":"publish","id":7}',
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
    ('{"command":"subscribe","tags":["a"],"since":0}', RESUMED),
    ('{"command":"subscribe","tags":["a"],"since":-3}', RESUMED),
    ('{"command":"subscribe","subscriptions":[["a"],["b","c"]],"since":5}', RESUMED),
    (
        '{"command":"subscribe","tags":["a"],"since":{"epoch":"ab12","id":5},"ref":1}',
        '{"success":true,"command":"subscribe",'
        '"epoch":"ab12","id":9,"recovered":false,"ref":1}',
    ),
    (
        '{"command":"subscribe","subscriptions":[["a"],["b","c"]]}',
        '{"success":true,"command":"subscribe"}',
    ),
    (
        '{"command":"subscribe","subscriptions":[["a"]],"ref":"x"}',
        '{"success":true,"command":"subscribe","ref":"x"}',
    ),
    ('{"command":"subscribe","tags":["a"],"since":null}', BAD_SINCE),
    ('{"command":"subscribe","tags":["a"],"since":true}', BAD_SINCE),
    ('{"command":"subscribe","tags":["a"],"since":"5"}', BAD_SINCE),
    ('{"command":"subscribe","tags":["a"],"since":5.0}', BAD_SINCE),
    ('{"command":"subscribe","tags":["a"],"since":9007199254740992}', BAD_SINCE),
    ('{"command":"subscribe","tags":["a"],"since":{"id":5}}', BAD_SINCE),
    ('{"command":"subscribe","tags":["a"],"since":{"epoch":"e","id":false}}', BAD_SINCE),
    (
        '{"command":"subscribe","tags":["a"],"since":"5","ref":1}',
        '{"success":false,"command":"subscribe","error":"Invalid position","ref":1}',
    ),
    ('{"command":"subscribe","tags":[1],"since":true}', BAD_TAGS),
    ('{"command":"subscribe","since":0}', BAD_TAGS),
    ('{"command":"subscribe","subscriptions":[]}', BAD_SEVERAL),
    ('{"command":"subscribe","subscriptions":null}', BAD_SEVERAL),
    ('{"command":"subscribe","subscriptions":["a"]}', BAD_SEVERAL),
    ('{"command":"subscribe","subscriptions":[["a"],[1]],"since":0}', BAD_SEVERAL),
    (
        '{"command":"subscribe","subscriptions":[["a"]],"tags":["a"]}',
        '{"success":false,"command":"subscribe","error":"tags or subscriptions, not both"}',
    ),
    (
        '{"command":"subscribe","subscriptions":[["a"],[]],"since":"x"}',
        '{"success":false,"command":"subscribe","error":"Empty tag"}',
    ),
    (
        '{"command":"subscribe","subscriptions":[["a"],["b*"]],"since":"x"}',
        '{"success":false,"command":"subscribe","error":"Invalid tag"}',
    ),
    (
        json.dumps({"command": "subscribe", "subscriptions": [[f"t{n}" for n in range(17)]]}),
        '{"success":false,"command":"subscribe","error":"Too many tags"}',
    ),
    (
        json.dumps({"command": "subscribe", "subscriptions": [["a"]] * 1_000, "since": 0}),
        RESUMED,
    ),
    (
        json.dumps({"command": "subscribe", "subscriptions": [["a"]] * 1_001}),
        '{"success":false,"command":"subscribe","error":"Too many subscriptions"}',
    ),
    ('{"command":"unsubscribe","subscriptions":[["a"]]}', BAD_TAGS.replace("sub", "unsub")),
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


A = frozenset("a")
BC = frozenset("bc")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ('"tags":["a"]', Subscribe(A)),
        ('"tags":["a"],"since":0', Resume([A], Since(after=0))),
        ('"tags":["c","b","c"],"since":-2', Resume([BC], Since(last=2))),
        (
            '"tags":["a"],"since":{"id":5,"epoch":"e"}',
            Resume([A], Since(after=5, epoch="e")),
        ),
        ('"subscriptions":[["a"]]', Resume([A], None)),
        ('"subscriptions":[["a"],["b","c"],["a"]]', Resume([A, BC, A], None)),
        ('"subscriptions":[["a"],["b","c"]],"since":7', Resume([A, BC], Since(after=7))),
    ],
)
def test_a_subscribe_is_live_only_or_begins_in_the_history(
    sent: str, meant: Subscribe | Resume
) -> None:
    command = FrameProtocol(Limits()).command(b'{"command":"subscribe",%b}' % sent.encode())
    assert command == meant


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (HistoryOff(), "History is off"),
        (HistoryUnavailable("no space left in /data"), "History is unavailable"),
        (HistoryDamaged(7, "checksum"), "History is unavailable"),
    ],
)
def test_a_history_that_fails_says_no_more_than_that(error: MistError, text: str) -> None:
    found = payload(FrameProtocol(Limits()).reply(Resume([A], Since(after=0)), Failed(error)))
    assert found.decode() == f'{{"success":false,"command":"subscribe","error":"{text}"}}'


def test_a_revocation_names_the_subscription() -> None:
    notice = FrameProtocol(Limits()).notice(Revoked(frozenset("ba")))
    assert payload(notice) == b'{"success":false,"command":"revoked","tags":["a","b"]}'


def test_a_gap_that_opens_during_a_replay_is_told() -> None:
    notice = FrameProtocol(Limits()).notice(Resumed("e", 20, False, 17))
    assert payload(notice) == b'{"success":false,"command":"gap","epoch":"e","id":17}'


@given(st.binary(max_size=200))
def test_any_message_is_answered(data: bytes) -> None:
    protocol = FrameProtocol(Limits())
    command = protocol.command(data)
    if isinstance(command, Invalid):
        answer = json.loads(payload(protocol.reply(command, Failed(command.error))))
        assert answer["success"] is False


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
