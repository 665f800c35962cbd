"""The protocol of subjects, byte by byte: one table of what is sent and what it means."""

import itertools
import re
from collections.abc import Generator, Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mist.commands import (
    Auth,
    Command,
    Echo,
    Hangup,
    Invalid,
    Pause,
    Ping,
    Publish,
    SubscribeNamed,
    UnsubscribeNamed,
)
from mist.errors import (
    HistoryUnavailable,
    MistError,
    NotGranted,
    NotSubscribed,
    TooManySubscriptions,
)
from mist.message import Limits
from mist.protocols.subjects import PULSE, SubjectProtocol
from mist.protocols.subjects.forms import HEADERS, REPLY, subject_form
from mist.protocols.subjects.framing import MAX_CONTROL_LINE
from mist.protocols.subjects.info import ServerInfo
from mist.replies import Done, Failed, Reply, Revoked
from mist.wire import Batch

LIMITS = Limits(data=1000)
QUIET = b'CONNECT {"verbose":false,"headers":true}\r\n'


def open_protocol(connect: bytes = QUIET) -> SubjectProtocol:
    """One whose peer has connected."""
    protocol = SubjectProtocol(LIMITS)
    for command in protocol.receive(connect):
        if isinstance(command, Auth):
            protocol.authenticated()
    return protocol


def messages(batch: Batch) -> list[str]:
    """`subject [reply] [{headers}] data` of each message in a batch."""
    found = []
    for tag_list, wire, count in batch.runs:
        head = b"publish %b " % tag_list
        assert wire.startswith(head)
        assert wire.endswith(b"\n")
        body = wire[len(head) : -1]
        datas = body.split(b"\n" + head) if count > 1 else [body]
        assert len(datas) == count
        meta = batch.envelope.meta or {} if batch.envelope else {}
        words = [tag_list.decode()]
        words += [meta[REPLY].decode()] if REPLY in meta else []
        words += ["{" + meta[HEADERS].decode() + "}"] if HEADERS in meta else []
        found += [" ".join([*words, data.decode("latin-1")]) for data in datas]
        assert batch.framable <= all(b"\n" not in data for data in datas)
    return found


def show(protocol: SubjectProtocol, command: Command) -> list[str]:
    """A command as readable lines."""
    match command:
        case Publish(batch=batch):
            return messages(batch)
        case Invalid():
            return [protocol.reply(command, Failed(command.error)).decode()]
        case Hangup():
            return ["hangup"]
        case Auth(credential=credential):
            return [f"Auth {credential}"]
        case Echo(on=on):
            return [f"Echo {on}"]
        case SubscribeNamed(tags=tags, name=name, form=form, queue=queue):
            assert form in (subject_form(name, headers=True), subject_form(name))
            return [f"Sub {','.join(tags)} {name.decode()} {queue}".rstrip()]
        case UnsubscribeNamed(name=name, most=most):
            return [f"Unsub {name.decode()} {most}"]
        case Ping(ref=None):
            return ["Ping"]
        case Ping():
            return [protocol.reply(command, Done()).decode()]
        case _:
            raise AssertionError(command)


def read(protocol: SubjectProtocol, chunks: Sequence[bytes]) -> list[str]:
    """What chunks mean, up to where the session ends."""
    found = []
    for chunk in chunks:
        for command in protocol.receive(chunk):
            if isinstance(command, Auth):
                protocol.authenticated()
            found += show(protocol, command)
            if isinstance(command, Hangup):
                return found
    return found


def err(text: str) -> str:
    return f"-ERR '{text}'\r\n"


