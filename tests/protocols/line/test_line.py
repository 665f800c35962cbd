"""The line protocol, byte by byte: one table of what is sent and what comes back."""

import itertools
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist.message
from mist.attributes import NO_ATTRIBUTES, Attributes, format_change
from mist.commands import (
    Auth,
    Command,
    Echo,
    Hangup,
    Ids,
    Invalid,
    Last,
    ListSubscriptions,
    ListTags,
    Ping,
    Publish,
    Register,
    Resume,
    SetAttributes,
    ShowAttributes,
    ShowTags,
    Since,
    Store,
    Subscribe,
    Unregister,
    Unsubscribe,
    Who,
)
from mist.errors import (
    CommandError,
    DataTooLong,
    EmptyTag,
    ExpectedOnOff,
    HistoryDamaged,
    HistoryOff,
    HistoryUnavailable,
    InvalidPosition,
    InvalidTag,
    InvalidToken,
    LineTooLong,
    MistError,
    TokenExists,
    TokenNotFound,
    TooManySubscriptions,
    TooManyTags,
    Unauthorized,
    UnknownCommand,
    WrongArguments,
)
from mist.message import Limits, format_tags
from mist.protocols.line import LineProtocol, error_line
from mist.protocols.line.forms import ESCAPED, NUMBERED, NUMBERED_ESCAPED, PLAIN
from mist.replies import (
    Connections,
    Done,
    Failed,
    Newest,
    Reply,
    Resumed,
    SortedTags,
    Stored,
    Subscriptions,
    Tags,
    TokenAttributes,
)
from mist.wire import Batch

LIMITS = Limits(data=100, line=160)
BIG = b"x" * 101


def show_since(since: Since | None) -> str:
    match since:
        case Since(after=None, last=int(last), epoch=None):
            return f"last={last}"
        case Since(after=int(after), last=None, epoch=epoch):
            return f"after={after}" + (f"@{epoch}" if epoch is not None else "")
        case _:
            raise AssertionError(since)


def show(command: Command) -> str:
    """A command as one readable line."""
    match command:
        case Store(batch=batch):
            assert batch.framable
            [(tag_list, wire, count)] = batch.runs
            assert count == 1
            assert wire.startswith(b"publish %b " % tag_list)
            return f"Store {wire.decode('latin-1')}"
        case Resume(alternatives=alternatives, since=since):
            sets = ["{" + ",".join(sorted(tags)) + "}" for tags in alternatives]
            return " ".join(["Resume", show_since(since), *sets])
        case Publish(batch=batch):
            lines = b"".join(wire for _, wire, _ in batch.runs).decode("latin-1")
            envelope = batch.envelope
            if envelope is None:
                return lines
            assert envelope.audience is not None
            return f"{lines} to {envelope.audience.text}"
        case Invalid(error=error):
            return error_line(error).decode("latin-1")
        case Hangup():
            return "hangup"
        case SetAttributes(token=token, attributes=given, unset=unset):
            return f"SetAttributes {token} {format_change(given, unset)}"
        case _:
            fields = [
                ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
                for name in ("tags", "token", "credential", "on")
                if (value := getattr(command, name, None)) is not None
            ]
            return " ".join([type(command).__name__, *fields])


COUNT = "error Incorrect number of arguments for"
ATTRIBUTES = "error Invalid audience or attributes: "
UNREADABLE = (
    f"{ATTRIBUTES}a value has at least one character, "
    "and is percent-encoded where it isn't letters and digits\n"
)

