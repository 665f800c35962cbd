"""The line protocol, byte by byte: one table of what is sent and what comes back."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.commands import Command, Hangup, Invalid, Publish
from mist.errors import CommandError
from mist.message import Batch, Limits, TagList
from mist.protocols.line import ESCAPED, PLAIN, LineProtocol, error_line, read_escaped

LIMITS = Limits(data=100, line=160)
BIG = b"x" * 101


def show(command: Command) -> str:
    """A command as one readable line."""
    match command:
        case Publish(batch=batch):
            return b"".join(wire for _, wire, _ in batch.runs).decode("latin-1")
        case Invalid(error=error):
            return error_line(error).decode("latin-1")
        case Hangup():
            return "hangup"
        case _:
            fields = [
                ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
                for name in ("tags", "token", "credential", "on")
                if (value := getattr(command, name, None)) is not None
            ]
            return " ".join([type(command).__name__, *fields])


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
    # publish
    (b"publish a,b hi there\n", ["publish a,b hi there\n"]),
    (b"publish a x\r\n", ["publish a x\r\n"]),
    (b"publish a \n", ["publish a \n"]),
    (b"publish a  x\n", ["publish a  x\n"]),
    (b"publish a \xff\x00\n", ["publish a \xff\x00\n"]),
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
    (b"set a t\n", ["AddTags a t"]),
    (b"unset a t\n", ["RemoveTags a t"]),
    (b"tags t\n", ["ShowTags t"]),
    (b"tags\n", ["error Incorrect number of arguments for '[tags]'\n"]),
    # extensions
    (b"auth s3cret\n", ["Auth s3cret"]),
    (b"auth a b\n", ["error Incorrect number of arguments for '[auth a b]'\n"]),
    (b"echo off\necho on\n", ["Echo False", "Echo True"]),
    (b"echo maybe\n", ["error Expected on or off\n"]),
    (b"escape on\n", ["Escape True"]),
    (b"escape On\n", ["error Expected on or off\n"]),
    # words of the history
    (b"subscribe a 5\n", ["error History is off\n"]),
    (b"subscribe a* 5\n", ["error Invalid tag\n"]),
    (b"resume 0 {a}\n", ["error History is off\n"]),
    (b"store a x\n", ["error History is off\n"]),
    (b"store a* x\n", ["error Invalid tag\n"]),
    (b"store a\n", ["error Incorrect number of arguments for '[store a]'\n"]),
    (b"last\n", ["error History is off\n"]),
    (b"ids on\n", ["error History is off\n"]),
    (b"ids x\n", ["error Expected on or off\n"]),
    # not ours
    (b"GET / HTTP/1.1\nping\n", ["hangup"]),
    (b"\nPOST /x HTTP/1.0\r\n", ["hangup"]),
    (b"ping\nGET / HTTP/1.1\n", ["Ping", "error Unknown command '[GET / HTTP/1.1]'\n"]),
    (b"ping\nHost: x\n", ["Ping", "hangup"]),
    (b"host:x\n", ["hangup"]),
    # long lines
    (b"x" * 160 + b"\n", [f"error Unknown command '[{'x' * 160}]'\n"]),
    (b"x" * 161 + b"\nping\n", ["error Line too long\n", "Ping"]),
    (b"publish a " + b"x" * 500 + b"\nping\n", ["error Line too long\n", "Ping"]),
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
            publish = isinstance(command, Publish)
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


def test_an_endless_line_holds_no_more_than_the_limit() -> None:
    protocol = LineProtocol(LIMITS)
    found = [show(c) for _ in range(1000) for c in protocol.receive(b"x" * 50)]
    assert found == ["error Line too long\n"]
    assert protocol.held == 0
    assert [show(c) for c in protocol.receive(b"x\nping\n")] == ["Ping"]


def test_a_stranger_may_send_short_lines_only() -> None:
    protocol = LineProtocol(Limits(), stranger=True)
    long = b"publish a " + b"x" * 4_097 + b"\n"
    assert [show(c) for c in protocol.receive(long)] == ["error Line too long\n"]
    commands = protocol.receive(b"auth s\n" + long)
    assert show(next(commands)) == "Auth s"
    protocol.authenticated()
    assert show(next(commands)) == long.decode()


def test_a_run_is_all_consecutive_messages_of_one_tag_list() -> None:
    protocol = LineProtocol(Limits())
    [command] = protocol.receive(b"publish a 1\npublish a 2\npublish a,b 3\npublish a 4\n")
    assert isinstance(command, Publish)
    assert [(tags, count) for tags, _, count in command.batch.runs] == [
        (b"a", 2),
        (b"a,b", 1),
        (b"a", 1),
    ]


def test_a_tag_list_that_begins_like_another_is_another() -> None:
    protocol = LineProtocol(Limits())
    [command] = protocol.receive(b"publish a 1\npublish ab 2\n")
    assert isinstance(command, Publish)
    assert len(command.batch.runs) == 2


def entry(data: bytes) -> tuple[TagList, bytes, int]:
    [(_, wire, count)] = Batch.of(frozenset("ab"), data).runs
    return TagList(frozenset("ab")), wire, count


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_escaped_lines_carry_any_data_in_one_line_each(data: list[bytes]) -> None:
    pieces = ESCAPED.pieces([entry(each) for each in data])
    assert all(piece.count(b"\n") == 1 and piece.endswith(b"\n") for piece in pieces)
    assert [m.data for m in read_escaped(b"".join(pieces))] == data if data else not pieces


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_plain_lines_leave_out_what_would_forge_a_line(data: list[bytes]) -> None:
    pieces = PLAIN.pieces([entry(each) for each in data])
    assert pieces == [b"publish a,b %b\n" % each for each in data if b"\n" not in each]
    joined, count = PLAIN.join([entry(each) for each in data], framable=False)
    assert (joined, count) == (b"".join(pieces), len(pieces))


def test_every_error_has_one_line() -> None:
    def leaves(error: type[CommandError]) -> list[type[CommandError]]:
        below = error.__subclasses__()
        return [leaf for each in below for leaf in leaves(each)] if below else [error]

    for error in leaves(CommandError):
        if error.__module__ == "mist.errors":
            assert re.fullmatch(rb"error [^\n]+\n", error_line(error()))