EMPTY = "failed to add subscriber: invalid subject: empty token in subject at position"
FULL = "failed to add subscriber: invalid subject:"
WILD = "PUB command: invalid subject: wildcards are not allowed"
TABLE: list[tuple[bytes, list[str]]] = [
    # framing
    (b"PING\r\n", ["Ping"]),
    (b"ping\n", ["Ping"]),
    (b"PiNg \t\r\n", ["Ping"]),
    (b"PING", []),
    (b"\r\n\nPING\r\n", ["Ping"]),
    (b"PONG\r\n+OK\r\n", []),
    (b"FOO\r\n", [err("unknown command: FOO")]),
    (b"foo bar\nPING\n", [err("unknown command: foo"), "Ping"]),
    (b"f\xff\x07o\r\n", [err("unknown command: f\N{REPLACEMENT CHARACTER}?o")]),
    (b"INFO {}\r\n", [err("unknown command: INFO")]),
    (b"x" * 100 + b"\r\n", [err("unknown command: " + "x" * 64)]),
    (b"x" * 4096 + b"\r\nPING\n", [err("unknown command: " + "x" * 64), "Ping"]),
    (b"PING " + b"x" * 4096, [err("maximum control line exceeded"), "hangup"]),
    (b"SUB " + b"x" * 4096 + b" 1\n", [err("maximum control line exceeded"), "hangup"]),
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ["hangup"]),
    (b"PING\r\nHost: x\r\n", ["Ping", "hangup"]),
    (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n", [err("maximum control line exceeded"), "hangup"]),
    (b"GET / HTTP/1.1 " + b"x" * 5000, ["hangup"]),
    # subscriptions
    (b"SUB foo 1\r\n", ["Sub .foo 1"]),
    (b"sub foo.* q 1\n", ["Sub .foo.* 1 q"]),
    (b"SUB\t foo.>   q\t1 \r\n", ["Sub .foo.> 1 q"]),
    (b"SUB > 1\r\n", ["Sub .> 1"]),
    (b"SUB * abc-1\r\n", ["Sub .* abc-1"]),
    (b"SUB *.a.* 1\r\n", ["Sub .*.a.* 1"]),
    (b"SUB \xc3\xa4.b 1\r\n", ["Sub .ä.b 1"]),
    (b"SUB\r\n", [err("SUB command: insufficient arguments")]),
    (b"SUB foo\r\n", [err("SUB command: insufficient arguments")]),
    (b"SUB a b c d\r\n", [err("SUB command: too many arguments")]),
    (b"SUB foo..bar 1\r\n", [err(f"{EMPTY} 1")]),
    (b"SUB .foo 1\r\n", [err(f"{EMPTY} 0")]),
    (b"SUB foo.bar. 1\r\n", [err(f"{EMPTY} 2")]),
    (b"SUB . 1\r\n", [err(f"{EMPTY} 0")]),
    (
        b"SUB foo.>.bar 1\r\n",
        [err("failed to add subscriber: invalid subject: '>' wildcard must be last token")],
    ),
    (b"SUB fo* 1\r\n", ["Sub .fo* 1"]),  # wildcards are whole tokens
    (b"SUB a*b.>c 1\r\n", ["Sub .a*b.>c 1"]),
    (b"SUB foo,bar 1\r\n", [err(f"{FULL} commas are not allowed")]),
    (b"SUB fo\x01 1\r\n", [err(f"{FULL} control characters are not allowed")]),
    (b"SUB fo\xc2\x85 1\r\n", [err(f"{FULL} control characters are not allowed")]),
    (b"SUB " + b".".join([b"a"] * 20) + b" 1\r\n", ["Sub " + ".a" * 20 + " 1"]),
    (b"SUB " + b".".join([b"a"] * 21) + b" 1\r\n", [err(f"{FULL} more than 20 tokens")]),
    (b"SUB " + b"a" * 254 + b" 1\r\n", ["Sub ." + "a" * 254 + " 1"]),
    (b"SUB " + b"a" * 255 + b" 1\r\n", [err(f"{FULL} longer than 254 bytes")]),
    (b"SUB \xff 1\r\n", [err("failed to add subscriber: invalid subject: not UTF-8")]),
    (b"SUB foo " + b"1" * 255 + b"\r\n", ["Sub .foo " + "1" * 255]),
    (
        b"SUB foo " + b"1" * 256 + b"\r\n",
        [err("SUB command: sid is too long or not printable")],
    ),
    (b"SUB foo q\xff 1\r\n", [err("SUB command: queue is not UTF-8")]),
    (b"SUB foo q\x07 1\r\n", [err("SUB command: queue is too long or not printable")]),
    (b"UNSUB 1\r\n", ["Unsub 1 None"]),
    (b"unsub 1 5\n", ["Unsub 1 5"]),
    (b"UNSUB 1 0\r\n", ["Unsub 1 None"]),
    (b"UNSUB 1 -1\r\n", [err("UNSUB command: max is not a number")]),
    (b"UNSUB 1 x\r\n", [err("UNSUB command: max is not a number")]),
    (b"UNSUB 1 " + b"1" * 16 + b"\r\n", [err("UNSUB command: max is not a number")]),
    (b"UNSUB\r\n", [err("UNSUB command: insufficient arguments")]),
    (b"UNSUB 1 2 3\r\n", [err("UNSUB command: too many arguments")]),
    (b"SUB foo 1\nUNSUB foo\n", ["Sub .foo 1", "Unsub 1 None"]),
    (
        b"SUB foo 1\nSUB foo 2\nUNSUB foo 3\n",
        [*("Sub .foo 1", "Sub .foo 2", "Unsub 1 3"), *("Unsub 2 3",)],
    ),
    (b"SUB foo 1\nUNSUB 1\nUNSUB foo\n", ["Sub .foo 1", "Unsub 1 None", "Unsub foo None"]),
    (b"SUB foo 1\nSUB a foo\nUNSUB foo\n", ["Sub .foo 1", "Sub .a foo", "Unsub foo None"]),
    # publishing
    (b"PUB foo 5\r\nhello\r\n", [".foo hello"]),
    (b"pub foo 5\nhello\nPING\n", [".foo hello", "Ping"]),
    (b"PUB foo.bar  5\r\nhello\r\n", [".foo.bar hello"]),
    (b"PUB foo 0\r\n\r\n", [".foo "]),
    (b"PUB foo 007\r\n1234567\r\n", [".foo 1234567"]),
    (b"PUB foo 5\r\nhello", []),
    (b"PUB foo 5\r\nhello\r", []),
    (b"PUB foo 3\r\n\r\n\n\r\n", [".foo \r\n\n"]),
    (b"PUB foo 4\r\n\r\nPU\nPUB foo 1\na\n", [".foo \r\nPU", ".foo a"]),
    (b"PUB foo 2\r\n\xff\x00\r\n", [".foo \xff\x00"]),
    (b"PUB foo _INBOX.a.1 5\r\nhello\r\n", [".foo _INBOX.a.1 hello"]),
    (b"PUB a 1\r\n1\r\nPUB a r 1\r\n2\r\nPUB a 1\r\n3\r\n", [".a 1", ".a r 2", ".a 3"]),
    (b"PUB\r\n", [err("PUB command: insufficient arguments")]),
    (b"PUB foo\r\n", [err("PUB command: insufficient arguments")]),
    (b"PUB a b c d\r\n", [err("PUB command: too many arguments")]),
    (
        b"PUB foo -5\r\nPING\r\n",
        [err("PUB command: message length -5 out of bounds"), "Ping"],
    ),
    (b"PUB foo x\r\nPING\r\n", [err("PUB command: message length is not a number"), "Ping"]),
    (b"PUB foo +5\r\n", [err("PUB command: message length is not a number")]),
    (b"PUB foo \xd9\xa3\r\n", [err("PUB command: message length is not a number")]),
    (b"PUB foo 1000\r\n" + b"x" * 1000 + b"\r\n", [".foo " + "x" * 1000]),
    (
        b"PUB foo 1001\r\nPING\r\n",
        [err("PUB command: message length 1001 out of bounds"), "hangup"],
    ),
    (
        b"PUB foo 2\r\nhello\r\nPING\r\n",
        [err("PUB command: message is not as long as announced"), "hangup"],
    ),
    (
        b"PUB foo 2\r\nhi\rx",
        [err("PUB command: message is not as long as announced"), "hangup"],
    ),
    (b"PUB foo.* 2\r\nhi\r\nPING\r\n", [err(WILD), "Ping"]),
    (b"PUB foo.> 2\r\nhi\r\nPING\r\n", [err(WILD), "Ping"]),
    (b"PUB a 1\r\n1\r\nPUB * 5\r\nSUB *\r\nPUB a 1\r\n2\r\n", [".a 1", err(WILD), ".a 2"]),
    (b"PUB foo r.* 2\r\nhi\r\n", [err(WILD)]),
    (b"PUB a*b 2\r\nhi\r\nPUB foo.> r> 2\r\nhi\r\n", [".a*b hi", err(WILD)]),
    (b"PUB foo r> 2\r\nhi\r\n", [".foo r> hi"]),
    (
        b"PUB a..b 2\r\nhi\r\n",
        [err("PUB command: invalid subject: empty token in subject at position 1")],
    ),
    (
        b"PUB a,b 2\r\nhi\r\nPUB ..x 1\r\na\r\n",
        [
            err("PUB command: invalid subject: commas are not allowed"),
            err("PUB command: invalid subject: empty token in subject at position 0"),
        ],
    ),
    (
        b"HPUB foo 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
        [".foo {NATS/1.0\r\n\r\n} hello"],
    ),
    (
        b"hpub foo r.1 18 23\nNATS/1.0\r\na: b\r\n\r\nhello\n",
        [".foo r.1 {NATS/1.0\r\na: b\r\n\r\n} hello"],
    ),
    (b"HPUB foo 12\r\n", [err("HPUB command: insufficient arguments")]),
    (b"HPUB foo a b 1 2 3\r\n", [err("HPUB command: too many arguments")]),
    (b"HPUB foo -1 5\r\n", [err("HPUB command: message length -1 out of bounds")]),
    (
        b"HPUB foo 6 5\r\nhello\r\nPING\r\n",
        [err("HPUB command: headers are longer than the message"), "Ping"],
    ),
    (
        b"HPUB foo 5 5\r\nhello\r\n",
        [err("HPUB command: headers are not a block of NATS/1.0")],
    ),
    # connecting again
    (b"CONNECT\r\n", [err("CONNECT command: insufficient arguments")]),
    (b"CONNECT {\r\n", [err("CONNECT command: options are not a JSON object of the right types")]),
    (b"CONNECT []\r\n", [err("CONNECT command: options are not a JSON object of the right types")]),
    (
        b'CONNECT {"verbose":1}\r\n',
        [err("CONNECT command: options are not a JSON object of the right types")],
    ),
    (b'CONNECT {"verbose":false}\r\nPING\r\n', ["Ping"]),
    (b'CONNECT {"auth_token":"t"}\r\n', ["Auth t"]),
    (b'CONNECT {"user":"u","pass":"t"}\r\n', ["Auth t"]),
    (b'connect  {"verbose":false, "echo" : false, "x":[1]}\n', ["Echo False"]),
    (b'CONNECT {"verbose":true}\r\n', ["+OK\r\n"]),
    (
        b'CONNECT {"no_responders":true}\r\n',
        [err("CONNECT command: no_responders requires headers")],
    ),
]


