"""The JSON dialect, to the byte: what is sent, what it means, what is answered."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.commands import (
    AddTags,
    Auth,
    Command,
    Hangup,
    Invalid,
    ListSubscriptions,
    ListTags,
    Pause,
    Ping,
    Publish,
    Register,
    RemoveTags,
    ShowTags,
    Subscribe,
    Unregister,
    Unsubscribe,
    Who,
)
from mist.errors import (
    HistoryUnavailable,
    InvalidTag,
    MistError,
    NotGranted,
    TokenExists,
    TokenNotFound,
    TooManySubscriptions,
    Unauthorized,
)
from mist.message import Limits
from mist.protocols.json import JsonProtocol, commands, objects
from mist.protocols.json.forms import JSON_OBJECTS
from mist.protocols.json.frames import JsonFrameProtocol
from mist.replies import (
    Connections,
    Done,
    Failed,
    Reply,
    Resumed,
    Revoked,
    SortedTags,
    Subscriptions,
    Tags,
)
from mist.wire import Batch
from tests.protocols.test_client_frames import client_frame

LIMITS = Limits(data=100, line=300)
CLOSED = ['{"error":"Invalid json"}', "hangup"]


def show(protocol: JsonProtocol, command: Command) -> list[str]:
    """A command as readable lines: publishes as those that stand for them, errors as answered."""
    match command:
        case Publish(batch=batch):
            lines = [line for _, wire, _ in batch.runs for line in split(wire, batch)]
            assert len(lines) == sum(count for _, _, count in batch.runs)
            return lines
        case Invalid(error=error):
            return [protocol.reply(command, Failed(error)).decode().removesuffix("\n")]
        case Hangup():
            return ["hangup"]
        case _:
            fields = [
                ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
                for name in ("tags", "token", "credential")
                if (value := getattr(command, name, None)) is not None
            ]
            return [" ".join([type(command).__name__, *fields])]


def split(wire: bytes, batch: Batch) -> list[str]:
    text = wire.decode()
    return text.splitlines(keepends=True) if batch.framable else [text]


def read(pieces: list[bytes], limits: Limits = LIMITS) -> list[str]:
    """What a stream means, up to where the session ends."""
    protocol = JsonProtocol(limits)
    assert protocol.reply(Auth("s"), Done()) == b""
    found: list[str] = []
    for piece in pieces:
        for command in protocol.receive(piece):
            found += show(protocol, command)
            if isinstance(command, Hangup):
                return found
    return found


def seen(pieces: list[bytes], limits: Limits = LIMITS) -> tuple[list[str], int]:
    """What a stream means, and how often others had their turns meanwhile."""
    protocol = JsonProtocol(limits)
    protocol.authenticated()
    found: list[str] = []
    pauses = 0
    for piece in pieces:
        for command in protocol.receive(piece):
            if isinstance(command, Pause):
                pauses += 1
            else:
                found += show(protocol, command)
    return found, pauses


@pytest.mark.parametrize(
    "sent",
    [
        b'{"command":"ping","x":[' + b"1," * 30_000 + b"1]}",
        b'{"command":"ping","x":[' + b'"a",' * 30_000 + b'"a"]}',
        b'{"command":"ping","x":' + b'{"a":' * 50 + b"1" + b"}" * 51 + b" " * 10,
        (b'{"command":"nosuch","x":' + b'{"a":' * 50 + b"1" + b"}" * 51) * 100,
    ],
    ids=["numbers", "texts", "nested", "many"],
)
def test_reading_goes_on_after_a_pause_where_it_was(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(line=1 << 20)
    halves = [sent[: len(sent) // 2], sent[len(sent) // 2 :]]
    monkeypatch.setattr(objects, "_STEP", 1 << 40)
    whole, none = seen(halves, limits)
    assert none == 0
    assert whole
    for step in (1, 7, 4_096):
        monkeypatch.setattr(objects, "_STEP", step)
        found, pauses = seen(halves, limits)
        assert found == whole
        assert pauses >= min(len(sent) // 2 // step // 8, 1)
        with_frames = JsonFrameProtocol(Limits(frame=1 << 20))
        message = [each for each in with_frames._read_message(sent) if not isinstance(each, Pause)]
        assert len(message) == len(whole)


def test_others_have_their_turns_in_a_chunk_without_an_end() -> None:
    sent = b'{"x":[' + b'"a",' * 16_000
    assert seen([sent], Limits())[1] == 2 * 16_000 // objects._STEP


def test_others_have_their_turns_while_publishes_are_gathered_which_stay_one_batch() -> None:
    sent = [
        b'{"command":"publish","tags":[%b],"data":"%d"}'
        % (b",".join(b'"%d:%d"' % (number, tag) for tag in range(64)), number)
        for number in range(100)
    ]
    protocol = JsonFrameProtocol(Limits())
    *pauses, last = protocol.receive(b"".join(client_frame(1, each) for each in sent))
    assert isinstance(last, Publish)
    assert last.batch.count == 100
    assert len(pauses) == 25
    assert {type(each) for each in pauses} == {Pause}


def test_far_too_many_tags_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = b'{"command":"subscribe","tags":[' + b'"a",' * 150_000 + b'"a"],"x":{}}'
    monkeypatch.setattr(commands, "_decode_texts", None)
    found, _ = seen([sent], Limits())
    assert found == ['{"command":"subscribe","error":"Too many tags"}']


# What is sent, and what it means.
TABLE: list[tuple[bytes, list[str]]] = [
    (b'{"command":"ping"}', ["Ping"]),
    (b'{"command":"ping"}{"command":"who"}\n\t{"command":"ping"}', ["Ping", "Who", "Ping"]),
    (b'{"command":"list"} {"command":"listall"}', ["ListSubscriptions", "ListTags"]),
    (b'{"command":"subscribe","tags":["b","a","b"]}', ["Subscribe a,b"]),
    (b'{"tags":["a"],"command":"unsubscribe","data":"?"}', ["Unsubscribe a"]),
    (b'{"command":"publish","tags":["b","a"],"data":"x y"}', ["publish b,a x y\n"]),
    (b'{"command":"publish","tags":["a"]}', ["publish a \n"]),
    (b'{"command":"publish","tags":["a"],"data":""}', ["publish a \n"]),
    (b'{"command":"publish","tags":["a"],"data":null}', ["publish a \n"]),
    (b'{"command":"publish","tags":["a"],"data":"1\\n2"}', ["publish a 1\n2\n"]),
    (b'{"command":"publish","tags":["\\u00e4"],"data":"\\ud83d\\ude00"}', ["publish ä 😀\n"]),
    ('{"command":"publish","tags":["ä"],"data":"😀\x7f"}'.encode(), ["publish ä 😀\x7f\n"]),
    (b'{"command":"auth","data":"s"}', ["Auth s"]),
    (b'{"command":"auth"}', ["Auth "]),
    (b'{"command":"register","tags":["a","r*"],"data":"t"}', ["Register a,r* t"]),
    (b'{"command":"unregister","data":"t"}', ["Unregister t"]),
    (b'{"command":"set","tags":["a"],"data":"t"}', ["AddTags a t"]),
    (b'{"command":"unset","tags":["a"],"data":"t"}', ["RemoveTags a t"]),
    (b'{"command":"tags","data":"t"}', ["ShowTags t"]),
    # what else is in an object, what comes twice, what is null
    (b'{"command":"ping","x":{"y":[1,2,{"z":null}]}}', ["Ping"]),
    (b'{"command":"ping","x":1e999,"y":123456789012345678901234567890}', ["Ping"]),
    (b'{"command":"ping","tags":null,"data":null,"error":"x"}', ["Ping"]),
    (b'{"command":"who","command":"ping"}', ["Ping"]),
    (b'{"command":"subscribe","tags":["a"],"tags":["b"]}', ["Subscribe b"]),
    (b'{"Command":"ping"}', ['{"error":"Unknown Command"}']),
    # what isn't there
    (b"{}", ['{"error":"Unknown Command"}']),
    (b'{"command":null}', ['{"error":"Unknown Command"}']),
    (b'{"command":""}', ['{"error":"Unknown Command"}']),
    (
        b'{"data":"<x>&","tags":["b","a"],"command":"Ping"}',
        ['{"command":"Ping","tags":["b","a"],"data":"<x>&","error":"Unknown Command"}'],
    ),
    (
        b'{"command":"store","tags":[],"data":""}',
        ['{"command":"store","error":"Unknown Command"}'],
    ),
    *[
        (
            b'{"command":"%b"%b}' % (name.encode(), tags),
            [f'{{"command":"{name}","error":"Failed to {name}. Missing tags"}}'],
        )
        for name in ("publish", "subscribe", "unsubscribe", "register", "set", "unset")
        for tags in (b"", b',"tags":[]', b',"tags":null')
    ],
    # fields that are wrong
    (b'{"command":"subscribe","tags":[""]}', ['{"command":"subscribe","error":"Empty tag"}']),
    (b'{"command":"subscribe","tags":["a,b"]}', ['{"command":"subscribe","error":"Invalid tag"}']),
    (b'{"command":"publish","tags":["a,b"]}', ['{"command":"publish","error":"Invalid tag"}']),
    (b'{"command":"publish","tags":["a\\nb"]}', ['{"command":"publish","error":"Invalid tag"}']),
    (b'{"command":"publish","tags":["","a,b"]}', ['{"command":"publish","error":"Empty tag"}']),
    (b'{"command":"register","tags":["a"]}', ['{"command":"register","error":"Invalid token"}']),
    (b'{"command":"tags","data":"a b"}', ['{"command":"tags","error":"Invalid token"}']),
    (b'{"command":"unregister"}', ['{"command":"unregister","error":"Invalid token"}']),
    (b'{"command":5}', ['{"error":"command must be a string"}']),
    (b'{"command":["ping"]}', ['{"error":"command must be a string"}']),
    *[
        (
            b'{"command":"publish","tags":%b}' % tags,
            ['{"command":"publish","error":"tags must be a list of strings"}'],
        )
        for tags in (b'"a"', b"5", b"{}", b"[5]", b"[null]", b'[["a"]]', b"true", b"1e999")
    ],
    *[
        (
            b'{"command":"publish","tags":["a"],"data":%b}' % data,
            ['{"command":"publish","error":"data must be a string"}'],
        )
        for data in (b"5", b"{}", b'["x"]', b"false", b"1e999")
    ],
    # for some only, as elsewhere: it would reach everyone
    *[
        (
            b'{"command":"publish","tags":["a"],"data":"x","to":%b}' % to,
            ['{"command":"publish","error":"to is not understood here"}'],
        )
        for to in (b'{"users":["7"]}', b"{}", b"null")
    ],
    (b'{"command":"ping","to":{}}', ["Ping"]),
    (
        b'{"command":"publish","tags":["a"],"data":"%b"}' % (b"x" * 100),
        ["publish a " + "x" * 100 + "\n"],
    ),
    (
        b'{"command":"publish","tags":["a"],"data":"%b"}' % (b"x" * 101),
        ['{"command":"publish","error":"Data too long"}'],
    ),
    (
        b'{"command":"publish","tags":["a"],"data":"%s"}' % ("ä".encode() * 51),
        ['{"command":"publish","error":"Data too long"}'],
    ),
    (b'{"command":"ping","data":"%b"}' % (b"x" * 270), ["Ping"]),
    (
        b'{"command":"ping","data":"%b"}{"command":"ping"}' % (b"x" * 273),
        ['{"error":"Line too long"}', "Ping"],
    ),
    # what isn't JSON ends the session
    (b'{"command":"ping"}x{"command":"ping"}', ["Ping", *CLOSED]),
    (b'{"command":"ping"},{"command":"ping"}', ["Ping", *CLOSED]),
    (b'[{"command":"ping"}]', CLOSED),
    (b"{bogus", CLOSED),
    (b'{"command":"ping","x":"\xff"}', CLOSED),
    (b'{"command":"publish","tags":["a"],"data":"\xff"}', CLOSED),
    (b'{"command":"publish","tags":["a"],"data":"\\ud800"}', CLOSED),
    (b'{"command":"publish","tags":["a"],"data":"\t"}', CLOSED),
    (b'{"command":"ping","x":' + b"[" * 70, CLOSED),
    # what hasn't ended says nothing yet
    (b'{"command":"ping"', []),
    (b"\r\n \t", []),
]
IDS = [repr(row[0][:40]) for row in TABLE]


@pytest.mark.parametrize(("sent", "meant"), TABLE, ids=IDS)
def test_objects_mean_what_the_table_says_however_they_come(sent: bytes, meant: list[str]) -> None:
    assert read([sent]) == meant
    assert read([b"\n" + sent + b"\n"]) == meant
    assert read([sent[n : n + 1] for n in range(len(sent))]) == meant
    if "hangup" not in meant and not sent.endswith(b'"ping"'):
        ping = b'{"command":"ping"}'
        publish = b'{"command":"publish","tags":["a"],"data":"1"}'
        behind = [*meant, "publish a 1\n", "Ping"]
        assert read([sent + publish + ping]) == behind
        assert read([publish + sent + ping]) == ["publish a 1\n", *meant, "Ping"]
        assert read([sent[:9], sent[9:] + publish + ping]) == behind


WHOLE = [sent for sent, meant in TABLE if "hangup" not in meant and sent.endswith(b"}")]


@given(
    st.lists(st.sampled_from([row[0] for row in TABLE] + WHOLE * 3), max_size=12).map(b"".join),
    st.sets(st.integers(0, 1_000)),
)
def test_a_stream_means_the_same_cut_anywhere(sent: bytes, cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    whole = read([sent])
    assert read([sent[a:b] for a, b in itertools.pairwise(edges)]) == whole
    assert read([sent[n : n + 1] for n in range(len(sent))]) == whole


@pytest.mark.parametrize("blank", [b"", b"\n"])
@pytest.mark.parametrize("data", [b"}", b"} ", b"}{", b"{}", b"x}"])
def test_braces_in_data_are_data_wherever_a_read_ends(data: bytes, blank: bytes) -> None:
    sent = b'{"command":"publish","tags":["a"],"data":"%b"}%b' % (data, blank) * 3
    for cut in range(len(sent)):
        assert "".join(read([sent[:cut], sent[cut:]])) == f"publish a {data.decode()}\n" * 3


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    found = read([b"{", *pieces])
    if "hangup" in found:
        assert found[-2:] == CLOSED


PUBLISHES = st.lists(
    st.tuples(
        st.sampled_from([["a"], ["ab"], ["a", "b"], ["b", "a"], ["a*"], ["ä", ".x"]]),
        st.sampled_from(["", " ", "publish a x", "\r", "\\n", "1\n2", "\n", "😀", '"', "\x00"])
        | st.text(max_size=20),
    ),
    min_size=1,
    max_size=12,
)


@given(PUBLISHES, st.sampled_from(["", " ", "\n", "\r\n"]), st.booleans(), st.booleans())
def test_publishes_in_one_read_are_one_batch(
    messages: list[tuple[list[str], str]], blank: str, is_ascii: bool, odd: bool
) -> None:
    objects = [{"command": "publish", "tags": tags, "data": data} for tags, data in messages]
    if odd:  # a field that keeps it from being read in bulk
        objects[-1]["more"] = [{}]
    sent = "".join(json.dumps(each, ensure_ascii=is_ascii) + blank for each in objects).encode()
    meant = [
        (",".join(tags).encode(), f"publish {','.join(tags)} {data}\n".encode())
        for tags, data in messages
    ]
    for begun in (b"", b'{"command":"publish","tags":["a"]'):
        protocol = JsonProtocol(Limits())
        assert list(protocol.receive(begun)) == []
        if begun:
            sent = b"}" + sent
            meant.insert(0, (b"a", b"publish a \n"))
        [command] = protocol.receive(sent)
        assert isinstance(command, Publish)
        batch = command.batch
        assert batch.framable == all(line.count(b"\n") == 1 for _, line in meant)
        if batch.framable:
            assert batch.whole == (b"".join(line for _, line in meant), len(meant))
            found = [tags for tags, _, count in batch.runs for _ in range(count)]
            assert found == [tags for tags, _ in meant]
        else:
            assert batch.whole is None
            assert batch.runs == [(tags, line, 1) for tags, line in meant]


def test_messages_of_the_same_tags_are_one_run() -> None:
    sent = b'{"command":"publish","tags":["a","b"],"data":"1"}' * 3
    [command] = JsonProtocol(Limits()).receive(sent)
    assert isinstance(command, Publish)
    assert command.batch.runs == [(b"a,b", b"publish a,b 1\n" * 3, 3)]


# secrets


def test_the_first_object_of_an_unauthenticated_peer_brings_the_secret_whatever_it_asks_for() -> (
    None
):
    protocol = JsonProtocol(Limits(), unauthenticated=True)
    commands = protocol.receive(b'{"command":"publish","tags":["a"],"data":"s"}' * 2)
    assert next(commands) == Auth("s")
    protocol.authenticated()
    [publish] = commands
    assert show(protocol, publish) == ["publish a s\n"] * 2


def test_auth_of_an_unauthenticated_peer_is_no_command_besides() -> None:
    protocol = JsonProtocol(Limits(), unauthenticated=True)
    commands = protocol.receive(b'{"command":"auth","data":"s"}{"command":"ping"}')
    assert next(commands) == Auth("s")
    protocol.authenticated()
    assert [type(each) for each in commands] == [Ping]


def test_an_unauthenticated_peer_without_a_secret_presents_none() -> None:
    for sent in (b'{"command":"ping"}', b"{}", b'{"command":"ping","data":null}'):
        assert next(JsonProtocol(Limits(), unauthenticated=True).receive(sent)) == Auth("")


def test_an_object_of_an_unauthenticated_peer_may_be_as_long_as_a_jwt() -> None:
    for size, meant in ((8_448, Auth), (8_449, Invalid)):
        sent = b'{"command":"auth","data":"%b"}' % (b"x" * (size - 28))
        assert len(sent) == size
        for step in (1, 1_000, size):
            protocol = JsonProtocol(Limits(), unauthenticated=True)
            pieces = [sent[n : n + step] for n in range(0, size, step)]
            [command] = (c for piece in pieces for c in protocol.receive(piece))
            assert isinstance(command, meant)


def test_what_stands_behind_the_secret_is_read_under_the_new_limit() -> None:
    protocol = JsonProtocol(Limits(), unauthenticated=True)
    data = b"x" * 10_000
    sent = b'{"command":"auth","data":"s"}{"command":"publish","tags":["a"],"data":"%b"}' % data
    commands = protocol.receive(sent[:5_000])
    assert next(commands) == Auth("s")
    protocol.authenticated()
    assert list(commands) == []
    assert protocol.held == 5_000 - 29
    [publish] = protocol.receive(sent[5_000:])
    assert show(protocol, publish) == [f"publish a {data.decode()}\n"]


@pytest.mark.parametrize("name", ["register", "unregister", "set", "unset", "tags"])
def test_commands_on_tokens_are_unknown_before_auth(name: str) -> None:
    protocol = JsonProtocol(Limits())
    sent = b'{"command":"%b","tags":["b","a"],"data":"t"}' % name.encode()
    [unknown] = protocol.receive(sent)
    assert show(protocol, unknown) == [
        f'{{"command":"{name}","tags":["b","a"],"data":"t","error":"Unknown Command"}}'
    ]
    protocol.reply(Auth("s"), Failed(Unauthorized()))
    [unknown] = protocol.receive(sent)
    assert isinstance(unknown, Invalid)
    # In one read, too: what `auth` changes holds for the next object.
    commands = protocol.receive(b'{"command":"auth","data":"s"}' + sent)
    assert protocol.reply(next(commands), Done()) == b""
    [known] = commands
    assert not isinstance(known, Invalid)


def test_a_credential_and_a_token_are_in_no_repr() -> None:
    protocol = JsonProtocol(Limits())
    commands = protocol.receive(b'{"command":"auth","data":"sesame"}')
    protocol.reply(Auth("sesame"), Done())
    known = protocol.receive(b'{"command":"register","tags":["a"],"data":"sesame"}')
    assert "sesame" not in repr([*commands, *known])
    unknown = JsonProtocol(Limits()).receive(b'{"command":"tags","data":"sesame"}')
    assert "sesame" not in repr(list(unknown))


# answers

AB = frozenset("ba")
ANSWERS: list[tuple[Command, Reply, bytes]] = [
    (Ping(), Done(), b'{"command":"ping","data":"pong"}\n'),
    (Publish(Batch.of(AB, b"x")), Done(), b""),
    (Subscribe(AB), Done(), b""),
    (Unsubscribe(AB), Done(), b""),
    (Register("t", AB), Done(), b""),
    (Unregister("t"), Done(), b""),
    (AddTags("t", AB), Done(), b""),
    (RemoveTags("t", AB), Done(), b""),
    (Auth("s"), Done(), b""),
    (Auth("s"), Failed(Unauthorized()), b""),
    (ListSubscriptions(), Subscriptions(()), b'{"command":"list"}\n'),
    (
        ListSubscriptions(),
        Subscriptions((b"c", b"a,b")),
        b'{"command":"list","data":"c a,b","subscriptions":[["c"],["a","b"]]}\n',
    ),
    (ListTags(), SortedTags([]), b'{"command":"listall"}\n'),
    (
        ListTags(),
        SortedTags(["a", "b", "ä"]),
        '{"command":"listall","data":"a b ä"}\n'.encode(),
    ),
    (
        ShowTags("t<ü>"),
        Tags(frozenset({"b", "a*", ">c"})),
        b'{"command":"tags","tags":[">c","a*","b"]}\n',
    ),
    (ShowTags("t"), Tags(frozenset()), b'{"command":"tags"}\n'),
    (
        Who(),
        Connections(1, 2),
        b'{"command":"who","data":"Lifetime  connections: 2\\nSubscribers connected: 1"}\n',
    ),
]
ERRORS: list[tuple[Command, MistError, bytes]] = [
    (
        Register("t", AB),
        TokenExists(),
        b'{"command":"register","error":"Token already exists\\n"}\n',
    ),
    (AddTags("t", AB), TokenNotFound(), b'{"command":"set","error":"Token not found\\n"}\n'),
    (RemoveTags("t", AB), TokenNotFound(), b'{"command":"unset","error":"Token not found\\n"}\n'),
    (ShowTags("t"), TokenNotFound(), b'{"command":"tags","error":"Token not found\\n"}\n'),
    (Publish(Batch.of(AB, b"")), InvalidTag(), b'{"command":"publish","error":"Invalid tag"}\n'),
    (
        Publish(Batch.of(AB, b"")),
        HistoryUnavailable("no space left in /data"),
        b'{"command":"publish","error":"History is unavailable"}\n',
    ),
    (
        Subscribe(AB),
        NotGranted(),
        b'{"command":"subscribe","error":"not granted by the token"}\n',
    ),
    (
        Subscribe(AB),
        TooManySubscriptions(),
        b'{"command":"subscribe","error":"Too many subscriptions"}\n',
    ),
]


def test_every_answer_is_one_object_to_the_byte_or_none() -> None:
    protocol = JsonProtocol(Limits())
    for command, reply, written in ANSWERS:
        assert protocol.reply(command, reply) == written
    for command, error, written in ERRORS:
        assert protocol.reply(command, Failed(error)) == written


def test_a_revoked_subscription_is_told_of_and_a_gap_is_not() -> None:
    protocol = JsonProtocol(Limits())
    told = b'{"command":"revoked","tags":["a","b"],"error":"not granted by the token"}\n'
    assert protocol.notice(Revoked(AB)) == told
    assert protocol.notice(Resumed("e", 1, False, 1)) == b""


def test_subscriptions_are_sets_and_the_sender_gets_nothing_of_its_own() -> None:
    protocol = JsonProtocol(Limits())
    assert not protocol.counts_subscriptions
    assert not protocol.echoes
    assert protocol.form is JSON_OBJECTS
