"""Replies find their requests, however the bytes are cut."""

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.client.dialect import PublishFailed, ReplayStarted, ReplayUnplaced, Request, Response
from mist.client.line import LineDialect
from mist.commands import (
    ListSubscriptions,
    ListTags,
    Ping,
    Register,
    Resume,
    SetAttributes,
    ShowAttributes,
    ShowTags,
    Since,
    Subscribe,
    Who,
)
from mist.errors import ProtocolViolation
from mist.message import Message
from mist.replies import Connections, Done, Failed, Subscriptions, Tags, TokenAttributes

A = frozenset("a")
PUBLISH = b"publish a x\n"
REGISTER = Register(tags=A, token="T")
SET = SetAttributes("T", Attributes(user="ü &", groups=frozenset("ab")), frozenset(["plan"]))
OK, REFUSED = "done", "refused"

# what is sent, what of it goes on the wire, what comes back, what that means
TABLE = [
    ([Ping()], b"ping\n", b"pong\n", [OK]),
    ([REGISTER], b"register a T\nping\n", b"pong\n", [OK]),
    ([SET], b"set-attr T groups=a;b&user=%C3%BC%20%26&plan=\nping\n", b"pong\n", [OK]),
    ([ShowAttributes("T")], b"attr T\n", b"attr T user=1\n",
     [TokenAttributes(Attributes(user="1"))]),
    ([ShowAttributes("T")], b"attr T\n", b"attr T \n", [TokenAttributes(NO_ATTRIBUTES)]),
    ([REGISTER], b"register a T\nping\n", b"error no\npong\n", [(REFUSED, "no")]),
    # the same error, of a publish before it and of the command itself
    ([PUBLISH, REGISTER], PUBLISH + b"ping\nregister a T\nping\n",
     b"error no\npong\npong\n", [PublishFailed("no"), OK]),
    ([PUBLISH, REGISTER], PUBLISH + b"ping\nregister a T\nping\n",
     b"pong\nerror no\npong\n", [(REFUSED, "no")]),
    ([PUBLISH, Ping()], PUBLISH + b"ping\n", b"error 1\nerror 2\npong\n",
     [PublishFailed("1"), PublishFailed("2"), OK]),
    ([PUBLISH], PUBLISH, b"error no\n", [PublishFailed("no")]),
    # the error is the answer, and no fence follows
    ([ShowTags("T"), Who()], b"tags T\nwho\n", b"error no\nwho 1 2\n",
     [(REFUSED, "no"), Connections(1, 2)]),
    ([ShowTags("T")], b"tags T\n", b"tags T a,b\n", [Tags(frozenset("ab"))]),
    ([ShowTags("T")], b"tags T\n", b"tags T {{a}}\n", [Tags(frozenset(["{a}"]))]),
    ([ShowTags("T")], b"tags T\n", b"tags T \n", [Tags(frozenset())]),
    ([ListSubscriptions()], b"list\n", b"list \n", [Subscriptions([])]),
    ([ListSubscriptions()], b"list\n", b"list a,b {c}\n", [Subscriptions([b"a,b", b"{c}"])]),
    ([ListSubscriptions()], b"list\n", b"list {a,b} {{c}}\n", [Subscriptions([b"a,b", b"{c}"])]),
    ([ListTags()], b"listall\n", b"listall a b\n", [Tags(frozenset("ab"))]),
    ([Resume([A, frozenset("bc")], Since(after=7, epoch="E"))],
     b"last\nresume E:7 a b,c\nping\n",
     b"last E 9\npong\n", [("E", 9), OK]),
    ([Resume([frozenset(["{a}"])], Since(last=2))], b"last\nresume -2 {{a}}\nping\n",
     b"last E 9\npong\n", [("E", 9), OK]),
    # it replays, and doesn't know where: only `last` asks an engine
    ([Resume([A], Since(after=7))], b"last\nresume 7 a\nping\n",
     b"error no\npublish a 1\npong\n", [("unplaced", "no"), Message(A, b"1"), OK]),
    ([Resume([A], Since(after=7))], b"last\nresume 7 a\nping\n",
     b"error no\nerror 2\npong\n", [("unplaced", "no"), (REFUSED, "2")]),
    ([Subscribe(A)], b"subscribe a\nping\n",
     b"publish a,b pong\npong\npublish a 1\\n\\\\n\\r\n",
     [Message(frozenset("ab"), b"pong"), OK, Message(A, b"1\n\\n\r")]),
    ([], b"", b"publish a \n", [Message(A, b"")]),
]  # fmt: skip


def meaning(event: object) -> object:
    match event:
        case Response(_, Done()):
            return OK
        case Response(_, Failed(error)):
            return (REFUSED, str(error))
        case Response(_, reply):
            return reply
        case ReplayStarted(_, epoch, id_):
            return epoch, id_
        case ReplayUnplaced(_, text):
            return "unplaced", text
    return event


def run(items: list, chunks: list[bytes]) -> tuple[bytes, list[object], LineDialect]:
    dialect = LineDialect()
    sent = [item if isinstance(item, bytes) else Request(item) for item in items]
    wire = b"".join(dialect.write(sent))
    found = [meaning(event) for chunk in chunks for event in dialect.receive(chunk)]
    return wire, found, dialect


@pytest.mark.parametrize(("items", "wire", "back", "expected"), TABLE)
def test_whole_and_byte_by_byte(items: list, wire: bytes, back: bytes, expected: list) -> None:
    assert run(items, [back])[:2] == (wire, expected)
    assert run(items, [bytes([byte]) for byte in back])[:2] == (wire, expected)


@given(st.sampled_from(TABLE), st.lists(st.integers(0, 60)))
def test_cut_anywhere(row: tuple, cuts: list[int]) -> None:
    items, wire, back, expected = row
    places = sorted({0, len(back), *(cut for cut in cuts if cut < len(back))})
    chunks = [back[a:b] for a, b in itertools.pairwise(places)]
    assert run(items, chunks)[:2] == (wire, expected)


def test_unconfirmed_counts_what_no_fence_has_come_back_for() -> None:
    dialect = run([PUBLISH, PUBLISH, Ping(), PUBLISH], [])[2]
    assert dialect.unconfirmed == 3
    list(dialect.receive(b"pong\n"))
    assert dialect.unconfirmed == 1


def test_a_server_that_hangs_up_on_a_command_has_answered_it() -> None:
    dialect = run([REGISTER, Who()], [b"error Unauthorized\n"])[2]
    events, unanswered = dialect.close()
    assert [meaning(event) for event in events] == [(REFUSED, "Unauthorized")]
    assert [attrs.evolve(it).command for it in unanswered] == [Who()]


@pytest.mark.parametrize("line", [b"pong\n", b"who 1 2\n", b"what\n", b"\n", b"publish a\n"])
def test_what_was_not_asked_ends_the_connection(line: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        run([ListSubscriptions()], [line])
