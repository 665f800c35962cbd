"""The JSON dialect in the messages of a WebSocket."""

import struct

import pytest

from mist.commands import Auth, Bye, Command, Hangup, Invalid, ListSubscriptions, Publish, Subscribe
from mist.errors import NotGranted
from mist.message import Limits
from mist.protocols.json.forms import JSON_OBJECT_FRAMES
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.rfc6455 import text_frame
from mist.replies import Done, Failed, Revoked, Subscriptions
from tests.garbage import left_in_cycles

PING = b'{"command":"ping"}'
LIST = b'{"command":"list"}'
PUBLISH = b'{"command":"publish","tags":["a"],"data":"x"}'


def frame(payload: bytes, first: int = 0x81) -> bytes:
    """A masked frame, as a client sends it; the mask is zeros."""
    size = len(payload)
    header = (
        struct.pack("!BB", first, 0x80 | size)
        if size < 126
        else struct.pack("!BBH", first, 0xFE, size)
    )
    return header + bytes(4) + payload


def read(*frames: bytes, limits: Limits | None = None) -> list[Command]:
    return list(JsonFrameProtocol(limits or Limits()).receive(b"".join(frames)))


def names(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def test_what_is_no_command_leaves_no_garbage() -> None:
    wrong = frame(b'{"command": 5}{"command": "publish", "tags": 7}{"command": "no", "data": []}')
    read(wrong)
    with left_in_cycles() as left:
        assert [type(each) for each in read(wrong)] == [Invalid] * 3
    assert left == set()


@pytest.mark.parametrize("first", [0x81, 0x82])
def test_a_message_of_text_or_binary_holds_one_object_or_several(first: int) -> None:
    assert names(read(frame(PING, first))) == ["Ping"]
    assert names(read(frame(PING + LIST + b"\n" + PING, first))) == [
        "Ping",
        "ListSubscriptions",
        "Ping",
    ]
    odd = b'{"command":"list","x":[{}]}'  # not read in bulk
    assert names(read(frame(PING + odd + PING, first))) == ["Ping", "ListSubscriptions", "Ping"]
    assert names(read(frame(b"", first), frame(b" \n", first))) == []


def test_an_object_in_fragments_is_one() -> None:
    assert names(read(frame(PING[:9], 0x01), frame(PING[9:], 0x80))) == ["Ping"]


@pytest.mark.parametrize(
    "message", [b"{", PING[:-1], b"x", b"[]", PING + b"x", PING + b"{", b'{"command":"ping"]']
)
def test_a_message_that_is_not_json_says_nothing_but_that(message: bytes) -> None:
    found = read(frame(message), frame(PING))
    assert names(found[:2]) == ["Invalid", "Hangup"]
    protocol = JsonFrameProtocol(Limits())
    assert isinstance(found[0], Invalid)
    answer = protocol.reply(found[0], Failed(found[0].error))
    assert answer == text_frame(b'{"error":"Invalid json"}\n')


def test_an_object_does_not_go_on_in_the_next_message() -> None:
    found = read(frame(PING[:9]), frame(PING[9:]))
    assert names(found[:2]) == ["Invalid", "Hangup"]


def test_publishes_in_one_read_are_one_batch_however_many_frames_they_are() -> None:
    found = read(frame(PUBLISH), frame(PUBLISH + PUBLISH, 0x82), frame(PING), frame(PUBLISH))
    assert names(found) == ["Publish", "Ping", "Publish"]
    assert isinstance(found[0], Publish)
    assert found[0].batch.whole == (b"publish a x\n" * 3, 3)


def test_control_frames_keep_their_place() -> None:
    protocol = JsonFrameProtocol(Limits())
    found = list(protocol.receive(frame(PING) + frame(b"hi", 0x89) + frame(b"\x03\xe8", 0x88)))
    assert names(found) == ["Ping", "Ping", "Bye"]
    assert protocol.reply(found[0], Done()) == text_frame(b'{"command":"ping","data":"pong"}\n')
    assert protocol.reply(found[1], Done()) == b"\x8a\x02hi"
    assert isinstance(found[2], Bye)
    assert protocol.close_reply == b"\x88\x02\x03\xe8"


def test_what_is_too_long_or_broken_ends_it_with_its_code() -> None:
    [too_long] = read(frame(b"x" * 200), limits=Limits(frame=100))
    assert isinstance(too_long, Hangup)
    assert too_long.code == 1009
    [broken] = read(b"\x81\x01x")
    assert isinstance(broken, Hangup)
    assert broken.code == 1002


def test_the_first_object_of_an_unauthenticated_peer_brings_its_token() -> None:
    protocol = JsonFrameProtocol(Limits(), unauthenticated=True)
    commands = protocol.receive(frame(b'{"command":"auth","data":"t"}' + PING))
    assert next(commands) == Auth("t")
    protocol.authenticated()
    assert names(list(commands)) == ["Ping"]
    [long] = JsonFrameProtocol(Limits(), unauthenticated=True).receive(frame(b"x" * 8_449))
    assert isinstance(long, Hangup)
    assert long.code == 1009


def test_commands_on_tokens_are_unknown_with_a_token_or_without() -> None:
    protocol = JsonFrameProtocol(Limits())
    protocol.reply(Auth("t"), Done())
    [unknown] = protocol.receive(frame(b'{"command":"tags","data":"t"}'))
    assert isinstance(unknown, Invalid)
    answer = text_frame(b'{"command":"tags","data":"t","error":"Unknown Command"}\n')
    assert protocol.reply(unknown, Failed(unknown.error)) == answer


def test_every_answer_and_notice_is_a_text_frame_or_nothing() -> None:
    protocol = JsonFrameProtocol(Limits())
    assert protocol.form is JSON_OBJECT_FRAMES
    assert not protocol.echoes
    assert not protocol.counts_subscriptions
    assert protocol.reply(Subscribe(frozenset("a")), Done()) == b""
    assert protocol.reply(ListSubscriptions(), Subscriptions((b"a,b",))) == text_frame(
        b'{"command":"list","data":"a,b","subscriptions":[["a","b"]]}\n'
    )
    assert protocol.reply(Subscribe(frozenset("a")), Failed(NotGranted())) == text_frame(
        b'{"command":"subscribe","error":"not granted by the token"}\n'
    )
    assert protocol.notice(Revoked(frozenset("a"))) == text_frame(
        b'{"command":"revoked","tags":["a"],"error":"not granted by the token"}\n'
    )