@pytest.mark.parametrize(("data", "meaning"), TABLE, ids=lambda value: repr(value)[:40])
def test_what_is_sent_means(data: bytes, meaning: list[str]) -> None:
    assert read(open_protocol(), [data]) == meaning


@pytest.mark.parametrize(("data", "meaning"), TABLE, ids=lambda value: repr(value)[:40])
def test_what_is_sent_byte_by_byte_means_the_same(data: bytes, meaning: list[str]) -> None:
    assert read(open_protocol(), [data[n : n + 1] for n in range(len(data))]) == meaning


GOOD = [data for data, meaning in TABLE if meaning and "hangup" not in meaning]


@given(st.lists(st.sampled_from(GOOD), max_size=12), st.data())
def test_it_does_not_matter_how_bytes_are_cut(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    chunks = [whole[a:b] for a, b in itertools.pairwise([0, *places, len(whole)])]
    cut, uncut = read(open_protocol(), chunks), read(open_protocol(), [whole])
    assert commanded(cut) == commanded(uncut)
    assert written(cut) == written(uncut)


def commanded(meaning: list[str]) -> list[str]:
    return [each for each in meaning if not each.startswith("+OK")]


def written(meaning: list[str]) -> str:
    """What the client gets. Acknowledgements come behind each batch, and cuts make batches."""
    return "".join(each for each in meaning if each.startswith(("+OK", "-ERR")))


# in bulk


def pub(subject: str, data: bytes, end: bytes = b"\r\n") -> bytes:
    return b"PUB %b %d\r\n%b%b" % (subject.encode(), len(data), data, end)


payloads = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\r", b"PING\r", b"PUB a 9", b"PUB a 9\r", b"xx", b"xy", b"a\nb"]),
)
published = st.lists(
    st.tuples(st.sampled_from(["a", "b.c", "a"]), payloads, st.sampled_from([b"\r\n", b"\n"])),
    max_size=30,
)


