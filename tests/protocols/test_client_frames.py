"""Reading a client's frames: two readers that together say what one would."""

import itertools
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import events
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.frame_protocol import FrameProtocol

from mist.protocols.client_frames import (
    Binary,
    Broken,
    Closed,
    Event,
    FrameMeter,
    FrameReader,
    Pinged,
    Text,
)
from tests.garbage import uncollected


def client_frame(
    first: int, payload: bytes, *, fin: bool = True, mask: bytes = b"m\x00\xffk"
) -> bytes:
    """One masked frame, as a client sends it."""
    first |= 0x80 if fin else 0
    size = len(payload)
    if size < 126:
        header = bytes([first, 0x80 | size])
    elif size < 65_536:
        header = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        header = struct.pack("!BBQ", first, 0x80 | 127, size)
    key = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
    return header + mask + masked.to_bytes(size, "big")


def plainly(stream: bytes) -> Iterator[Event]:
    """What a stream says, by wsproto alone and at once: what `FrameReader` has to say too."""
    parser = Connection(ConnectionType.SERVER)
    parser.receive_data(stream)
    message = b""
    for event in parser.events():
        match event:
            case events.TextMessage() | events.BytesMessage():
                is_text = isinstance(event, events.TextMessage)
                message += event.data.encode() if is_text else bytes(event.data)
                if event.message_finished:
                    yield Text(message) if is_text else Binary(message)
                    message = b""
            case events.Ping():
                yield Pinged(bytes(event.payload))
            case events.CloseConnection() if parser.state is ConnectionState.REMOTE_CLOSING:
                yield Closed(parser.send(event.response()))
                return
            case events.CloseConnection():
                yield Broken(int(event.code), "broken frame")
                return


def read(reader: FrameReader, pieces: list[bytes]) -> Iterator[Event]:
    for piece in pieces:
        for event in reader.receive(piece):
            yield event
            if isinstance(event, Closed | Broken):
                return


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


NO_LIMIT = 1 << 64  # wsproto, which is the measure here, has none either
payloads = st.one_of(
    st.text(max_size=60).map(str.encode),
    st.text(min_size=100, max_size=300).map(str.encode),
    st.binary(max_size=200),
)
whole_frames = st.builds(
    client_frame,
    st.sampled_from([1, 1, 1, 1, 2, 9, 10, 8, 0, 3, 0x41]),
    payloads,
    fin=st.sampled_from([True, True, True, False]),
    mask=st.binary(min_size=4, max_size=4),
)
cuts = st.lists(st.integers(0, 5_000), max_size=12)


def check(stream: bytes, cuts: list[int]) -> None:
    reader = FrameReader(NO_LIMIT)
    found, expected = list(read(reader, cut(stream, cuts))), list(plainly(stream))
    if reader.held and found != expected:
        # Of a frame that has not ended wsproto may say already that it is no UTF-8.
        assert isinstance(expected.pop(), Broken)
    assert found == expected


@given(st.lists(whole_frames, max_size=12).map(b"".join), cuts)
def test_frames_say_the_same_however_they_are_cut(stream: bytes, cuts: list[int]) -> None:
    check(stream, cuts)


@given(st.lists(st.binary(max_size=20) | whole_frames, max_size=8).map(b"".join), cuts)
def test_bytes_of_any_kind_say_the_same(stream: bytes, cuts: list[int]) -> None:
    check(stream, cuts)


closings = st.builds(
    lambda code, reason: client_frame(8, code.to_bytes(2) + reason),
    st.integers(0, 65_535)
    | st.integers(990, 1_020)
    | st.sampled_from([1_000, 1_001, 3_000, 4_999]),
    st.text(max_size=40).map(str.encode) | st.binary(max_size=123),
)


@given(closings, cuts)
def test_close_frames_of_every_code_and_reason_say_the_same(stream: bytes, cuts: list[int]) -> None:
    check(stream, cuts)


def test_what_clients_send_most_takes_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        client_frame(1, b"text"): [Text(b"text")],
        client_frame(1, b"longer" * 100): [Text(b"longer" * 100)],
        client_frame(9, b"?"): [Pinged(b"?")],
        client_frame(10, b""): [],
        client_frame(10, b"x" * 125) * 10_000: [],
        client_frame(8, b""): [Closed(b"\x88\x00")],
        client_frame(8, b"\x03\xe8"): [Closed(b"\x88\x02\x03\xe8")],
        client_frame(8, b"\x03\xe9left"): [Closed(b"\x88\x06\x03\xe9left")],
    }
    expected = {stream: list(plainly(stream)) for stream in said}
    monkeypatch.delattr("mist.protocols.client_frames.Connection")
    found = {stream: list(FrameReader(1_000).receive(stream)) for stream in said}
    assert found == said == expected


