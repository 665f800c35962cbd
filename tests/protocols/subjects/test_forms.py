"""Deliveries to NATS clients, read back by a plain reader of the format."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.message import Envelope
from mist.protocols.subjects.forms import HEADERS, REPLY, subject_form, subject_of
from mist.wire import Entry, TagList

BLOCK = b"NATS/1.0\r\na: b\r\n\r\n"

Delivery = tuple[str, str, str, bytes, bytes]  # subject, sid, reply, headers, data


def read(wire: bytes) -> list[Delivery]:
    """What a client understands."""
    found = []
    while wire:
        line, wire = wire.split(b"\r\n", 1)
        word, subject, sid, *rest = line.decode().split()
        sizes = 2 if word == "HMSG" else 1
        assert word in ("MSG", "HMSG")
        reply = rest[0] if len(rest) > sizes else ""
        size = int(rest[-1])
        split = int(rest[-2]) if sizes == 2 else 0
        assert wire[size : size + 2] == b"\r\n"
        found.append((subject, sid, reply, wire[:split], wire[split:size]))
        wire = wire[size + 2 :]
    return found


def entry(tags: str, *datas: bytes) -> Entry:
    tag_list = TagList(frozenset(tags.split(",")))
    wire = b"".join(b"%b%b\n" % (tag_list.head, data) for data in datas)
    return tag_list, wire, len(datas)


runs = st.lists(st.binary(max_size=20).filter(lambda data: b"\n" not in data), min_size=2)
alike = st.lists(st.sampled_from([b"ab", b"\r\r", b"  "]), min_size=2)
singles = st.binary(max_size=20).map(lambda data: [data])
fan_outs = st.lists(
    st.builds(
        lambda tags, datas: entry(tags, *datas),
        st.sampled_from([".a", ".a.b,x", "plain", "/topic"]),
        st.one_of(runs, alike, singles),
    ),
    max_size=6,
)
envelopes = st.sampled_from(
    [
        None,
        Envelope(),
        Envelope(meta={"guble.user": b"u"}),
        Envelope(meta={REPLY: b"r.1"}),
        Envelope(meta={REPLY: b"r.1", HEADERS: BLOCK}),
        Envelope(meta={HEADERS: BLOCK}),
    ]
)


@given(fan_outs, envelopes, st.booleans())
def test_a_client_reads_what_was_published(
    entries: list[Entry], envelope: Envelope | None, headers: bool
) -> None:
    form = subject_form(b"7", headers)
    meta = (envelope and envelope.meta) or {}
    block = meta.get(HEADERS, b"") if headers else b""
    expected = [
        (subject_of(tag_list.tags), "7", meta.get(REPLY, b"").decode(), block, data)
        for tag_list, wire, count in entries
        if subject_of(tag_list.tags)
        for data in tag_list.split(wire, count)
    ]
    for framable in (False, True):
        wire, count = form.join(entries, framable=framable, envelope=envelope)
        assert read(wire) == expected
        assert count == len(expected)
    pieces = form.pieces(entries, envelope=envelope)
    assert [each for piece in pieces for each in read(piece)] == expected
    assert len(pieces) == len(expected)


@pytest.mark.parametrize(
    ("envelope", "headers", "wire"),
    [
        (None, True, b"MSG foo.bar 7 5\r\nhello\r\n"),
        (Envelope(meta={REPLY: b"r.1"}), False, b"MSG foo.bar 7 r.1 5\r\nhello\r\n"),
        (
            Envelope(meta={HEADERS: BLOCK}),
            True,
            b"HMSG foo.bar 7 18 23\r\n" + BLOCK + b"hello\r\n",
        ),
        (
            Envelope(meta={HEADERS: BLOCK, REPLY: b"r"}),
            True,
            b"HMSG foo.bar 7 r 18 23\r\n" + BLOCK + b"hello\r\n",
        ),
        (Envelope(meta={HEADERS: BLOCK}), False, b"MSG foo.bar 7 5\r\nhello\r\n"),
    ],
)
def test_a_delivery_to_the_byte(envelope: Envelope | None, headers: bool, wire: bytes) -> None:
    form = subject_form(b"7", headers)
    entries = [entry(".foo.bar,x", b"hello")]
    assert form.join(entries, framable=True, envelope=envelope) == (wire, 1)
    assert form.pieces(entries, envelope=envelope) == [wire]


def test_all_with_one_sid_have_one_form_for_as_long_as_anybody_has_it() -> None:
    form = subject_form(b"gone")
    assert subject_form(b"gone") is form
    assert subject_form(b"gone", headers=True) is not form
    gone = weakref.ref(form)
    del form
    gc.collect()
    assert gone() is None
    assert subject_form(b"gone").pieces([entry(".a", b"x")]) == [b"MSG a gone 1\r\nx\r\n"]