@given(published, st.sampled_from([b"", b"PING\r\n", b"PUB a 9\r\nPUB a", b"SUB a 1\r\n"]))
def test_many_publishes_mean_what_each_does(
    many: list[tuple[str, bytes, bytes]], behind: bytes
) -> None:
    protocol = open_protocol()
    found = read(protocol, [b"".join(pub(*each) for each in many) + behind])
    expected = [f".{subject} {data.decode('latin-1')}" for subject, data, _ in many]
    assert found[: len(many)] == expected
    assert len(found) - len(many) == (behind in (b"PING\r\n", b"SUB a 1\r\n"))


@given(st.binary(min_size=9, max_size=9), st.integers(5, 20), st.integers(0, 19))
def test_a_payload_like_an_announcement_is_a_payload(odd: bytes, count: int, place: int) -> None:
    sent = [b"PUB foo 9"] * count
    sent[place % count] = odd
    found = read(open_protocol(), [b"".join(pub("foo", data) for data in sent)])
    assert found == [f".foo {data.decode('latin-1')}" for data in sent]


@given(
    st.sampled_from([b"PUB foo 9", b"PUB a", b"\r\n123456\n", b"123456789", b""]),
    st.integers(5, 12),
    st.lists(
        st.tuples(
            st.integers(0, 1000),
            st.integers(0, 2),
            st.sampled_from([b"", b"\n", b"\r\n", b"x", b"PUB foo 9\r\n", b"8", b" ", b"H"]),
        ),
        max_size=4,
    ),
)
@example(b"PUB a", 5, [(63, 0, b"\n")])  # seems to be what follows, one byte further on
@example(b"PUB a", 5, [(9, 0, b"\nPUB foo 5")])
def test_a_chunk_is_read_in_bulk_as_byte_by_byte(
    payload: bytes, count: int, changes: list[tuple[int, int, bytes]]
) -> None:
    data = bytearray(pub("foo", payload) * count)
    for place, size, new in changes:
        place %= len(data)
        data[place : place + size] = new
    one_by_one = [bytes(data[n : n + 1]) for n in range(len(data))]
    for connect in (QUIET, b"CONNECT {}\r\n"):
        found = read(open_protocol(connect), [bytes(data)])
        answered = [each for each in found if not each.startswith("+OK")]
        singly = read(open_protocol(connect), one_by_one)
        assert answered == [each for each in singly if not each.startswith("+OK")]
        assert "".join(found).count("+OK") == "".join(singly).count("+OK")