@given(st.integers(0, 8), st.integers(0, 8))
def test_no_parser_is_given_a_flood_of_pongs(before: int, behind: int) -> None:
    begun, ended = client_frame(1, b"be", fin=False), client_frame(0, b"gun")
    flood = begun + client_frame(10, b"pong") * 1_000 + ended
    given: list[bytes] = []

    class Recorded(Connection):
        def receive_data(self, data: bytes | None) -> None:
            given.append(data or b"")
            super().receive_data(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mist.protocols.client_frames.Connection", Recorded)
        pieces = [flood[:before], flood[before : len(flood) - behind], flood[len(flood) - behind :]]
        assert list(read(FrameReader(1_000), pieces)) == [Text(b"begun")]
    assert sum(map(len, given)) < 100


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 999, 1_000, 1_001])
def test_a_size_in_two_bytes_is_for_what_one_byte_cannot_say(size: int) -> None:
    frame = b"\x81\xfe" + size.to_bytes(2) + bytes(4) + b"a" * size
    for stream in (frame, client_frame(1, b"before") + frame):
        for place in (1, 2, 3, 4, 7):
            found = list(read(FrameReader(1_000), [stream[:-place], stream[-place:]]))
            said = Text(b"a" * size) if 126 <= size <= 1_000 else Broken
            assert found[-1] == said or type(found[-1]) is said


def test_between_messages_nothing_is_held() -> None:
    reader = FrameReader(1 << 20)
    sent = [
        client_frame(1, b"small"),
        client_frame(1, b"x" * 1_000),
        client_frame(1, b"in ", fin=False) + client_frame(9, b"?") + client_frame(0, b"two"),
        client_frame(2, b"binary"),
        client_frame(9, b""),
    ]
    for stream in sent:
        for byte in stream[:-1]:
            list(reader.receive(bytes([byte])))
        assert reader.held > 0
        [*_, last] = reader.receive(stream[-1:])
        assert reader.held == 0
        assert last in plainly(stream)


@pytest.mark.parametrize(
    "stream",
    [
        client_frame(1, b"x" * 70_000),
        client_frame(1, b"in ", fin=False) + client_frame(0, b"two"),
        client_frame(1, b"begun", fin=False),
        client_frame(2, b"begun")[:-1],
        client_frame(8, b"\x03\xec"),
        client_frame(3, b"no such opcode"),
        client_frame(1, b"\xff"),
        client_frame(1, b"x" * 2_000_000)[:100],
    ],
    ids=["large", "fragments", "a fragment", "part", "close", "broken", "no UTF-8", "too large"],
)
def test_nothing_is_left_for_the_garbage_collector(stream: bytes) -> None:
    """Where a server is busy it comes too late."""
    with uncollected(FrameProtocol) as left:
        for _ in range(3):
            reader = FrameReader(1 << 20)
            list(reader.receive(stream))
        del reader
    assert left == [0]


def test_a_message_too_large_is_told_before_it_has_come() -> None:
    reader = FrameReader(1_000)
    assert list(reader.receive(client_frame(1, b"x" * 1_000))) == [Text(b"x" * 1_000)]
    assert list(reader.receive(client_frame(1, b"x" * 1_001)[:8])) == [
        Broken(1009, "message too big")
    ]
    small = FrameReader(100)
    assert list(small.receive(client_frame(1, b"x" * 101))) == [Broken(1009, "message too big")]


@pytest.mark.parametrize("begun", [b"", client_frame(1, b"in ", fin=False)])
def test_what_stands_before_a_message_too_large_is_read_however_it_is_cut(begun: bytes) -> None:
    before = (
        client_frame(0 if begun else 1, b"time") + client_frame(9, b"?") + client_frame(2, b"b")
    )
    stream = begun + before + client_frame(1, b"x" * 101)
    told = [Text(b"in time" if begun else b"time"), Pinged(b"?"), Binary(b"b")]
    for step in range(1, len(stream) + 1):
        reader = FrameReader(100)
        found = read(reader, cut(stream, list(range(step, len(stream), step))))
        assert list(found) == [*told, Broken(1009, "message too big")]


def announced(opcode: int, size: int, *, fin: bool = True) -> bytes:
    """A frame of `size` bytes of anything."""
    return client_frame(opcode, b"x" * size, fin=fin)


sizes = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 8, 9, 10]), st.integers(0, 140), st.booleans()),
    max_size=20,
)


@given(sizes, st.lists(st.integers(0, 3_000), max_size=10))
def test_the_meter_measures_messages_however_they_are_cut(
    sent: list[tuple[int, int, bool]], cuts: list[int]
) -> None:
    size = count = 0
    fits = True
    for opcode, length, fin in sent:
        if opcode < 8:
            size, count = size + length, count + 1
            fits = fits and size <= 200 and count <= 3
            if fin:
                size = count = 0
    stream = b"".join(announced(opcode, length, fin=fin) for opcode, length, fin in sent)
    meter = FrameMeter(200, fragments=3)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    found = True
    for a, b in itertools.pairwise(edges):
        found = found and meter.count_fitting(stream[a:b]) == b - a
    assert found == fits


def test_a_message_too_large_is_known_from_its_header() -> None:
    assert FrameMeter(1_000).count_fitting(announced(1, 1_001)[:8]) == 0
    whole = announced(1, 1_000)
    assert FrameMeter(1_000).count_fitting(whole) == len(whole)
    assert FrameMeter(1_000).count_fitting(announced(2, 1 << 17)[:14]) == 0


def test_a_flood_of_empty_fragments_is_a_message_too_large() -> None:
    meter = FrameMeter(1_000)
    most = announced(1, 0, fin=False) * 1024
    assert meter.count_fitting(most) == len(most)
    assert meter.count_fitting(announced(0, 0, fin=False)) == 0