# What is sent, and the commands it means. A publish is shown as its line, an error as the one
# that answers it.
TABLE: list[tuple[bytes, list[str]]] = [
    # framing
    (b"ping\n", ["Ping"]),
    (b"ping\r\n", ["Ping"]),
    (b"ping\r\r\n", ["error Unknown command '[ping\r]'\n"]),
    (b"\n\r\n\nping\n", ["Ping"]),
    (b"ping\n\n", ["Ping", "error Unknown command '[]'\n"]),
    (b"ping \n", ["error Incorrect number of arguments for '[ping ]'\n"]),
    (b"ping", []),
    (b"Ping\n", ["error Unknown command '[Ping]'\n"]),
    (b"bogus a b\n", ["error Unknown command '[bogus a b]'\n"]),
    (b"bogus a b  c d\n", ["error Unknown command '[bogus a b  c d]'\n"]),
    (b"bog\xff\n", ["error Unknown command '[bog\xff]'\n"]),
    (b"bogus\r\n", ["error Unknown command '[bogus]'\n"]),
    (b" ping\n", ["error Unknown command '[ ping]'\n"]),
    (b"ping\rping\n", ["error Unknown command '[ping\rping]'\n"]),
    (b"\r\n", []),
    (b"\r\rping\n", ["error Unknown command '[\r\rping]'\n"]),
    # publish
    (b"publish a,b hi there\n", ["publish a,b hi there\n"]),
    (b"publish a x\r\n", ["publish a x\r\n"]),
    (b"publish a \n", ["publish a \n"]),
    (b"publish a  x\n", ["publish a  x\n"]),
    (b"publish a \xff\x00\n", ["publish a \xff\x00\n"]),
    (b"publish a\r\n", ["error Incorrect number of arguments for '[publish a]'\n"]),
    (b"publish a \r\n", ["publish a \r\n"]),
    (b"publish a x\ry\r\n", ["publish a x\ry\r\n"]),
    (b"publish  \n", ["error Empty tag\n"]),
    (b"publish \n", ["error Incorrect number of arguments for '[publish ]'\n"]),
    (b"publish x\n", ["error Incorrect number of arguments for '[publish x]'\n"]),
    (b"publish x\r\n", ["error Incorrect number of arguments for '[publish x]'\n"]),
    (b"publish\n", ["error Incorrect number of arguments for '[publish]'\n"]),
    (b"publish  x\n", ["error Empty tag\n"]),
    (b"publish a " + BIG + b"\n", ["error Line too long\n"]),
    (b"publish a*, " + BIG + b"\n", ["error Invalid tag\n"]),
    (b"publish a " + BIG[1:] + b"\n", [f"publish a {BIG[1:].decode()}\n"]),
    # subscriptions
    (b"subscribe b,a,b\n", ["Subscribe a,b"]),
    (b"subscribe a\r\n", ["Subscribe a"]),
    (b"subscribe\n", ["error Incorrect number of arguments for '[subscribe]'\n"]),
    (b"subscribe a,,b\n", ["error Empty tag\n"]),
    (b"subscribe a*\n", ["error Invalid tag\n"]),
    (b"subscribe ..a\n", ["error Invalid tag\n"]),
    (b"subscribe >a\n", ["error Invalid tag\n"]),
    (b"subscribe .a.*.>,b\n", ["Subscribe .a.*.>,b"]),
    (b"subscribe =/a\n", ["Subscribe =/a"]),
    (b"subscribe *\n", ["Subscribe *"]),
    (b"subscribe *,a\n", ["error Invalid tag\n"]),
    (b"publish .a.* x\n", ["publish .a.* x\n"]),  # judged when it is resolved
    (b"subscribe a,\xff\n", ["error Invalid tag\n"]),
    (b"subscribe a\tb\n", ["error Invalid tag\n"]),
    (b"subscribe ,a*\n", ["error Empty tag\n"]),
    (b"subscribe " + b",".join(b"t%d" % n for n in range(17)) + b"\n", ["error Too many tags\n"]),
    (b"subscribe " + b",".join(b"t" for n in range(17)) + b"\n", ["Subscribe t"]),
    (b"unsubscribe b,a\n", ["Unsubscribe a,b"]),
    (b"unsubscribe a b\n", ["error Incorrect number of arguments for '[unsubscribe a b]'\n"]),
    (b"list\n", ["ListSubscriptions"]),
    (b"list x\n", ["error Incorrect number of arguments for '[list x]'\n"]),
    (b"listall\n", ["ListTags"]),
    (b"who\n", ["Who"]),
    (b"list\r\n", ["ListSubscriptions"]),
    (b"listall\r\n", ["ListTags"]),
    (b"who x\n", ["error Incorrect number of arguments for '[who x]'\n"]),
    # tokens
    (b"register a,b* t\n", ["Register a,b* t"]),
    (b"register >a,* t\n", ["Register *,>a t"]),
    (b"register ..a t\n", ["error Invalid tag\n"]),
    (b"register a t u\n", ["error Invalid token\n"]),
    (b"register a \n", ["error Invalid token\n"]),
    (b"register a " + b"t" * 140 + b"\n", ["Register a " + "t" * 140]),
    (b"register a t\x01\n", ["error Invalid token\n"]),
    (b"register a* \xff\n", ["error Invalid token\n"]),
    (b"register a\n", ["error Incorrect number of arguments for '[register a]'\n"]),
    (b"unregister t\r\n", ["Unregister t"]),
    (b"unregister\n", ["error Incorrect number of arguments for '[unregister]'\n"]),
    (b"unregister \n", ["error Invalid token\n"]),
    (b"unregister t u\n", ["error Incorrect number of arguments for '[unregister t u]'\n"]),
    (b"register a t\r\n", ["Register a t"]),
    (b"set a t\r\n", ["AddTags a t"]),
    (b"set a\n", ["error Incorrect number of arguments for '[set a]'\n"]),
    (b"unset  t\n", ["error Empty tag\n"]),
    (b"unset a \xff\n", ["error Invalid token\n"]),
    (b"tags \xff\n", ["error Invalid token\n"]),
    (b"set a t\n", ["AddTags a t"]),
    (b"unset a t\n", ["RemoveTags a t"]),
    (b"set-attr t user=1&groups=b;a\r\n", ["SetAttributes t groups=a;b&user=1"]),
    (
        b"set-attr t plan=&user=%C3%BC%3B%26%3D%2B\n",
        ["SetAttributes t user=%C3%BC%3B%26%3D%2B&plan="],
    ),
    ("set-attr ü user=ü\n".encode(), ["SetAttributes ü user=%C3%BC"]),
    (b"set-attr t user=1 plan=pro\n", [UNREADABLE]),
    (b"set-attr t user=\xff\n", ["error Invalid audience\n"]),
    (
        b"set-attr t user=%00\n",
        [f"{ATTRIBUTES}a control character in a value\n"],
    ),
    (b"set-attr t \n", [f"{ATTRIBUTES}a field is name=value\n"]),
    (b"set-attr t\n", ["error Incorrect number of arguments for '[set-attr t]'\n"]),
    (b"attr t\n", ["ShowAttributes t"]),
    (b"attr\n", ["error Incorrect number of arguments for '[attr]'\n"]),
    (b"tags t\n", ["ShowTags t"]),
    (b"tags\n", ["error Incorrect number of arguments for '[tags]'\n"]),
    # extensions
    (b"auth s3cret\n", ["Auth s3cret"]),
    (b"auth a b\n", ["error Incorrect number of arguments for '[auth a b]'\n"]),
    (b"echo off\necho on\n", ["Echo False", "Echo True"]),
    (b"echo maybe\n", ["error Expected on or off\n"]),
    (b"escape on\n", ["Escape True"]),
    (b"escape On\n", ["error Expected on or off\n"]),
    (b"escape off\r\n", ["Escape False"]),
    (b"escape\n", ["error Incorrect number of arguments for '[escape]'\n"]),
    (b"auth s\r\n", ["Auth s"]),
    (b"auth\n", ["error Incorrect number of arguments for '[auth]'\n"]),
    # an audience
    (b"publish-to users=2;1&groups=g a,b x y\r\n", ["publish a,b x y\r\n to groups=g&users=1;2"]),
    (b"publish-to users=1 b,a \n", ["publish b,a \n to users=1"]),
    (
        b"publish-to users=1 a\n",
        ["error Incorrect number of arguments for '[publish-to users=1 a]'\n"],
    ),
    (b"publish-to users=1\n", ["error Incorrect number of arguments for '[publish-to users=1]'\n"]),
    (b"publish-to t x y\n", [ATTRIBUTES + "a field is name=value\n"]),
    (
        b"publish-to users= a x\n",
        [UNREADABLE],
    ),
    (b"publish-to \xff=1 a x\n", ["error Invalid audience\n"]),
    (b"publish-to users=1 a* x\n", ["error Invalid tag\n"]),
    (b"publish-to users=1 a " + BIG + b"\n", ["error Line too long\n"]),
    # words of the history
    (b"subscribe a 5\n", ["Resume after=5 {a}"]),
    (b"subscribe b,a,b 0\n", ["Resume after=0 {a,b}"]),
    (b"subscribe a -3\r\n", ["Resume last=3 {a}"]),
    (b"subscribe a ab12:7\n", ["Resume after=7@ab12 {a}"]),
    (b"subscribe a 9007199254740991\n", ["Resume after=9007199254740991 {a}"]),
    (b"subscribe a 9007199254740992\n", ["error Invalid position\n"]),
    (b"subscribe a 5 6\n", ["error Invalid position\n"]),
    (b"subscribe a \n", ["error Invalid position\n"]),
    (b"subscribe a x\n", ["error Invalid position\n"]),
    (b"subscribe a* 5\n", ["error Invalid tag\n"]),
    (b"subscribe a* x\n", ["error Invalid tag\n"]),
    (b"resume 0 a\n", ["Resume after=0 {a}"]),
    (b"resume 0 a\r\n", ["Resume after=0 {a}"]),
    (b"resume -2 b,a c a,a\r\n", ["Resume last=2 {a,b} {c} {a}"]),
    # tags may have braces; those around every item are the older form
    (b"resume 0 {\n", ["Resume after=0 {{}"]),
    (b"resume 0 {a}{b\n", ["Resume after=0 {{a}{b}"]),
    (b"resume 0 {a b}\n", ["Resume after=0 {{a} {b}}"]),
    (b"resume 0 {a, b}\n", ["error Empty tag\n"]),
    (b"resume 0 {a} b\n", ["Resume after=0 {{a}} {b}"]),
    (b"resume 0 {a}\n", ["Resume after=0 {a}"]),
    (b"resume -2 {b,a} {c} {a,a}\r\n", ["Resume last=2 {a,b} {c} {a}"]),
    (b"resume e:4 {}} {{,{}\n", ["Resume after=4@e {}} {{}"]),
    (b"resume e:4 {{a}}\n", ["Resume after=4@e {{a}}"]),
    (b"resume\n", ["error Incorrect number of arguments for '[resume]'\n"]),
    (b"resume 0\n", ["error Incorrect number of arguments for '[resume 0]'\n"]),
    (b"resume 0 \n", ["error Incorrect number of arguments for '[resume 0 ]'\n"]),
    (b"resume 0 a  b\n", ["error Incorrect number of arguments for '[resume 0 a  b]'\n"]),
    (b"resume 0 a \n", ["error Incorrect number of arguments for '[resume 0 a ]'\n"]),
    (b"resume 0 {a}  {b}\n", ["error Incorrect number of arguments for '[resume 0 {a}  {b}]'\n"]),
    (b"resume 0 {a} \n", ["error Incorrect number of arguments for '[resume 0 {a} ]'\n"]),
    (b"resume 0 a ,b\n", ["error Empty tag\n"]),
    (b"resume 0 {a} {}\n", ["error Empty tag\n"]),
    (b"resume x a b*\n", ["error Invalid tag\n"]),
    (b"resume x {a} {b*}\n", ["error Invalid tag\n"]),
    (b"resume x a\n", ["error Invalid position\n"]),
    (b"store a x\n", ["Store publish a x\n"]),
    (b"store b,a,b  x  y \\\r\n", ["Store publish b,a,b  x  y \\\r\n"]),
    (b"store a \n", ["Store publish a \n"]),
    (b"store a " + BIG[1:] + b"\n", [f"Store publish a {BIG[1:].decode()}\n"]),
    (b"store a " + BIG + b"\n", ["error Line too long\n"]),
    (b"store a* " + BIG + b"\n", ["error Invalid tag\n"]),
    (b"store a* x\n", ["error Invalid tag\n"]),
    (b"store  x\n", ["error Empty tag\n"]),
    (b"store a\r\n", ["error Incorrect number of arguments for '[store a]'\n"]),
    (b"publish a 1\nstore a 2\n", ["publish a 1\n", "Store publish a 2\n"]),
    (b"last\r\n", ["Last"]),
    (b"last x\n", ["error Incorrect number of arguments for '[last x]'\n"]),
    (b"ids on\nids off\r\n", ["Ids True", "Ids False"]),
    (b"ids x\n", ["error Expected on or off\n"]),
    (b"ids\n", ["error Incorrect number of arguments for '[ids]'\n"]),
    # not ours
    (b"GET / HTTP/1.1\nping\n", ["hangup"]),
    (b"\nPOST /x HTTP/1.0\r\n", ["hangup"]),
    (b"\n \n \xff\nping\n", ["error Unknown command '[ ]'\n", "hangup"]),
    (b"ping\nGET / HTTP/1.1\n", ["Ping", "error Unknown command '[GET / HTTP/1.1]'\n"]),
    (b"ping\nHost: x\n", ["Ping", "hangup"]),
    (b"host:x\n", ["hangup"]),
    (b"publish a x\nHOST: y\npublish a z\n", ["publish a x\n", "hangup"]),
    (b"get /a?b HTTP/2\n", ["hangup"]),
    (b" Host: x\n", ["error Unknown command '[ Host: x]'\n"]),
    (b"GET /a b HTTP/1.1\n", ["error Unknown command '[GET /a b HTTP/1.1]'\n"]),
    (b"subscribe a\npublish HTTP/1 x\n", ["Subscribe a", "publish HTTP/1 x\n"]),
    (b"ping\nHost: " + b"x" * 500 + b"\nping\n", ["Ping", "hangup"]),
    (b"GET / HTTP/1.1" + b"x" * 500 + b"\nping\n", ["hangup"]),
    (b"GET /" + b"x" * 160 + b" HTTP/1.1\nHost: x\n", ["error Line too long\n", "hangup"]),
    # long lines
    (b"x" * 160 + b"\n", [f"error Unknown command '[{'x' * 160}]'\n"]),
    (b"x" * 161 + b"\nping\n", ["error Line too long\n", "Ping"]),
    (b"publish a " + b"x" * 500 + b"\nping\n", ["error Line too long\n", "Ping"]),
    (b"x" * 161, ["error Line too long\n"]),
    (b"x" * 160 + b"\r\n", ["error Line too long\n"]),
    (b"ping\n" + b"x" * 161 + b"\nping\n", ["Ping", "error Line too long\n", "Ping"]),
    (
        b"publish a 1\npublish a %b\npublish a 2\n" % BIG,
        ["publish a 1\n", "error Line too long\n", "publish a 2\n"],
    ),
    # all of it together
    (
        b"publish a 1\npublish a 2\npublish b 3\nping\npublish a 4\nbogus\npublish c 5\n",
        [
            "publish a 1\npublish a 2\npublish b 3\n",
            "Ping",
            "publish a 4\n",
            "error Unknown command '[bogus]'\n",
            "publish c 5\n",
        ],
    ),
]