def batches(protocol: SubjectProtocol, data: bytes) -> list[Batch]:
    return [each.batch for each in protocol.receive(data) if isinstance(each, Publish)]


def test_what_one_read_brings_is_one_batch_in_line_form() -> None:
    data = b"".join(pub("foo", b"%05d" % n) for n in range(500))
    [batch] = batches(open_protocol(), data + b"PING\r\n")
    assert batch.tag_lists == (b".foo",)
    assert batch.whole == (b"".join(b"publish .foo %05d\n" % n for n in range(500)), 500)
    assert batch.framable


def test_publishes_to_several_subjects_are_one_batch() -> None:
    data = b"".join(pub(f"foo.{n % 3}", b"x" * n) for n in range(50))
    [batch] = batches(open_protocol(), data + b"PING\r\n")
    assert batch.whole is not None
    assert batch.whole[1] == len(batch.tag_lists) == 50


def test_a_line_feed_in_the_data_makes_a_batch_that_is_no_lines() -> None:
    [batch] = batches(open_protocol(), pub("a", b"x") + pub("a", b"x\ny") + pub("b", b"z"))
    assert not batch.framable
    assert [count for _, _, count in batch.runs] == [1, 1, 1]


# unauthenticated peers


def test_an_unauthenticated_peer_may_ping_and_connect_and_nothing_else() -> None:
    protocol = SubjectProtocol(LIMITS)
    sent = b"ping\r\nPONG\r\n"
    assert read(protocol, [sent]) == ["Ping"]
    for line in (b"SUB foo 1\r\n", b"UNSUB 1\r\n", b"PUB foo 900\r\n", b"HPUB a 1 2\r\n"):
        assert read(protocol, [line]) == [err("Authorization Violation")]
    assert protocol.held == 0
    assert read(protocol, [b"FOO\r\n"]) == [err("unknown command: FOO")]


def test_what_stands_behind_connect_counts() -> None:
    found = read(SubjectProtocol(LIMITS), [QUIET + b"SUB foo 1\r\n" + pub("foo", b"x") * 9])
    assert found == ["Auth ", "Sub .foo 1", *[".foo x"] * 9]


@pytest.mark.parametrize(
    ("options", "credential"),
    [
        (b"{}", ""),
        (b'{"auth_token":"s3cret"}', "s3cret"),
        (b'{"user":"u","pass":"t"}', "t"),
        (b'{"auth_token":null,"pass":"t"}', "t"),
    ],
)
def test_the_credential_is_a_token_or_what_stands_beside_a_user(
    options: bytes, credential: str
) -> None:
    found = read(SubjectProtocol(LIMITS), [b"CONNECT %b\r\n" % options])
    assert found == [f"Auth {credential}"]


def test_no_log_shows_a_credential() -> None:
    (auth,) = SubjectProtocol(LIMITS).receive(b'CONNECT {"auth_token":"s3cret"}\r\n')
    assert "s3cret" not in repr(auth)
    protocol = SubjectProtocol(LIMITS)
    (wrong,) = protocol.receive(b'CONNECT {"auth_token":"s3cret","echo":"s3cret"}\r\n')
    assert "s3cret" not in repr(wrong)


# answers


def answers(protocol: SubjectProtocol, data: bytes, reply: Reply | None = None) -> bytes:
    """What is answered where every command succeeds, or gets `reply`."""
    found = b""
    for command in protocol.receive(data):
        if isinstance(command, Pause):
            continue
        if isinstance(command, Auth):
            protocol.authenticated()
        outcome: Reply = Done()
        if isinstance(command, Invalid):
            outcome = Failed(command.error)
        elif reply is not None and not isinstance(command, Ping):
            outcome = reply
        if not isinstance(command, Publish) or isinstance(outcome, Failed):
            found += protocol.reply(command, outcome)
    return found


