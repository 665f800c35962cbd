"""Requests out of bytes: one table, fed whole, byte by byte, and cut at random places."""

import random
from collections.abc import Iterator

import attrs
import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.transports.http1 import BadRequest, RequestHead, RequestReader
from tests.deadline import deadline

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
MAX_HEAD = 1_000


@attrs.frozen
class Seen:
    """What was read of one request."""

    method: str
    target: bytes
    body: bytes
    keep_alive: bool = True
    version: str = "1.1"


def seen(body: bytes = b"", method: str = "POST", target: bytes = b"/") -> Seen:
    return Seen(method, target, body)


GOT = seen(b"", "GET")

# Bytes, and what they mean: requests, then the status of what is none.
TABLE: list[tuple[bytes, list[Seen | int]]] = [
    # heads
    (GET + b"\r\n", [GOT]),
    (b"\r\n\r\n" + GET + b"\r\n", [GOT]),
    (GET + b"\r\n" + GET + b"\r\n", [GOT, GOT]),
    (GET + b"\r\nGET / HT", [GOT]),
    (b"GET /%C3%A4?b=%20 HTTP/1.1\r\nhost:a\r\n\r\n", [seen(b"", "GET", b"/%C3%A4?b=%20")]),
    (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", [seen(b"", "OPTIONS", b"*")]),
    (b"GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n", [seen(b"", "GET", b"/c")]),
    (GET + b"Connection: close\r\n\r\n", [Seen("GET", b"/", b"", keep_alive=False)]),
    (GET + b"Connection: x, CLOSE\r\n\r\n", [Seen("GET", b"/", b"", keep_alive=False)]),
    (b"GET / HTTP/1.0\r\n\r\n", [Seen("GET", b"/", b"", keep_alive=False, version="1.0")]),
    (
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        [Seen("GET", b"/", b"", keep_alive=True, version="1.0")],
    ),
    (GET + b"X: a\r\n b\r\n\tc\r\n\r\n", [GOT]),
    # an offer to change the protocol changes nothing of the framing
    (POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc", [seen(b"abc")]),
    (
        POST + b"Connection: Upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\n" + GET + b"\r\n",
        [seen(b"abc"), GOT],
    ),
    (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + GET, [seen(b"", "CONNECT", b"a:80")]),
    # bodies
    (POST + b"Content-Length: 0\r\n\r\n" + GET + b"\r\n", [seen(), GOT]),
    (POST + b"Content-Length: 5\r\n\r\nhello" + GET + b"\r\n", [seen(b"hello"), GOT]),
    (POST + b"Content-Length: 5 \r\n\r\nhello", [seen(b"hello")]),
    (GET + b"Content-Length: 2\r\n\r\n\r\n" + GET + b"\r\n", [seen(b"\r\n", "GET"), GOT]),
    (CHUNKED + b"0\r\n\r\n" + GET + b"\r\n", [seen(), GOT]),
    (CHUNKED + b"5\r\nhello\r\n00A\r\n, everyone\r\n0\r\n\r\n", [seen(b"hello, everyone")]),
    (CHUNKED + b'1;a\r\nx\r\n1 ; b="c"\r\ny\r\n0;d\r\n\r\n', [seen(b"xy")]),
    (CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\nHost: evil\r\n\r\n" + GET + b"\r\n", [seen(b"x"), GOT]),
    (POST + b"Transfer-Encoding: CHUNKED\r\n\r\n1\r\nx\r\n0\r\n\r\n", [seen(b"x")]),
    (POST + b"Transfer-Encoding: chunked \r\n\r\n1\r\nx\r\n0\r\n\r\n", [seen(b"x")]),
    # what is no request
    (b"hello\r\n\r\n", [400]),
    (b"ping\n", [400]),  # another protocol's line, that waits for an answer
    (b"CONNECT {}\r\nPING\r\n", [400]),
    (b"\x16\x03\x01\x02\x00", [400]),
    (b"GET /\r\n\r\n", [400]),
    (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", [400]),
    (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", [400]),
    (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", [400]),
    (b"GET / RTSP/1.0\r\nHost: a\r\n\r\n", [400]),
    (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", [400]),
    (b"GET / x HTTP/1.1\r\nHost: a\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\nHost: a\n\n", [400]),
    (b"GET / HTTP/1.1\r\n\r\n", [400]),
    (GET + b"Host: b\r\n\r\n", [400]),
    (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", [400]),
    (GET + b"X : a\r\n\r\n", [400]),
    (GET + b"X\r\n\r\n", [400]),
    (GET + b": a\r\n\r\n", [400]),
    (GET + b"X: a\x00\r\n\r\n", [400]),
    (GET + b"X: a\rb\r\n\r\n", [400]),
    (GET + b"X: a\nY: b\r\n\r\n", [400]),
    (GET + b"X: " + b"x" * MAX_HEAD, [431]),
    (GET + b"X: " + b"x" * MAX_HEAD + b"\r\n\r\n", [431]),
    (GET + b"X: y\r\n" * MAX_HEAD + b"\r\n", [431]),
    (GET + b"\r\nhello\r\n\r\n", [GOT, 400]),
    # where a request ends must have one answer
    (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", [400]),
    (POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", [400]),
    (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", [400]),
    (POST + b"Content-Length: 5, 5\r\n\r\nhello", [400]),
    (POST + b"Content-Length: +5\r\n\r\nhello", [400]),
    (POST + b"Content-Length: 0x5\r\n\r\nhello", [400]),
    (POST + b"Content-Length: 5_0\r\n\r\nhello", [400]),
    (POST + b"Content-Length: \r\n\r\n", [400]),
    (POST + b"Content-Length: 99999999999999999999999\r\n\r\n", [400]),
    (POST + b"Content-Length : 5\r\n\r\nhello", [400]),
    (POST + b"Transfer-Encoding: gzip\r\n\r\n", [501]),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", [501]),
    (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", [501]),
    (POST + b"Transfer-Encoding: identity\r\n\r\n", [501]),
    (POST + b"Transfer-Encoding: xchunked\r\n\r\n", [501]),
    (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n", [400]),
    (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", [400]),
    (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", [400]),
    (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
    # chunks
    (CHUNKED + b"zz\r\nx\r\n", [400]),
    (CHUNKED + b"-1\r\nx\r\n", [400]),
    (CHUNKED + b"+1\r\nx\r\n", [400]),
    (CHUNKED + b"0x1\r\nx\r\n", [400]),
    (CHUNKED + b"1_0\r\nx\r\n", [400]),
    (CHUNKED + b" 1\r\nx\r\n", [400]),
    (CHUNKED + b"\r\n1\r\nx\r\n", [400]),
    (CHUNKED + b"1\nx\r\n0\r\n\r\n", [400]),
    (CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", [400]),
    (CHUNKED + b"1\r\nx\n0\r\n\r\n", [400]),
    (CHUNKED + b"1;a\nb\r\nx\r\n0\r\n\r\n", [400]),
    (CHUNKED + b"1;" + b"a" * 2_000, [400]),
    (CHUNKED + b"fffffffffffffffff\r\n", [400]),
    (CHUNKED + b"0\r\nA : b\r\n\r\n", [400]),
    (CHUNKED + b"0\r\n: b\r\n\r\n", [400]),
    (CHUNKED + b"0\r\nA: b\nC: d\r\n\r\n", [400]),
    (CHUNKED + b"0\r\n" + b"A: b\r\n" * MAX_HEAD, [400]),
    (CHUNKED + b"0\r\nA: " + b"b" * 2 * MAX_HEAD, [400]),
]


def read(pieces: Iterator[bytes]) -> list[Seen | int]:
    """All that is read out of bytes that come like this."""
    reader = RequestReader(MAX_HEAD)
    found: list[Seen | int] = []
    head: RequestHead | None = None
    body = b""
    try:
        for data in pieces:
            reader.receive_data(data)
            while head or (head := reader.next_head()):
                body += reader.read_body()
                if not reader.body_complete:
                    break
                found.append(
                    Seen(head.method, head.target, body, head.keep_alive, head.http_version)
                )
                head, body = None, b""
    except BadRequest as error:
        found.append(error.status)
    return found


def cut(text: bytes, random: random.Random) -> Iterator[bytes]:
    while text:
        size = random.choice([1, 2, 3, 10, 100, 1_000])
        yield text[:size]
        text = text[size:]


@pytest.mark.parametrize(("text", "meaning"), TABLE, ids=lambda value: repr(value)[:70])
def test_bytes_mean_the_same_however_they_arrive(text: bytes, meaning: list[Seen | int]) -> None:
    assert read(iter([text])) == meaning
    assert read(text[at : at + 1] for at in range(len(text))) == meaning
    for seed in range(20):
        assert read(cut(text, random.Random(seed))) == meaning


def test_a_head_is_bounded_to_the_byte() -> None:
    padding = MAX_HEAD - len(GET + b"X: \r\n\r\n")
    assert read(iter([GET + b"X: " + b"x" * padding + b"\r\n\r\n"])) == [GOT]
    assert read(iter([GET + b"X: " + b"x" * (padding + 1) + b"\r\n\r\n"])) == [431]


def test_a_head_request_is_known_even_where_it_can_not_be_read() -> None:
    for text in (b"HEAD / HTTP/1.1\r\n\r\n", b"HEAD / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD):
        reader = RequestReader(MAX_HEAD)
        reader.receive_data(text)
        with pytest.raises(BadRequest) as caught:
            reader.next_head()
        assert caught.value.bodiless


def test_headers_have_small_names_and_one_host() -> None:
    reader = RequestReader(MAX_HEAD)
    reader.receive_data(b"GET HTTP://b:1/ HTTP/1.1\r\nHost: a\r\nX-Y:  Z \r\nX-y: \r\n\r\n")
    head = reader.next_head()
    assert head is not None
    assert head.headers == [(b"x-y", b"Z"), (b"x-y", b""), (b"host", b"b:1")]


def test_blanks_around_a_value_are_none_of_it() -> None:
    reader = RequestReader(MAX_HEAD)
    reader.receive_data(b"GET / HTTP/1.1\r\nHost:\t a \t \r\nX:b c\t\r\n\r\n")
    head = reader.next_head()
    assert head is not None
    assert head.headers == [(b"host", b"a"), (b"x", b"b c")]


def test_a_folded_header_is_one_line() -> None:
    reader = RequestReader(MAX_HEAD)
    reader.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n .b\r\n\r\n")
    head = reader.next_head()
    assert head is not None
    assert head.headers == [(b"host", b"a .b")]


@pytest.mark.parametrize("blank", [b" ", b"\t "])
def test_blanks_beside_a_folded_header_are_gone_through_once(blank: bytes) -> None:
    value = b"a" + 1_000_000 * blank + b"b"
    reader = RequestReader(3_000_000)
    reader.receive_data(GET + b"X: " + value + b"\r\n c\r\n\r\n")
    with deadline(30):
        head = reader.next_head()
    assert head is not None
    assert head.headers == [(b"host", b"a"), (b"x", value + b" c")]


@given(st.lists(st.binary(min_size=1, max_size=30)), st.randoms(use_true_random=False))
def test_chunks_that_another_library_writes_are_read(
    pieces: list[bytes], random: random.Random
) -> None:
    client = h11.Connection(h11.CLIENT)
    headers = [("Host", "a"), ("Transfer-Encoding", "chunked")]
    sent = client.send(h11.Request(method="POST", target="/", headers=headers)) or b""
    for piece in pieces:
        sent += client.send(h11.Data(piece)) or b""
    sent += client.send(h11.EndOfMessage(headers=[("X", "y")])) or b""
    assert read(cut(sent + GET + b"\r\n", random)) == [seen(b"".join(pieces)), GOT]


@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_any_bytes_are_read_or_refused(text: bytes, random: random.Random) -> None:
    for begin in (b"", GET, CHUNKED):
        whole = read(iter([begin + text]))
        assert read(cut(begin + text, random)) == whole


def test_a_length_of_thousands_of_digits_is_no_request() -> None:
    reader = RequestReader(16_384)
    reader.receive_data(POST + b"Content-Length: %b5\r\n\r\nhello" % (b"0" * 5_000))
    with pytest.raises(BadRequest) as caught:
        reader.next_head()
    assert caught.value.status == 400