def read(pieces: list[bytes]) -> list[str]:
    """What a fresh protocol makes of pieces; publishes in a row are joined."""
    protocol = LineProtocol(LIMITS)
    found: list[str] = []
    for piece in pieces:
        for command in protocol.receive(piece):
            line = show(command)
            publish = type(command) is Publish
            if publish and found and found[-1].startswith("publish "):
                found[-1] += line
            else:
                found.append(line)
            if line == "hangup":
                return found
        assert protocol.held <= LIMITS.line
    return found


@pytest.mark.parametrize(("sent", "meant"), TABLE, ids=[repr(row[0][:40]) for row in TABLE])
def test_every_row_means_the_same_whole_and_byte_by_byte(sent: bytes, meant: list[str]) -> None:
    assert read([sent]) == meant
    assert read([sent[n : n + 1] for n in range(len(sent))]) == meant


@given(st.sampled_from(TABLE), st.lists(st.integers(0, 700), max_size=6))
def test_every_row_means_the_same_cut_anywhere(
    row: tuple[bytes, list[str]], cuts: list[int]
) -> None:
    sent, meant = row
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    assert read([sent[a:b] for a, b in itertools.pairwise(edges)]) == meant


@given(st.binary(max_size=300) | st.text("publish a,b\nHost:\r", max_size=200).map(str.encode))
def test_any_bytes_are_commands_and_memory_stays_bounded(data: bytes) -> None:
    read([data])
    read([data[n : n + 7] for n in range(0, len(data), 7)])