COMMANDS = b"SUB foo 1\r\nPUB foo 1\r\nx\r\nUNSUB 1\r\nPING\r\n"


@pytest.mark.parametrize(
    ("connect", "said"),
    [
        (b"CONNECT {}\r\n", b"+OK\r\n" * 3),
        (b'CONNECT {"verbose":true}\r\n', b"+OK\r\n" * 4),
        (b'CONNECT {"verbose":false}\r\n', b""),
        (b'CONNECT {"verbose":null,"echo":false}\r\n', b"+OK\r\n" * 3),
    ],
)
def test_verbose_is_so_unless_said_otherwise_and_connect_only_where_said(
    connect: bytes, said: bytes
) -> None:
    assert answers(SubjectProtocol(LIMITS), connect + COMMANDS) == said + b"PONG\r\n"


def test_a_verbose_client_gets_an_answer_for_each_publish_in_its_place() -> None:
    protocol = open_protocol(b"CONNECT {}\r\n")
    sent = pub("a", b"x") * 7 + pub("b", b"y") + pub("*", b"") + pub("b", b"z") + b"PING\r\n"
    assert answers(protocol, sent) == (b"+OK\r\n" * 8 + err(WILD).encode() + b"+OK\r\nPONG\r\n")


@pytest.mark.parametrize(
    ("connect", "again"),
    [
        (b"CONNECT {}\r\n", err("subject foo not found in you subscriptions")),
        (b'CONNECT {"verbose":true}\r\n', err("subject foo not found in you subscriptions")),
        (b'CONNECT {"verbose":false}\r\n', ""),
        (b'CONNECT {"verbose":true,"lang":"go","version":"1"}\r\n', "+OK\r\n"),
        (b'CONNECT {"lang":"go"}\r\n', "+OK\r\n"),
        (b'CONNECT {"verbose":false,"version":"1"}\r\n', ""),
    ],
)
def test_unsubscribing_twice_is_an_error_for_clients_of_rtmb(connect: bytes, again: str) -> None:
    protocol = open_protocol(connect)
    sent = b"SUB foo 1\r\nSUB foo 2\r\nUNSUB foo\r\n"
    ok = b"+OK\r\n" * (0 if b"false" in connect else 3)
    assert answers(protocol, sent) == ok
    assert answers(protocol, b"UNSUB foo\r\n", Failed(NotSubscribed())) == again.encode()


def test_one_subscription_that_has_ended_by_itself_is_no_error_where_another_has_not() -> None:
    protocol = open_protocol(b"CONNECT {}\r\n")
    assert answers(protocol, b"SUB foo 1\r\nSUB foo 2\r\n") == b"+OK\r\n" * 2
    first, second = protocol.receive(b"UNSUB foo\r\n")
    assert protocol.reply(first, Failed(NotSubscribed())) == b""
    assert protocol.reply(second, Done()) == b"+OK\r\n"


def test_what_is_quoted_of_an_unsub_ends_no_line() -> None:
    protocol = open_protocol(b"CONNECT {}\r\n")
    said = answers(protocol, b"UNSUB f\x07\xff\r\n", Failed(NotSubscribed())).decode()
    assert said == err("subject f?\N{REPLACEMENT CHARACTER} not found in you subscriptions")


NATS = b'CONNECT {"verbose":false,"headers":true,"lang":"go","version":"1.2.3"}\r\n'
TOKENS_21 = ".".join(["a"] * 21)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"SUB a,b 1\r\n", 'Subscription to "a,b": commas are not allowed'),
        (
            b"SUB a,b workers 1\r\n",
            'Subscription to "a,b" using queue "workers": commas are not allowed',
        ),
        (
            b"SUB %b 1\r\n" % TOKENS_21.encode(),
            f'Subscription to "{TOKENS_21}": more than 20 tokens',
        ),
        (b"SUB a..b 1\r\n", 'Subscription to "a..b": empty token in subject at position 1'),
        (b"SUB a.>.b 1\r\n", """Subscription to "a.>.b": '>' wildcard must be last token"""),
        (b"SUB a\x07\xff 1\r\n", 'Subscription to "a?\N{REPLACEMENT CHARACTER}": not UTF-8'),
        (pub("a,b", b"x"), 'Publish to "a,b": commas are not allowed'),
        (pub("a.*", b"x"), 'Publish to "a.*": wildcards are not allowed'),
        (pub("a" * 255, b"x"), f'Publish to "{"a" * 255}": longer than 254 bytes'),
        (pub("a" * 600, b"x"), f'Publish to "{"a" * 512}": longer than 254 bytes'),
        (b"PUB a r,s 1\r\nx\r\n", 'Publish with Reply of "r,s": commas are not allowed'),
        (
            b"HPUB a,b 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
            'Publish to "a,b": commas are not allowed',
        ),
    ],
)
def test_clients_of_nats_are_told_in_words_at_which_they_go_on(sent: bytes, said: str) -> None:
    protocol = open_protocol(NATS)
    found = read(protocol, [sent * 2 + b"PING\r\n"])
    assert found == [err(f"Permissions Violation for {said}")] * 2 + ["Ping"]


