"""JSON frames: replies find their requests, and malformed frames end the connection."""

import msgspec
import pytest

from mist.client.dialect import Request, Response, SubscriptionRevoked
from mist.client.frames import FrameDialect
from mist.commands import Ping, Subscribe
from mist.errors import ProtocolViolation
from mist.message import Message
from mist.replies import Done, Failed

AB = frozenset("ab")


def test_frames_match_replies_by_their_ref_in_any_order() -> None:
    dialect = FrameDialect()
    subscribe, ping = Request(Subscribe(AB)), Request(Ping())
    frames = [msgspec.json.decode(frame) for frame in dialect.write([subscribe, ping])]
    assert frames == [
        {"command": "subscribe", "tags": ["a", "b"], "ref": 1},
        {"command": "ping", "ref": 2},
    ]
    assert dialect.receive(b'{"success":true,"command":"ping","ref":2}') == [Response(ping, Done())]
    [answer] = dialect.receive(b'{"success":false,"command":"subscribe","error":"no","ref":1}')
    assert isinstance(answer, Response)
    assert answer.request is subscribe
    assert isinstance(answer.reply, Failed)


def test_frames_nobody_asked_for() -> None:
    dialect = FrameDialect()
    assert dialect.receive(b'{"keys":["a","b"],"data":"x","id":7}') == [Message(AB, b"x", 7)]
    assert dialect.receive(b'{"keys":["a","b"],"data64":"/wA="}') == [Message(AB, b"\xff\x00")]
    revoked = b'{"success":false,"command":"revoked","tags":["a","b"]}'
    assert dialect.receive(revoked) == [SubscriptionRevoked(AB)]
    assert dialect.receive(b'{"success":false,"error":"Invalid json"}') == []


@pytest.mark.parametrize("frame", [b"", b"[]", b"1", b'{"keys":1}', b'{"keys":["a"],"data":1}'])
def test_a_frame_that_is_none_ends_the_connection(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        FrameDialect().receive(frame)
