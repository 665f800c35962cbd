"""Where JSON objects end, however the stream is cut."""

import itertools
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.errors import LineTooLong
from mist.message import Limits
from mist.protocols.json.commands import read_one
from mist.protocols.json.objects import MAX_DEPTH, MAX_WORD, InvalidJson, ObjectReader


def read(pieces: list[bytes], limit: int = 200) -> list[bytes | str]:
    """What a stream holds, up to the first thing that isn't JSON."""
    reader = ObjectReader(limit)
    found: list[bytes | str] = []
    for piece in pieces:
        reader.feed(piece)
        while True:
            try:
                object_ = reader.next()
                if object_ is None:
                    break
                read_one(object_, Limits())
                found.append(object_)
            except LineTooLong:
                found.append("too long")
            except InvalidJson:
                return [*found, "invalid"]
    return found


def everyway(stream: bytes, limit: int = 200) -> list[bytes | str]:
    """What a stream holds: the same whole, byte by byte, and in pieces of three."""
    whole = read([stream], limit)
    for size in (1, 3):
        cut = [stream[n : n + size] for n in range(0, len(stream), size)]
        assert read(cut, limit) == whole
    return whole


A: bytes = b'{"a":1}'
DEEP = b'{"a":' * (MAX_DEPTH - 1) + b"{}" + b"}" * (MAX_DEPTH - 1)
NUMBER = b"1" * MAX_WORD

MIXED = b'{"\\u0061":[[],{},-0.5e+3,true,false,null,"x",0]}'

TABLE: list[tuple[bytes, list[bytes | str]]] = [
    (b"", []),
    (b" \t\r\n", []),
    (b"{}", [b"{}"]),
    (A + A + b" \t\r\n" + A + b"\n", [A, A, A]),
    (b'\n{ "a" :\n[ ] , "b":\t{ } }\n', [b'{ "a" :\n[ ] , "b":\t{ } }']),
    (b'{"a":"}\\"{"}{}', [b'{"a":"}\\"{"}', b"{}"]),
    (b'{"a":"\\\\"}{"b":"\\\\\\""}', [b'{"a":"\\\\"}', b'{"b":"\\\\\\""}']),
    (
        b'{"\\u0061":[[],{},-0.5e+3,true,false,null,"x",0]}',
        [b'{"\\u0061":[[],{},-0.5e+3,true,false,null,"x",0]}'],
    ),
    ('{"ü":"😀"}'.encode(), ['{"ü":"😀"}'.encode()]),
    # not ended
    (b"{", []),
    (b'{"a', []),
    (b'{"a":"\\', []),
    (b'{"a":"\\"}', []),
    (b'{"a":-', []),
    (b'{"a":1e', []),
    (b'{"a":[{"b":nul', []),
    # not JSON, seen where it can be
    (A + b"x", [A, "invalid"]),
    (A + b"," + A, [A, "invalid"]),
    (b"[" + A + b"]", ["invalid"]),
    (b'"a"', ["invalid"]),
    (b"1", ["invalid"]),
    (b"\x00", ["invalid"]),
    (b"\xef\xbb\xbf{}", ["invalid"]),
    (b"{bogus", ["invalid"]),
    (b"{1", ["invalid"]),
    (b"{]", ["invalid"]),
    (b"{{", ["invalid"]),
    (b"{,", ["invalid"]),
    (b"{:", ["invalid"]),
    (b'{"a"}', ["invalid"]),
    (b'{"a" 1', ["invalid"]),
    (b'{"a",', ["invalid"]),
    (b'{"a"::', ["invalid"]),
    (b'{"a":,', ["invalid"]),
    (b'{"a":}', ["invalid"]),
    (b'{"a":]', ["invalid"]),
    (b'{"a":1,}', ["invalid"]),
    (b'{"a":1,1', ["invalid"]),
    (b'{"a":1 "b"', ["invalid"]),
    (b'{"a":1:', ["invalid"]),
    (b'{"a":1]', ["invalid"]),
    (b'{"a":[}', ["invalid"]),
    (b'{"a":[1,]', ["invalid"]),
    (b'{"a":[1 2', ["invalid"]),
    (b'{"a":[1:', ["invalid"]),
    (b'{"a":[1}', ["invalid"]),
    (b'{"a":trux', ["invalid"]),
    (b'{"a":tru}', ["invalid"]),
    (b'{"a":tru,', ["invalid"]),
    (b'{"a":1.,', ["invalid"]),
    (b'{"a":[1e]', ["invalid"]),
    (b'{"a":TRUE', ["invalid"]),
    (b'{"a":NaN', ["invalid"]),
    (b'{"a":-I', ["invalid"]),
    (b'{"a":01', ["invalid"]),
    (b'{"a":+1', ["invalid"]),
    (b'{"a":1.}', ["invalid"]),
    (b'{"a":.5', ["invalid"]),
    (b'{"a":0x1', ["invalid"]),
    (b'{"a":1\x0c}', ["invalid"]),
    (b"{'a'", ["invalid"]),
    (b'{"a\n', ["invalid"]),
    (b'{"a":"\x1f', ["invalid"]),
    (b'{"a":"\x00"}', ["invalid"]),
    (b'{"a":"\\\n', ["invalid"]),
    (b'{"a":"\\q"}', ["invalid"]),
    (b'{"a":"\\u12"}', ["invalid"]),
    (b'{"a":"\xff"}', ["invalid"]),
    (b'{"\xff":1}', ["invalid"]),
    (b'{"a":"\xed\xa0\x80"}', ["invalid"]),  # a surrogate
    (b'{"a":"\\ud800"}', ["invalid"]),
    (b'{"a":"\\ud83d\\ude00"}', [b'{"a":"\\ud83d\\ude00"}']),
    # bounds
    (b'{"a":"' + b"x" * 192 + b'"}', [b'{"a":"' + b"x" * 192 + b'"}']),
    (b'{"a":"' + b"x" * 193 + b'"}' + A, ["too long", A]),
    (b'{"a":"' + b"\\" * 500 + b'"}' + A, ["too long", A]),
    (b'{"a":["' + b"x" * 200 + b'",{"b":"}"}]} ' + A, ["too long", A]),
    (b'{"a":"' + b"x" * 200 + b'",}', ["too long", "invalid"]),
    (b'{"a":' + b'{"b":' * 99, ["too long", "invalid"]),
]