@pytest.mark.parametrize("cut", [1, 10_000])
def test_a_verbose_clients_batch_has_one_subject_since_it_may_be_refused(cut: int) -> None:
    protocol = open_protocol(b"CONNECT {}\r\n")
    sent = (pub("a", b"x") * 6 + pub("b", b"y") * 6) * 2 + pub("a", b"x\n")
    found = [
        each for n in range(0, len(sent), cut) for each in batches(protocol, sent[n : n + cut])
    ]
    assert all(len(set(batch.tag_lists)) == 1 for batch in found)
    assert sum(len(messages(batch)) for batch in found) == 25


@pytest.mark.parametrize("count", [1, 20])
def test_a_refused_publish_is_answered_by_what_is_wrong(count: int) -> None:
    sent = pub("a.b", b"x") * count + b"PING\r\n"
    refusal = err('Permissions Violation for Publish to "a.b"').encode()
    protocol = open_protocol(b"CONNECT {}\r\n")
    assert answers(protocol, sent, Failed(NotGranted())) == refusal * count + b"PONG\r\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotGranted(), 'Permissions Violation for Subscription to "foo.*"'),
        (TooManySubscriptions(), "maximum subscriptions exceeded"),
    ],
)
def test_a_refused_subscription_is_told_and_forgotten(error: MistError, text: str) -> None:
    protocol = open_protocol()
    assert answers(protocol, b"SUB foo.* 1\r\n", Failed(error)).decode() == err(text)
    assert read(protocol, [b"UNSUB foo.*\r\n"]) == ["Unsub foo.* None"]


def test_an_unavailable_history_is_told_without_details() -> None:
    protocol = open_protocol()
    error = HistoryUnavailable("disk /dev/secret is full")
    assert answers(protocol, pub("a", b""), Failed(error)) == b"-ERR 'History is unavailable'\r\n"


def test_a_revoked_subscription_is_told_by_its_subject() -> None:
    notice = open_protocol().notice(Revoked(frozenset({".foo.>"}), b"1"))
    assert notice == err('Permissions Violation for Subscription to "foo.>"').encode()


def test_what_is_refused_or_revoked_of_a_queue_group_names_it() -> None:
    protocol = open_protocol()
    told = err('Permissions Violation for Subscription to "foo" using queue "q"').encode()
    assert answers(protocol, b"SUB foo q 1\r\n", Failed(NotGranted())) == told
    assert answers(protocol, b"SUB foo q 1\r\n") == b""
    assert protocol.notice(Revoked(frozenset({".foo"}), b"1")) == told
    assert len(protocol._names) == 0


def test_of_subscriptions_that_end_by_themselves_a_thousand_are_kept() -> None:
    protocol = open_protocol()
    for n in range(1100):
        read(protocol, [b"SUB _INBOX.%d %d\r\nUNSUB %d 1\r\n" % (n, n, n)])
    assert len(protocol._names) == 1000


# asking in vain


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (b"_INBOX.a.1", True),
        (b"_INBOX.a.*", True),
        (b"_INBOX.a.>", True),
        (b"_INBOX.>", True),
        (b">", True),
        (b"_INBOX.a", False),
        (b"_INBOX.a.2", False),
        (b"_INBOX.b.*", False),
        (b"_INBOX.a.1.>", False),
    ],
)
def test_who_asks_nobody_is_told_so_on_its_own_subscription(pattern: bytes, told: bool) -> None:
    connect = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
    asked = []

    def listens(tags: frozenset[str]) -> Generator[None, None, bool]:
        asked.append(tags)
        yield
        return False

    protocol = SubjectProtocol(LIMITS, listens=listens)
    sent = connect + b"SUB %b 7\r\nPUB a _INBOX.a.1 1\r\nx\r\n" % pattern
    answer = b"HMSG _INBOX.a.1 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    assert answers(protocol, sent) == (answer if told else b"")
    assert asked == [{".a"}]
    # Not where it is heard, is no request, was refused, or nobody wants to know.
    assert answers(protocol, b"PUB a 1\r\nx\r\n") == b""
    refused = answers(protocol, b"PUB a _INBOX.a.1 1\r\nx\r\n", Failed(NotGranted()))
    assert refused == err('Permissions Violation for Publish to "a"').encode()
    assert answers(SubjectProtocol(LIMITS), sent) == b""
    quiet = SubjectProtocol(LIMITS, listens=listens)
    assert answers(quiet, QUIET + sent.removeprefix(connect)) == b""