WORDS = (
    *(b"publish a,b ", b"publish a", b"publish ", b"subscribe a", b"store a ", b"auth s", b"list"),
    *(b"resume 0 ", b"a", b"{a}", b" {b,c}", b" b,c", b" -3", b" e:5"),
    *(b" ", b",", b"\n", b"\n", b"\r\n", b"\r", b"\xff", b"a*", b"Host:", b"GET / ", b"HTTP/1.1"),
    *(b"x" * 80, b"x" * 81, b"x" * 161),
)


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(b"".join), st.sets(st.integers(0, 800)))
def test_lines_of_the_known_words_mean_the_same_cut_anywhere(sent: bytes, cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    whole = read([sent])
    assert read([sent[a:b] for a, b in itertools.pairwise(edges)]) == whole
    assert read([sent[n : n + 1] for n in range(len(sent))]) == whole


PUBLISHES = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"ab", b"a,b", b"b,a", b"a*"]),
        st.sampled_from([b"", b" ", b"publish a x", b"\r", b"\\n", b"x" * 100]),
    ),
    min_size=1,
    max_size=12,
)


@given(PUBLISHES)
def test_publishes_in_a_row_are_one_batch(
    messages: list[tuple[bytes, bytes]],
) -> None:
    lines = [b"publish %b %b\n" % message for message in messages]
    for limits in (Limits(), LIMITS):  # the short ones take every line alone
        [command] = LineProtocol(limits).receive(b"".join(lines))
        assert isinstance(command, Publish)
        assert command.batch.framable
        runs = command.batch.runs
        assert b"".join(wire for _, wire, _ in runs) == b"".join(lines)
        assert [tags for tags, _, count in runs for _ in range(count)] == [m[0] for m in messages]
        assert all(wire.count(b"\n") == count for _, wire, count in runs)
        if len({tags for tags, _ in messages}) == 1 and limits is not LIMITS:
            assert len(runs) == 1


