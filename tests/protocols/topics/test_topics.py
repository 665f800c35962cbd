"""guble's protocol: one table of messages and meaning, answers to the byte."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.commands import (
    Bye,
    Command,
    Fetch,
    Hangup,
    Invalid,
    Ping,
    Publish,
    Resume,
    Since,
    Store,
    Unsubscribe,
)
from mist.errors import HistoryOff, HistoryUnavailable, NotGranted, TooManySubscriptions
from mist.message import Limits
from mist.protocols.rfc6455 import text_frame
from mist.protocols.topics import TopicProtocol
from mist.protocols.topics.commands import Sending, parse_message
from mist.protocols.topics.forms import TopicForm
from mist.replies import Behind, CaughtUp, Done, Failed, Fetched, Resumed, Revoked, Stored

NOW = 1420110000.5
TIME = b'"messagePublishingTime":1420110000'
FOO = frozenset({"/foo"})


def protocol(*, stores: bool = True, limits: Limits | None = None) -> TopicProtocol:
    def clock() -> float:
        return NOW

    return TopicProtocol(
        limits or Limits(),
        TopicForm(clock),
        user=lambda: "marvin",
        application="phone1",
        clock=clock,
        stores=stores,
    )


def frame(payload: bytes, first: int = 0x81) -> bytes:
    """A masked frame, as a client sends it; the mask is zeros."""
    size = len(payload)
    if size < 126:
        header = struct.pack("!BB", first, 0x80 | size)
    elif size < 65_536:
        header = struct.pack("!BBH", first, 0xFE, size)
    else:
        header = struct.pack("!BBQ", first, 0xFF, size)
    return header + bytes(4) + payload


def read(*messages: bytes, **options: Any) -> list[Command]:
    return list(protocol(**options).receive(b"".join(map(frame, messages))))


def test_it_says_who_the_client_is_before_anything_else() -> None:
    assert protocol().greeting() == text_frame(
        b"#connected You are connected to the server.\n"
        b'{"ApplicationId": "phone1", "UserId": "marvin", "Time": "2015-01-01T11:00:00Z"}'
    )


# what messages ask for


@pytest.mark.parametrize(
    ("message", "command"),
    [
        (b"+ /foo", Resume([FOO], None, ref="/foo")),
        (b"+ /foo ", Resume([FOO], None, ref="/foo")),
        (b"+ /foo\nwhat stands behind\nsays nothing", Resume([FOO], None, ref="/foo")),
        (b"+ /foo 0", Resume([FOO], Since(after=0, literal=True), counted=True, ref="/foo")),
        (b"+ /foo 1", Resume([FOO], Since(after=0, literal=True), counted=True, ref="/foo")),
        (b"+ /foo 42", Resume([FOO], Since(after=41, literal=True), counted=True, ref="/foo")),
        (b"+ /foo +42 ", Resume([FOO], Since(after=41, literal=True), counted=True, ref="/foo")),
        (b"+ /foo -20", Resume([FOO], Since(last=20), counted=True, ref="/foo")),
        (b"+ /foo 0 20", Fetch(FOO, Since(after=0, literal=True), 20, ref="/foo")),
        (b"+ /foo -20 5", Fetch(FOO, Since(last=20), 5, ref="/foo")),
        (b"+ /foo 3 0", Fetch(FOO, Since(after=2, literal=True), 0, ref="/foo")),
        (b"+ /foo  20", Resume([FOO], None, ref="/foo")),
        (
            b"+ /foo 9999999999999999999",
            Resume([FOO], Since(after=2**53 - 1, literal=True), counted=True, ref="/foo"),
        ),
        (
            b"+ /foo -9999999999999999999",
            Resume([FOO], Since(last=2**53 - 1), counted=True, ref="/foo"),
        ),
        (b"+ /", Resume([frozenset({"/"})], None, ref="/")),
        ("+ /ä/b".encode(), Resume([frozenset({"/ä/b"})], None, ref="/ä/b")),
        (b"- /foo", Unsubscribe(FOO, ref="/foo")),
    ],
)
@pytest.mark.parametrize("first", [0x81, 0x82])
def test_what_a_message_asks_for(message: bytes, command: Command, first: int) -> None:
    assert list(protocol().receive(frame(message, first))) == [command]


@pytest.mark.parametrize(
    ("message", "path", "message_id", "headers", "body"),
    [
        (b"> /foo", "/foo", "", b"", b""),
        (b"> /foo 42", "/foo", "42", b"", b""),
        (b"> /foo 42\n", "/foo", "42", b"", b""),
        (b"> /foo 42\n\nHello", "/foo", "42", b"", b"Hello"),
        (b"> /foo\n\n\nHello", "/foo", "", b"", b"\nHello"),
        (b'> /foo 42\n{"a": 1}', "/foo", "42", b'{"a": 1}', b""),
        (b'> /foo 42\n{"a": 1}\nHello\n', "/foo", "42", b'{"a": 1}', b"Hello\n"),
        (b'> /foo 42\n{"a": 1}\n\nHello', "/foo", "42", b'{"a": 1}', b"Hello"),
        (b'> /foo 42\n{"a": 1}\n\n\nHello', "/foo", "42", b'{"a": 1}', b"\nHello"),
        (b"> /foo an id of words\n\n\x00\xff\n", "/foo", "an id of words", b"", b"\x00\xff\n"),
    ],
)
def test_what_a_client_publishes(
    message: bytes, path: str, message_id: str, headers: bytes, body: bytes
) -> None:
    [stored] = protocol().receive(frame(message, 0x82))
    assert isinstance(stored, Store)
    [(tag_list, wire, count)] = stored.batch.runs
    assert (tag_list, wire, count) == (path.encode(), b"publish %b %b\n" % (tag_list, body), 1)
    assert stored.batch.framable == (b"\n" not in body)
    envelope = stored.batch.envelope
    assert envelope is not None
    assert envelope.time == NOW
    expected = {"guble.user": b"marvin", "guble.application": b"phone1"}
    if message_id:
        expected["guble.id"] = message_id.encode()
    if headers:
        expected["guble.headers"] = headers
    assert envelope.meta == expected


BAD = [
    (b"", b"error parsing command. empty command"),
    (b"XXXX", b"unknown command XXXX"),
    (b"send /foo", b"unknown command send"),
    (b"x" * 500, b"unknown command " + b"x" * 100),
    (b"\xff", "unknown command \ufffd".encode()),
    (b">/foo", b"unknown command >/foo"),
    (b"\n> /foo", b"unknown command "),
    (b"+", b"command requires at least a path argument, but non given"),
    (b"+ ", b"command requires at least a path argument, but non given"),
    (b"+ foo", b"command requires at least a path argument, but non given"),
    (b"+ =/foo", b"command requires at least a path argument, but non given"),
    (b"-", b"command requires at least a path argument, but non given"),
    (b">", b"command requires at least a path argument, but non given"),
    (b"> \n\nx", b"command requires at least a path argument, but non given"),
    (b"> foo", b"command requires at least a path argument, but non given"),
    (b"+ /a,b", b'invalid path "/a,b"'),
    (b"- /a b", b'invalid path "/a b"'),
    (b"+ /foo*", b'invalid path "/foo*"'),
    (b"+ /\x01", b'invalid path "/\\u0001"'),
    (b"+ /\xff", 'invalid path "/\ufffd"'.encode()),
    (b"+ /" + b"x" * 255, b'invalid path "/' + b"x" * 99 + b'"'),
    (b"+ " + b"/x" * 33, b'invalid path "' + b"/x" * 33 + b'"'),
    (b"+ /foo a", b'startid has to be empty or int, but was "a"'),
    (b"+ /foo 1.5", b'startid has to be empty or int, but was "1.5"'),
    (b"+ /foo 0,20", b'startid has to be empty or int, but was "0,20"'),
    (b"+ /foo --1", b'startid has to be empty or int, but was "--1"'),
    (b"+ /foo " + b"9" * 30, b'startid has to be empty or int, but was "%b"' % (b"9" * 30)),
    (b"+ /foo 1 a", b'maxCount has to be empty or int, but was "a"'),
    (b"+ /foo 1 -1", b'maxCount has to be empty or int, but was "-1"'),
    (b"+ /foo 1 2 3", b'maxCount has to be empty or int, but was "2 3"'),
]


@pytest.mark.parametrize(("message", "text"), BAD)
def test_what_cannot_be_meant_is_a_bad_request(message: bytes, text: bytes) -> None:
    peer = protocol()
    [invalid, still_there] = peer.receive(frame(message, 0x82) + frame(b"+ /foo"))
    assert isinstance(invalid, Invalid)
    answer = peer.reply(invalid, Failed(invalid.error))
    assert answer == text_frame(b"!error-bad-request " + text)
    assert isinstance(still_there, Resume)


@pytest.mark.parametrize(
    ("message", "arguments", "path", "message_id"),
    [
        (b"> /a,b 42", b'42 invalid path "/a,b"', b"/a,b", b"42"),
        (b"> /a*", b'invalid path "/a*"', b"/a*", b""),
        (b"> /a 4,2", b"4,2 a message id has no comma, and no control character", b"/a", b"4,2"),
        (
            b"> /a \x01",
            b"\x01 a message id has no comma, and no control character",
            b"/a",
            b"\\u0001",
        ),
        (
            b"> /a " + b"x" * 300,
            b"x" * 255 + b" a message id is at most 255 bytes long",
            b"/a",
            b"x" * 255,
        ),
        (b"> /a 42\nHello", b"42 headers are a JSON object", b"/a", b"42"),
        (b"> /a 42\n[]\n\nHello", b"42 headers are a JSON object", b"/a", b"42"),
        (b"> /a 42\n{\n}", b"42 headers are a JSON object", b"/a", b"42"),
        (b'> /a 42\n{"a":"\xff"}', b"42 headers are a JSON object", b"/a", b"42"),
        (b"> /a 42\n" + b'{"a":' * 9_000, b"42 headers are a JSON object", b"/a", b"42"),
        (b"> /a 42\n\n" + b"x" * 51, b"42 Data too long", b"/a", b"42"),
    ],
)
@pytest.mark.parametrize("stores", [True, False])
def test_what_cannot_be_sent_is_told_with_its_id(
    message: bytes, arguments: bytes, path: bytes, message_id: bytes, stores: bool
) -> None:
    peer = protocol(stores=stores, limits=Limits(data=50))
    [invalid] = peer.receive(frame(message, 0x82))
    assert isinstance(invalid, Invalid)
    assert peer.reply(invalid, Failed(invalid.error)) == text_frame(
        b'!error-send %b\n{"sequenceId":0,"path":"%b","publisherMessageId":"%b",%b}'
        % (arguments, path, message_id, TIME)
    )


def test_control_frames_keep_their_place() -> None:
    peer = protocol()
    data = frame(b"+ /foo") + frame(b"hi", 0x89) + frame(b"\x03\xe8", 0x88)
    commands = list(peer.receive(data))
    assert [type(each) for each in commands] == [Resume, Ping, Bye]
    assert peer.reply(commands[1], Done()) == b"\x8a\x02hi"
    assert peer.close_reply == b"\x88\x02\x03\xe8"


def test_what_is_too_long_or_broken_ends_it_with_its_code() -> None:
    [too_long] = read(b"> /a\n\n" + b"x" * 200, limits=Limits(frame=100))
    assert isinstance(too_long, Hangup)
    assert too_long.code == 1009
    [broken] = protocol().receive(b"\x81\x01x")
    assert isinstance(broken, Hangup)
    assert broken.code == 1002


def test_a_stream_means_the_same_however_it_is_cut() -> None:
    messages = [b"+ /foo 1", b"> /foo 1\n\nx", b"", b"- /foo", b'> /b\n{"a":1}\n\n' + b"y" * 300]
    data = b"".join(map(frame, messages)) + frame(b"+ /a", 0x01) + frame(b"/b", 0x80)
    whole = [shown(each) for each in protocol().receive(data)]
    assert len(whole) == 6
    for step in (1, 2, 7, 40):
        peer = protocol()
        found: list[object] = []
        for start in range(0, len(data), step):
            found += map(shown, peer.receive(data[start : start + step]))
        assert found == whole


def shown(command: Command) -> object:
    if isinstance(command, Publish):
        return command.batch.runs, command.batch.envelope, command.ref
    if isinstance(command, Invalid):
        return str(command.error), command.ref
    return command


# answers


def test_a_publish_is_answered_with_the_id_that_it_was_stored_under() -> None:
    peer = protocol()
    store, nameless = peer.receive(frame(b"> /foo 42\n\nx") + frame(b"> /foo\n\nx"))
    assert peer.reply(store, Stored(7)) == text_frame(
        b'#send 42\n{"sequenceId":7,"path":"/foo","publisherMessageId":"42",%b}' % TIME
    )
    assert peer.reply(nameless, Stored(8)) == text_frame(
        b'#send\n{"sequenceId":8,"path":"/foo","publisherMessageId":"",%b}' % TIME
    )


def test_a_publish_without_a_history_is_answered_by_the_fence_behind_it() -> None:
    peer = protocol(stores=False)
    publish, fence = peer.receive(frame(b"> /foo 42\n\nx"))
    assert type(publish) is Publish
    assert isinstance(fence, Ping)
    assert peer.reply(fence, Done()) == text_frame(
        b'#send 42\n{"sequenceId":0,"path":"/foo","publisherMessageId":"42",%b}' % TIME
    )


@pytest.mark.parametrize("stores", [True, False])
def test_a_refused_publish_is_told_once(stores: bool) -> None:
    peer = protocol(stores=stores)
    publish, *fence = peer.receive(frame(b"> /foo 42\n\nx"))
    assert peer.reply(publish, Failed(NotGranted())) == text_frame(
        b"!error-send 42 not granted by the token\n"
        b'{"sequenceId":0,"path":"/foo","publisherMessageId":"42",%b}' % TIME
    )
    assert peer.reply(publish, Failed(NotGranted())) == b""
    assert [peer.reply(each, Done()) for each in fence] == [b""] * (not stores)


def test_what_the_history_says_of_itself_is_not_for_clients() -> None:
    peer = protocol()
    [store, resume] = peer.receive(frame(b"> /foo 42\n\nx") + frame(b"+ /foo 0"))
    error = HistoryUnavailable("disk is full at /srv")
    assert peer.reply(store, Failed(error)).startswith(b"\x81")
    assert b"!error-send 42 History is unavailable\n" in peer.reply(
        protocol_store(peer), Failed(error)
    )
    assert peer.reply(resume, Failed(error)) == text_frame(
        b"!error-server-internal History is unavailable"
    )


def protocol_store(peer: TopicProtocol) -> Command:
    [store] = peer.receive(frame(b"> /foo 42\n\nx"))
    return store


def test_subscribing_and_canceling_are_said() -> None:
    peer = protocol()
    subscribe, cancel = peer.receive(frame(b"+ /foo") + frame(b"- /foo"))
    assert peer.reply(subscribe, Done()) == text_frame(b"#subscribed-to /foo")
    assert peer.reply(cancel, Done()) == text_frame(b"#canceled /foo")


@pytest.mark.parametrize("error", [NotGranted(), TooManySubscriptions(), HistoryOff()])
def test_what_cannot_be_subscribed_to_is_said(error: NotGranted) -> None:
    peer = protocol()
    for command in read(b"+ /foo", b"+ /foo 0", b"+ /foo 0 5"):
        assert peer.reply(command, Failed(error)) == text_frame(
            b"!error-subscribed-to /foo %b" % str(error).encode()
        )


def test_a_subscription_with_a_start_says_what_comes_and_that_it_is_live() -> None:
    peer = protocol()
    [resume] = peer.receive(frame(b"+ /foo 0"))
    assert peer.reply(resume, Resumed("e", 9, True, 1, 2)) == text_frame(b"#fetch-start /foo 2")
    assert peer.notice(CaughtUp()) == text_frame(b"#fetch-done /foo")
    counts = [(frozenset({"/bar"}), 3), (FOO, 1)]
    assert peer.notice(Behind(counts)) == text_frame(b"#fetch-start /bar 3") + text_frame(
        b"#fetch-start /foo 1"
    )
    assert peer.notice(CaughtUp()) == text_frame(b"#fetch-done /bar") + text_frame(
        b"#fetch-done /foo"
    )
    assert peer.reply(resume, CaughtUp()) == text_frame(b"#subscribed-to /foo")
    assert peer.notice(CaughtUp()) == b""


def test_a_fetch_says_what_comes_and_where_it_ends() -> None:
    peer = protocol()
    [fetch] = peer.receive(frame(b"+ /foo 0 5"))
    assert peer.reply(fetch, Fetched("e", True, 1, 2)) == text_frame(b"#fetch-start /foo 2")
    assert peer.reply(fetch, CaughtUp()) == text_frame(b"#fetch-done /foo")


def test_what_a_token_loses_is_said_and_not_subscribed_to() -> None:
    peer = protocol()
    [resume] = peer.receive(frame(b"+ /foo 0"))
    lost = text_frame(b"!error-subscribed-to /foo not granted by the token")
    peer.reply(resume, Resumed("e", 9, True, 1, 2))
    assert peer.notice(Revoked(FOO)) == lost
    assert peer.reply(resume, CaughtUp()) == text_frame(b"#fetch-done /foo")
    peer.reply(resume, Resumed("e", 9, True, 1, 2))
    assert peer.notice(CaughtUp()) == text_frame(b"#fetch-done /foo")
    assert peer.notice(Revoked(FOO)) == lost
    assert peer.reply(resume, CaughtUp()) == b""
    peer.reply(resume, Resumed("e", 9, True, 1, 2))
    peer.notice(Revoked(frozenset({"/bar"})))
    assert peer.reply(resume, CaughtUp()) == text_frame(b"#fetch-done /foo") + text_frame(
        b"#subscribed-to /foo"
    )
    assert peer.notice(Resumed("e", 9, False, 5)) == b""


# anything


words = st.lists(
    st.sampled_from([b">", b"+", b"-", b" ", b"/", b"/foo", b",", b"\n", b"{}", b"-1", b"\xff"])
)


@given(st.one_of(st.binary(max_size=300), words.map(b"".join)), st.booleans())
def test_any_message_is_a_command_or_is_refused(message: bytes, stores: bool) -> None:
    peer = protocol(stores=stores)
    commands = list(peer.receive(frame(message, 0x82)))
    assert commands
    for command in commands:
        assert isinstance(command, Invalid | Resume | Fetch | Unsubscribe | Publish | Ping)
        answer = peer.reply(command, Failed(NotGranted()))
        assert not answer or answer[0] == 0x81
        size = {126: 4, 127: 10}.get(answer[1], 2) if answer else 0
        first, *rest = answer[size:].decode().split("\n")
        assert first == "" or first[0] == "!"
        assert len(rest) <= 1
        if isinstance(command, Publish):
            assert command.batch.runs[0][0].startswith(b"/")


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_read_without_an_error(data: bytes, step: int) -> None:
    peer = protocol()
    for start in range(0, len(data), step):
        for command in peer.receive(data[start : start + step]):
            if isinstance(command, Hangup | Bye):
                return


def test_a_message_is_looked_at_alike_without_a_frame() -> None:
    found = parse_message(b"> /foo 42\n\nx", Limits())
    assert found == Sending("/foo", "42", b"", b"x")
