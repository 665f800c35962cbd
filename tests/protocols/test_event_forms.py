"""Deliveries as Server-Sent Events."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.protocols.event_forms import (
    COMMENT,
    EventForm,
    end_event,
    notice_event,
    ready_event,
)
from mist.replies import Resumed, Revoked
from mist.wire import Batch, TagList
from tests.http.events import EventReader

FORM = EventForm("e1")


def entry(tags: str, *messages: bytes) -> tuple[TagList, bytes, int]:
    tag_list = TagList(frozenset(tags.split(",")))
    wire = b"".join(tag_list.head + message + b"\n" for message in messages)
    return tag_list, wire, len(messages)


def test_a_message_has_its_place_and_its_json() -> None:
    assert FORM.pieces([entry("b,a", b"hi")], firsts=[17]) == [
        b'id: e1:17\ndata: {"keys":["a","b"],"data":"hi","id":17}\n\n'
    ]


def test_without_a_history_it_has_no_id() -> None:
    form = EventForm(None)
    assert form.pieces([entry("a", b"hi")]) == [b'data: {"keys":["a"],"data":"hi"}\n\n']


@pytest.mark.parametrize("firsts", [None, [5]])
def test_what_is_no_text_comes_in_base64_and_what_is_beside_it_does_not(
    firsts: list[int] | None,
) -> None:
    pieces = FORM.pieces([entry("a", b"text", b"\xff\x00", "ü".encode())], firsts=firsts)
    reader = EventReader()
    data = [event.data for event in reader.receive(b"".join(pieces))]
    ids = [{}, {}, {}] if firsts is None else [{"id": 5}, {"id": 6}, {"id": 7}]
    assert data == [
        {"keys": ["a"], "data": "text"} | ids[0],
        {"keys": ["a"], "data64": base64.b64encode(b"\xff\x00").decode()} | ids[1],
        {"keys": ["a"], "data": "ü"} | ids[2],
    ]


def test_runs_count_their_ids_on() -> None:
    pieces = FORM.pieces([entry("a", b"1", b"2"), entry("b", b"3")], firsts=[7, 20])
    assert [piece.partition(b"\n")[0] for piece in pieces] == [
        b"id: e1:7",
        b"id: e1:8",
        b"id: e1:20",
    ]


NASTY = [
    "\n\n",
    "\r",
    "\r\n",
    "\u2028",
    "\u2029",
    "\x85",
    "\x0b\x0c\x1c\x1d\x1e",
    "\n\nevent: end\ndata: {}\n\n",
    "\r\rid: e2:99\r\r",
    "\u2028\u2028data: forged\u2028",
    "\x00",
    "%d%b",
    '"}',
    "\ufeff",
]


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("firsts", [None, [3]])
def test_no_data_ends_an_event_or_begins_another(text: str, firsts: list[int] | None) -> None:
    wire, _ = FORM.join([entry("a", text.encode())], framable=False, firsts=firsts)
    reader = EventReader()
    (event,) = reader.receive(wire)
    assert (event.name, event.data["data"]) == ("message", text)
    assert reader.last_id == ("" if firsts is None else "e1:3")
    # Readers that split lines as Unicode does see the same lines.
    assert wire.decode().splitlines() == wire.decode().split("\n")[:-1]


@given(st.lists(st.binary() | st.text().map(str.encode), min_size=1, max_size=5), st.booleans())
def test_whatever_is_published_is_what_is_read(messages: list[bytes], numbered: bool) -> None:
    entries = [entry("a,b", message) for message in messages]
    firsts = list(range(1, 1 + len(messages))) if numbered else None
    wire, count = FORM.join(entries, framable=False, firsts=firsts)
    assert count == len(messages)
    events = EventReader().receive(wire)
    read = [
        base64.b64decode(event.data["data64"])
        if "data64" in event.data
        else event.data["data"].encode()
        for event in events
    ]
    assert read == messages
    assert [event.data.get("id") for event in events] == (firsts or [None] * len(messages))
    assert len(wire.decode().splitlines()) == (3 if numbered else 2) * len(messages)


def test_no_tag_breaks_an_event_either() -> None:
    (piece,) = FORM.pieces([entry("a\u2028b,\u2029", b"x")], firsts=[1])
    assert piece.isascii()
    (event,) = EventReader().receive(piece)
    assert event.data["keys"] == ["a\u2028b", "\u2029"]


@pytest.mark.parametrize("epoch", ["", "a\nb", "a\rb", "a:b", "ü", "a b", "\0", "x" * 256])
def test_an_epoch_that_could_break_an_event_is_refused(epoch: str) -> None:
    with pytest.raises(ValueError, match="epoch"):
        EventForm(epoch)


def test_all_streams_share_a_messages_bytes() -> None:
    broker = Broker()
    outboxes = [Outbox(FORM, OutboxLimits(), broker.ready) for _ in range(3)]
    for outbox in outboxes:
        broker.subscribe(outbox, frozenset({"a"}))
    broker.publish(Batch.of(frozenset({"a"}), b"x"), first=1)
    first = outboxes[0].peek()
    assert first
    assert all(outbox.peek() is first for outbox in outboxes)


def test_what_is_said_beside_messages() -> None:
    assert ready_event(None) == (
        b'event: ready\ndata: {"epoch":null,"id":null,"recovered":null}\n\n'
    )
    resumed = Resumed("e1", 9, False, 4)
    ready = b'event: ready\ndata: {"epoch":"e1","id":9,"recovered":false}\n\n'
    assert ready_event(resumed) == ready
    assert ready_event(resumed, is_place=True) == b"id: e1:9\n" + ready
    assert notice_event(resumed) == b'event: gap\ndata: {"epoch":"e1","id":4}\n\n'
    assert notice_event(Revoked(frozenset({"b", "a"}))) == (
        b'event: revoked\ndata: {"tags":["a","b"]}\n\n'
    )
    assert end_event(4401, "token revoked") == (
        b'event: end\ndata: {"code":4401,"reason":"token revoked"}\n\n'
    )
    reader = EventReader()
    assert reader.receive(COMMENT) == []
    assert reader.comments == 1