def test_an_endless_line_holds_no_more_than_the_limit() -> None:
    protocol = LineProtocol(LIMITS)
    found = [show(c) for _ in range(1000) for c in protocol.receive(b"x" * 50)]
    assert found == ["error Line too long\n"]
    assert protocol.held == 0
    assert [show(c) for c in protocol.receive(b"x\nping\n")] == ["Ping"]


@pytest.mark.parametrize(
    "line",
    [
        b"publish-to users=1 %b x\n",
        b"store %b x\n",
        b"subscribe %b\n",
        b"unsubscribe %b\n",
        b"subscribe %b 5\n",
        b"resume 0 %b\n",
        b"resume 0 c %b\n",
        b"register %b t\n",
        b"set %b t\n",
        b"unset %b t\n",
    ],
)
def test_far_too_many_tags_are_counted_and_not_looked_at(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.message, "check_tag", None)
    protocol = LineProtocol(Limits())
    for tag in (b"a", b"*", b"", b"\xff"):
        [command] = protocol.receive(line % b",".join([tag] * 150_000))
        assert show(command) == "error Too many tags\n"


@pytest.mark.parametrize("size", [1, 2, 3, 1_000, 65_536])
def test_memory_held_is_that_of_the_bytes_in_whatever_pieces_they_come(size: int) -> None:
    protocol = LineProtocol(Limits(line=200_000))
    pieces = [b"p" * size] * (200_000 // size)
    tracemalloc.start()
    try:
        for piece in pieces:
            # A copy, since the same object held many times would cost nothing.
            assert list(protocol.receive(bytes(bytearray(piece)))) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert protocol.held == size * len(pieces)
    assert held < 1.25 * protocol.held + 10_000
    [command] = protocol.receive(b"x" * size * 2 + b"y" * 200_000)
    assert show(command) == "error Line too long\n"
    assert protocol.held == 0


def test_a_line_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    limits = Limits()
    assert (limits.data, limits.line) == (1 << 20, (1 << 20) + (1 << 16))
    for size, meant in ((limits.line, "error Unknown command"), (limits.line + 1, "error Line")):
        line = b"x" * size + b"\n"
        for step in (len(line), 65_536, 9_999):
            protocol = LineProtocol(limits)
            pieces = [line[n : n + step] for n in range(0, len(line), step)]
            [command] = (c for piece in [*pieces, b"ping"] for c in protocol.receive(piece))
            assert show(command).startswith(meant)
            assert protocol.held == 4


def test_data_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    line = b"publish a " + b"x" * (1 << 20) + b"\n"
    assert [show(c) for c in LineProtocol(Limits()).receive(line)] == [line.decode()]
    [command] = LineProtocol(Limits()).receive(b"publish a x" + line[10:])
    assert show(command) == "error Line too long\n"


def test_what_follows_a_message_too_long_is_read_as_if_it_were_not_there() -> None:
    protocol = LineProtocol(LIMITS)
    sent = b"publish a 1\npublish a " + BIG + b"\npublish a 2\nbogus\n"
    assert [show(c) for c in protocol.receive(sent)] == [
        "publish a 1\n",
        "error Line too long\n",
        "publish a 2\n",
        "error Unknown command '[bogus]'\n",
    ]


TAGS_17 = b",".join(b"t%d" % n for n in range(17))
TAGS_64 = b",".join(b"t%d" % n for n in range(64))

# What decides where a line breaks several rules at once; and the rules' edges.
JUDGED: list[tuple[bytes, str]] = [
    (b"subscribe a*,b c d e\n", "error Invalid tag\n"),  # `c d e` is one field
    (b"unsubscribe a* b\n", "error Incorrect number of arguments for '[unsubscribe a* b]'\n"),
    (b"subscribe " + TAGS_17 + b",a*\n", "error Invalid tag\n"),
    (b"subscribe " + TAGS_17 + b",\n", "error Empty tag\n"),
    (b"subscribe a*,,b\n", "error Invalid tag\n"),
    (b"subscribe ,a*,b\n", "error Empty tag\n"),
    (b"subscribe " + TAGS_17 + b"\n", "error Too many tags\n"),
    (b"subscribe " + TAGS_17 + b" 0\n", "error Too many tags\n"),
    (b"unsubscribe " + TAGS_17 + b"\n", "error Too many tags\n"),
    (b"subscribe " + TAGS_17.rpartition(b",")[0] + b"\n", "Subscribe "),
    (b"subscribe " + TAGS_17.replace(b"t16", b"t1") + b"\n", "Subscribe "),
    (b"register " + TAGS_64 + b" t\n", "Register "),
    (b"register " + TAGS_64 + b",u t\n", "error Too many tags\n"),
    (b"register " + TAGS_64 + b",u \n", "error Too many tags\n"),
    (b"set " + TAGS_64 + b",u t\n", "error Too many tags\n"),
    (b"unset " + TAGS_64 + b",u t\n", "error Too many tags\n"),
    (b"store " + TAGS_64 + b",u x\n", "error Too many tags\n"),
    (b"subscribe " + b"x" * 255 + b"\n", "Subscribe "),
    (b"subscribe " + b"x" * 256 + b"\n", "error Invalid tag\n"),
    (b"subscribe " + "ä".encode() * 127 + b"x\n", "Subscribe "),
    (b"subscribe " + "ä".encode() * 128 + b"\n", "error Invalid tag\n"),
    (b"subscribe a\x7fb\n", "error Invalid tag\n"),
    (b"subscribe a\xc2\x85\n", "error Invalid tag\n"),  # a control character of C1
    (b"subscribe a\r,b\n", "error Invalid tag\n"),
    (b"subscribe \xed\xa0\x80\n", "error Invalid tag\n"),  # a surrogate
    (b"subscribe .a,*a,a>\n", "Subscribe "),
    (b"subscribe .\n", "error Invalid tag\n"),  # a subject without a token
    (b"subscribe .a,.b\n", "error Invalid tag\n"),  # a message has one at most
    (b"register ..a, t\n", "error Invalid tag\n"),
    (b"register a,, \n", "error Empty tag\n"),
    (b"register a " + b"t" * 255 + b"\n", "Register "),
    (b"register a " + b"t" * 256 + b"\n", "error Invalid token\n"),
    (b"unregister " + b"t" * 256 + b"\n", "error Invalid token\n"),
    (b"tags " + "ä".encode() * 128 + b"\n", "error Invalid token\n"),
    (b"tags a\x00b\n", "error Invalid token\n"),
    (b"set-attr a\x00b user\n", "error Invalid token\n"),
    (b"set-attr  user=1\n", "error Invalid token\n"),
    (b"set-attr " + b"t" * 256 + b" user=1\n", "error Invalid token\n"),
    (b"set-attr t user=" + b"x" * 255 + b"\n", "SetAttributes t user="),
    (b"set-attr t user=" + b"x" * 256 + b"\n", ATTRIBUTES),
    (b"set-attr t groups=" + b"x;" * 1_000 + b"x\n", ATTRIBUTES),
    (b"set-attr t user=1&user=\n", f"{ATTRIBUTES}a name is given twice"),
    (b"set-attr t users=1\n", f"{ATTRIBUTES}an audience has "),
    (b"set-attr t %75ser=1\n", f"{ATTRIBUTES}a name is "),
    (b"set-attr t " + b"x" * 100_000 + b"\n", f"{ATTRIBUTES}more than "),
    (b"ids \n", "error Expected on or off\n"),
    (b"subscribe " + TAGS_17 + b" x\n", "error Too many tags\n"),
    (b"resume 0 " + TAGS_17 + b" a*\n", "error Invalid tag\n"),
    (b"resume 0 {" + TAGS_17 + b"} {a*}\n", "error Invalid tag\n"),
    (b"resume x a " + TAGS_17 + b"\n", "error Too many tags\n"),
    (b"resume x {a} {" + TAGS_17 + b"}\n", "error Too many tags\n"),
    (b"resume 0 {" + TAGS_17.rpartition(b",")[0] + b"} {t16}\n", "Resume after=0 "),
    (b"resume 0" + b" {a}" * 1_000 + b"\n", "Resume after=0 "),
    (b"resume 0" + b" {a}" * 1_001 + b"\n", "error Incorrect number of arguments for "),
    (b"resume 0" + b" a" * 1_000 + b"\n", "Resume after=0 "),
    (b"resume 0" + b" a" * 1_001 + b"\n", "error Incorrect number of arguments for "),
    (b"resume x" + b" {a*}" * 1_001 + b"\n", "error Incorrect number of arguments for "),
]


@pytest.mark.parametrize(("sent", "meant"), JUDGED, ids=[repr(row[0][:30]) for row in JUDGED])
def test_arguments_are_counted_first_then_tags_judged_in_order_then_counted(
    sent: bytes, meant: str
) -> None:
    [command] = LineProtocol(Limits()).receive(sent)
    assert show(command).startswith(meant)


# What is answered, and how. A `Done` says nothing but to a ping.
AB = frozenset("ab")
ANSWERS: list[tuple[Command, Reply, bytes]] = [
    (Ping(), Done(), b"pong\n"),
    (Publish(Batch.of(AB, b"x")), Done(), b""),
    (Subscribe(AB), Done(), b""),
    (Unsubscribe(AB), Done(), b""),
    (Register("t", AB), Done(), b""),
    (Unregister("t"), Done(), b""),
    (SetAttributes("t", NO_ATTRIBUTES), Done(), b""),
    (Auth("s"), Done(), b""),
    (Echo(on=True), Done(), b""),
    (ListSubscriptions(), Subscriptions(()), b"list \n"),
    (ListSubscriptions(), Subscriptions((b"a,b", b"c")), b"list a,b c\n"),
    (ListSubscriptions(), Subscriptions((b"{a", b"b}")), b"list {a b}\n"),
    (ListSubscriptions(), Subscriptions((b"{a}", b"b")), b"list {a} b\n"),
    # else it would be read as the older form
    (ListSubscriptions(), Subscriptions((b"{a}", b"{b,c}")), b"list {{a}} {{b,c}}\n"),
    (ListTags(), SortedTags([]), b"listall \n"),
    (ListTags(), SortedTags(["a", "b", "ä"]), "listall a b ä\n".encode()),
    (ShowAttributes("t"), TokenAttributes(NO_ATTRIBUTES), b"attr t \n"),
    (ShowAttributes("ü"), TokenAttributes(Attributes(user="ü")), "attr ü user=%C3%BC\n".encode()),
    (ShowTags("t"), Tags(frozenset()), b"tags t \n"),
    (ShowTags("ü"), Tags(frozenset({"b", "a*", ">c"})), "tags ü >c,a*,b\n".encode()),
    (Who(), Connections(2, 30), b"who 2 30\n"),
    (Store(Batch.of(AB, b"x")), Stored(1), b"stored 1\n"),
    (Store(Batch.of(AB, b"x")), Stored((1 << 53) - 1), b"stored 9007199254740991\n"),
    (Last(), Newest("ab12", 0), b"last ab12 0\n"),
    (Ids(on=True), Done(), b""),
    (Resume([AB], Since(after=5)), Resumed("ab12", 9, True, 1), b""),
    (Resume([AB], Since(after=5)), Resumed("ab12", 9, False, 8), b"gap ab12 8\n"),
    (Resume([AB], None), Done(), b""),
]
ERRORS: list[tuple[MistError, bytes]] = [
    (UnknownCommand(b"bogus a b"), b"error Unknown command '[bogus a b]'\n"),
    (WrongArguments(b"publish x"), b"error Incorrect number of arguments for '[publish x]'\n"),
    (EmptyTag(), b"error Empty tag\n"),
    (TooManyTags(64), b"error Too many tags\n"),
    (InvalidTag(), b"error Invalid tag\n"),
    (LineTooLong(), b"error Line too long\n"),
    (DataTooLong(), b"error Line too long\n"),
    (InvalidToken(), b"error Invalid token\n"),
    (TokenNotFound(), b"error Token not found\n"),
    (TokenExists(), b"error already exists\n"),
    (TooManySubscriptions(), b"error Too many subscriptions\n"),
    (HistoryOff(), b"error History is off\n"),
    (HistoryUnavailable("no space left in /data"), b"error History is unavailable\n"),
    (HistoryDamaged(1, "checksum\n"), b"error History is unavailable\n"),
    (InvalidPosition(), b"error Invalid position\n"),
    (Unauthorized(), b"error Unauthorized\n"),
    (ExpectedOnOff(), b"error Expected on or off\n"),
]


def test_every_answer_is_one_line_to_the_byte_or_none() -> None:
    protocol = LineProtocol(Limits())
    for command, reply, line in ANSWERS:
        assert protocol.reply(command, reply) == line
    for error, line in ERRORS:
        assert protocol.reply(Subscribe(AB), Failed(error)) == line
        assert protocol.reply(Store(Batch.of(AB, b"x")), Failed(error)) == line


def test_a_credential_and_a_token_are_in_no_repr() -> None:
    commands = LineProtocol(Limits()).receive(
        b"auth sesame\nregister a sesame\ntags sesame\nset-attr sesame user=1\n"
    )
    assert "sesame" not in repr(list(commands))


def test_an_unauthenticated_peer_may_send_short_lines_only() -> None:
    protocol = LineProtocol(Limits(), unauthenticated=True)
    long = b"publish a " + b"x" * 8_449 + b"\n"
    assert [show(c) for c in protocol.receive(long)] == ["error Line too long\n"]
    commands = protocol.receive(b"auth s\n" + long)
    assert show(next(commands)) == "Auth s"
    protocol.authenticated()
    assert show(next(commands)) == long.decode()


def test_an_unauthenticated_line_as_long_as_a_jwt_passes_and_one_byte_more_does_not() -> None:
    for size, meant in ((8_448, "error Unknown command"), (8_449, "error Line too long\n")):
        for pieces in ([b"x" * size, b"\n"], [b"x" * size + b"\n"], [b"x"] * size + [b"\n"]):
            protocol = LineProtocol(Limits(), unauthenticated=True)
            [command] = (c for piece in pieces for c in protocol.receive(piece))
            assert show(command).startswith(meant)


def test_the_beginning_of_a_long_line_behind_auth_is_held_under_the_new_limit() -> None:
    protocol = LineProtocol(Limits(), unauthenticated=True)
    commands = protocol.receive(b"auth s\npublish a " + b"x" * 5_000)
    assert show(next(commands)) == "Auth s"
    protocol.authenticated()
    assert list(commands) == []
    [command] = protocol.receive(b"\n")
    assert show(command) == "publish a " + "x" * 5_000 + "\n"


@pytest.mark.parametrize("fence", [b"", b"ping\n", b"publish\n", b"publisher\n"])
def test_messages_of_one_tag_list_are_one_run_a_fence_behind_them_or_not(fence: bytes) -> None:
    protocol = LineProtocol(Limits())
    wire = b"publish a 1\npublish a \npublish a publish a 3\n"
    first, *rest = protocol.receive(wire + fence)
    assert isinstance(first, Publish)
    assert first.batch.runs == [(b"a", wire, 3)]
    assert len(rest) == bool(fence)


@pytest.mark.parametrize(
    "odd",
    [b"ping", b"", b"publish a", b"publish  1", b"publish ab 1", b"publish b 1", b"Publish a 1"],
)
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_line_among_publishes_of_one_tag_list_is_what_it_is_alone(odd: bytes, place: int) -> None:
    lines = [b"publish a 0", b"publish a 1", b"publish a 2"]
    lines.insert(place, odd)
    protocol = LineProtocol(Limits())
    list(protocol.receive(b"ping\n"))  # a blank line is dropped only where it is the first
    together = [show(c) for c in protocol.receive(b"".join(b"%b\n" % line for line in lines))]
    alone = [show(c) for line in lines for c in protocol.receive(b"%b\n" % line)]
    assert "".join(together) == "".join(alone)


def test_a_tag_list_that_begins_like_another_is_another() -> None:
    protocol = LineProtocol(Limits())
    [command] = protocol.receive(b"publish a 1\npublish ab 2\n")
    assert isinstance(command, Publish)
    assert len(command.batch.runs) == 2


def test_escapes_and_ids_are_chosen_each_for_itself() -> None:
    protocol = LineProtocol(Limits())
    chosen = [protocol.form]
    for on in (True, False):
        protocol.ids(on)
        protocol.ids(on)
        chosen.append(protocol.form)
        protocol.escape(on)
        chosen.append(protocol.form)
    assert chosen == [PLAIN, NUMBERED, NUMBERED_ESCAPED, ESCAPED, PLAIN]


TAG_SETS = st.frozensets(st.text("ab{}\\%ä", min_size=1, max_size=3), min_size=1, max_size=5)


@given(st.lists(TAG_SETS, min_size=1, max_size=5))
def test_what_list_prints_can_be_resumed(alternatives: list[frozenset[str]]) -> None:
    protocol = LineProtocol(Limits())
    written = Subscriptions([format_tags(tags).encode() for tags in alternatives])
    listed = protocol.reply(ListSubscriptions(), written).removeprefix(b"list ")
    [command] = protocol.receive(b"resume 0 " + listed)
    assert command == Resume(alternatives, Since(after=0))


def test_every_error_has_one_line() -> None:
    def leaves(error: type[CommandError]) -> list[type[CommandError]]:
        below = error.__subclasses__()
        return [leaf for each in below for leaf in leaves(each)] if below else [error]

    for error in leaves(CommandError):
        if error is HistoryDamaged:  # what is damaged is for the operator
            told = error_line(HistoryDamaged(1, "checksum\n"))
            assert told == b"error History is unavailable\n"
        elif error.__module__ == "mist.errors":
            assert re.fullmatch(rb"error [^\n]+\n", error_line(error()))


def test_only_the_first_line_decides_whether_it_looks_like_http() -> None:
    sent = b"subscribe a\npublish HTTP/ x\n"
    assert read([sent]) == ["Subscribe a", "publish HTTP/ x\n"]


def test_a_line_that_comes_byte_by_byte_takes_no_more_than_its_bytes() -> None:
    protocol = LineProtocol(Limits())
    for _ in range(20_000):
        assert not list(protocol.receive(b"x"))
    assert protocol.held == 20_000
    assert isinstance(protocol._held, bytearray)