def test_others_have_their_turns_while_it_is_looked_whether_anybody_listens() -> None:
    def listens(tags: frozenset[str]) -> Generator[None, None, bool]:
        yield from [None] * 3
        return True

    protocol = SubjectProtocol(LIMITS, listens=listens)
    connect = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
    assert answers(protocol, connect) == b""
    found = list(protocol.receive(b"PUB a i 1\r\nx\r\nPING\r\n"))
    assert [type(each) for each in found] == [Publish, Pause, Pause, Pause, Ping]


def test_who_awaits_one_answer_awaits_none_when_told_that_there_is_none() -> None:
    connect = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'

    def listens(tags: frozenset[str]) -> Generator[None, None, bool]:
        yield from ()
        return False

    protocol = SubjectProtocol(LIMITS, listens=listens)
    found = read(protocol, [connect + b"SUB i 7\r\nUNSUB 7 1\r\nPUB a i 1\r\nx\r\n"])
    told = "HMSG i 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    assert found[-3:] == [".a i x", told, "Unsub 7 None"]


# the beginning and the silence


def test_the_greeting_says_what_a_client_wants_to_know() -> None:
    info = ServerInfo("ID", "1.2.3", "127.0.0.1", 4222, 1000, auth_required=True)
    line = info.line(7, "127.0.0.1")
    assert SubjectProtocol(LIMITS, line).greeting() == line
    match = re.fullmatch(rb"INFO (\{.*\})\r\n", line)
    assert match
    assert msgspec.json.decode(match[1]) == {
        "server_id": "ID",
        "server_name": "mist",
        "version": "1.2.3",
        "proto": 1,
        "host": "127.0.0.1",
        "port": 4222,
        "headers": True,
        "max_payload": 1000,
        "client_id": 7,
        "client_ip": "127.0.0.1",
        "auth_required": True,
    }
    assert b"auth_required" not in ServerInfo("ID", "1").line(1)
    assert b'"tls_required":true' in ServerInfo("ID", "1", tls_required=True).line(1)


@pytest.mark.parametrize(
    ("code", "unauthenticated", "friend"),
    [
        (4008, b"", b"-ERR 'Slow Consumer'\r\n"),
        (4401, b"", b"-ERR 'User Authentication Revoked'\r\n"),
        (4408, b"-ERR 'Authentication Timeout'\r\n", b"-ERR 'Stale Connection'\r\n"),
        (4429, b"-ERR 'maximum connections exceeded'\r\n", b"-ERR 'Too many requests'\r\n"),
        (1001, b"", b""),
        (1006, b"", b""),
    ],
)
def test_the_last_word_is_one_that_clients_know(
    code: int, unauthenticated: bytes, friend: bytes
) -> None:
    assert SubjectProtocol(LIMITS).close_error(code) == unauthenticated
    assert open_protocol().close_error(code) == friend


def test_two_silent_pings_and_it_is_over() -> None:
    protocol = open_protocol()
    assert PULSE == 120
    assert [protocol.beat(), protocol.beat(), protocol.beat()] == [*[b"PING\r\n"] * 2, None]
    assert [protocol.beat() for _ in read(protocol, [b"PONG\r\nPING\r\n"])] == [b"PING\r\n"]


# bad peers


@given(st.binary(max_size=400))
def test_no_bytes_break_it(data: bytes) -> None:
    protocol = open_protocol()
    found = read(protocol, [data, data])
    assert protocol.held <= MAX_CONTROL_LINE + LIMITS.data + 4
    assert all("\n" not in line[:-1] for line in found if line.startswith("-ERR"))


words = st.sampled_from(
    [
        *(b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"CONNECT {}"),
        *(b"a", b"a.b", b"*", b">", b"\x00", b"1", b"3", b"12", b"-1", b"9" * 40),
        *(b"\r\n", b"\n", b" ", b"NATS/1.0\r\n\r\n", b"abc\r\n"),
    ]
)


@given(st.lists(words, max_size=40), st.data())
def test_no_words_break_it_however_they_are_cut(many: list[bytes], data: st.DataObject) -> None:
    whole = b" ".join(many).replace(b" \n ", b"\n").replace(b" \r\n ", b"\r\n")
    place = data.draw(st.integers(0, len(whole)))
    expected = read(open_protocol(), [whole])
    assert read(open_protocol(), [whole[:place], whole[place:]]) == expected
    assert read(open_protocol(), [whole[n : n + 1] for n in range(len(whole))]) == expected