@pytest.mark.parametrize(("stream", "meant"), TABLE, ids=[repr(row[0][:25]) for row in TABLE])
def test_a_stream_holds_the_same_objects_however_it_is_cut(
    stream: bytes, meant: list[bytes | str]
) -> None:
    assert everyway(stream) == meant


def test_nesting_has_a_bound_whatever_it_is_made_of() -> None:
    assert everyway(DEEP, 2_000) == [DEEP]
    for bomb in (b'{"a":' + DEEP + b"}", b'{"a":' + b"[" * 1_000, b'{"a":' * 100_000):
        assert everyway(bomb, 1 << 20) == ["invalid"]


def test_numbers_have_a_bound_and_below_it_any_size() -> None:
    for number in (NUMBER, b"-" + NUMBER[1:], b"1e" + b"9" * 500, b"1." + b"9" * 500):
        whole = b'{"x":' + number + b"}"
        assert everyway(whole, 2_000) == [whole]
        assert everyway(b'{"x":' + number + b"000000000000}", 2_000) == ["invalid"]
        assert everyway(b'{"x":[' + number + b"000000000000]}", 2_000) == ["invalid"]


NAMES = st.text(max_size=9)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e300, 1e300) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=5)
BLANKS = st.sampled_from(["", " ", "\n", "\r\n\t"])


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]), BLANKS)
def test_what_a_json_library_writes_is_read_object_by_object(
    objects: list[dict[str, object]], is_ascii: bool, indent: int | None, blank: str
) -> None:
    written = [json.dumps(each, ensure_ascii=is_ascii, indent=indent).encode() for each in objects]
    assert everyway(b"".join(each + blank.encode() for each in written), 100_000) == written


MARKS = [bytes((mark,)) for mark in b'{}[]:,"\\ \n1-.e0']
WORDS = [b'"a"', b"true", b"nul", b'{"a":', b'"b":', A, b"\xc3", b"\xa4", b"u00"]
SOUP = st.lists(st.sampled_from(MARKS + WORDS), max_size=30).map(b"".join)


@given(SOUP | st.binary(max_size=60), st.sets(st.integers(0, 150)), st.integers(5, 60))
def test_soup_means_the_same_cut_anywhere(soup: bytes, cuts: set[int], limit: int) -> None:
    stream = b'{"a":' + soup
    whole = everyway(stream, limit)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    assert read([stream[a:b] for a, b in itertools.pairwise(edges)], limit) == whole
    for object_ in whole:
        if isinstance(object_, bytes):
            assert isinstance(json.loads(object_), dict)
            assert len(object_) <= limit


@pytest.mark.parametrize("size", [1, 7, 1_000, 40_000])
def test_memory_held_is_that_of_the_bytes_in_whatever_pieces_they_come(size: int) -> None:
    reader = ObjectReader(50_000)
    reader.feed(b'{"a":"')
    assert reader.next() is None
    tracemalloc.start()
    try:
        for _ in range(49_000 // size):
            reader.feed(b"x" * size)
            assert reader.next() is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.held == 6 + 49_000 // size * size
    assert held < 1.25 * reader.held + 10_000


@pytest.mark.parametrize("filling", [b"x", b"\\", b'\\"', b"\xff"])
def test_an_object_without_end_holds_no_more_than_the_limit(filling: bytes) -> None:
    reader = ObjectReader(1_000)
    reader.feed(b'{"a":"')
    told = 0
    for _ in range(1_000):
        reader.feed(filling * 50)
        try:
            assert reader.next() is None
        except LineTooLong:
            told += 1
            assert reader.next() is None
        assert reader.held <= 1_000
    assert told == 1
    assert reader.held <= 1
    reader.feed(b'"}' + A)
    assert reader.next() == A


def test_what_comes_byte_by_byte_is_looked_at_once() -> None:
    # Not a timed test: were all of it looked at again for each byte, this would be 10 ** 11.
    reader = ObjectReader(1 << 20)
    stream = b'{"a":"' + b"\\\\" * 100_000 + b'","b":[' + b"1," * 20_000 + b"1]}"
    found = []
    for n in range(len(stream)):
        reader.feed(stream[n : n + 1])
        if (object_ := reader.next()) is not None:
            found.append(object_)
    assert found == [stream]
