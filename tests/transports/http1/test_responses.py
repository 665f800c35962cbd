"""Responses as bytes, read back by another library."""

import h11
import pytest

from mist.transports.http1 import LAST_CHUNK, ResponseWriter, chunk, response_head

DATE = b"Thu, 01 Jan 2026 00:00:00 GMT"
LENGTH = (b"Content-Length", b"5")


def writer(method: str = "GET", version: str = "1.1", *, keep_alive: bool = True) -> ResponseWriter:
    return ResponseWriter(to_head=method == "HEAD", http_version=version, keep_alive=keep_alive)


def written(
    response: ResponseWriter,
    *pieces: bytes,
    status: int = 200,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    """All that a response of these pieces becomes."""
    response.start(status, headers)
    last = len(pieces) - 1
    return b"".join(
        response.body(piece, more=number < last, date=DATE) for number, piece in enumerate(pieces)
    )


def read(wire: bytes, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes, bool]:
    """Status, headers, body, and whether the connection goes on, as a client sees them."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(wire)
    head = client.next_event()
    assert isinstance(head, h11.Response)
    body = b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(b"")
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            assert isinstance(event, h11.EndOfMessage)
            break
    return head.status_code, dict(head.headers), body, client.their_state is h11.DONE


@pytest.mark.parametrize(
    ("pieces", "headers", "framing"),
    [
        ([b"hello"], (), (b"content-length", b"5")),
        ([b"hello"], (LENGTH,), (b"content-length", b"5")),
        ([b"he", b"llo"], (LENGTH,), (b"content-length", b"5")),
        ([b"he", b"", b"llo", b""], (), (b"transfer-encoding", b"chunked")),
        ([b"he", b"llo"], ((b"Transfer-Encoding", b"x"),), (b"transfer-encoding", b"chunked")),
    ],
)
def test_a_body_is_framed_so_that_a_client_sees_its_end(
    pieces: list[bytes],
    headers: tuple[tuple[bytes, bytes], ...],
    framing: tuple[bytes, bytes],
) -> None:
    response = writer()
    status, found, body, goes_on = read(written(response, *pieces, headers=headers))
    assert (status, body, goes_on) == (200, b"hello", True)
    assert framing in found.items()
    assert len(found) == 2
    assert found[b"date"] == DATE
    assert response.complete
    assert response.keep_alive


def test_an_old_client_is_told_the_end_by_the_connection() -> None:
    response = writer(version="1.0")
    wire = written(response, b"he", b"llo")
    assert wire.endswith(b"\r\nconnection: close\r\n\r\nhello")
    assert not response.keep_alive
    kept = writer(version="1.0")
    assert b"\r\nconnection: keep-alive\r\n" in written(kept, b"hello")
    assert kept.keep_alive


@pytest.mark.parametrize("headers", [(), (LENGTH,)])
def test_the_answer_to_head_has_headers_only(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    wire = written(writer("HEAD"), b"hello", headers=headers)
    status, found, body, goes_on = read(wire, "HEAD")
    assert (status, found[b"content-length"], body, goes_on) == (200, b"5", b"", True)


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status: int) -> None:
    found, headers, body, goes_on = read(written(writer(), b"hello", status=status))
    assert (found, body, goes_on) == (status, b"", True)
    assert b"transfer-encoding" not in headers
    assert b"content-length" not in headers


def test_no_content_has_no_length() -> None:
    assert b"ength" not in written(writer(), b"", status=204, headers=((b"Content-Length", b"0"),))


def test_a_connection_that_ends_says_so() -> None:
    for response, headers in (
        (writer(keep_alive=False), ()),
        (writer(), ((b"Connection", b"Close"),)),
    ):
        _, found, _, goes_on = read(written(response, b"x", headers=headers))
        assert found[b"connection"] == b"close"
        assert not goes_on
        assert not response.keep_alive


def test_a_body_longer_than_it_said_is_a_mistake_and_is_not_written() -> None:
    response = writer()
    response.start(200, [LENGTH])
    assert response.body(b"hello", more=True, date=DATE).endswith(b"\r\n\r\nhello")
    with pytest.raises(RuntimeError, match="longer"):
        response.body(b"!", more=False, date=DATE)
    assert not response.keep_alive


def test_a_body_shorter_than_it_said_ends_the_connection() -> None:
    response = writer()
    written(response, b"hell", headers=(LENGTH,))
    assert response.complete
    assert not response.keep_alive


def test_parts_come_in_order_or_not_at_all() -> None:
    response = writer()
    with pytest.raises(RuntimeError):
        response.body(b"", more=False, date=DATE)
    response.start(200, [])
    with pytest.raises(RuntimeError):
        response.start(200, [])
    response.body(b"", more=False, date=DATE)
    with pytest.raises(RuntimeError):
        response.body(b"", more=False, date=DATE)


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nX: y", b"a\rb", b"a\0b", b"a\r\n\r\nbody"])
def test_no_value_becomes_another_header(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        response_head(200, [(b"x", value)])
    with pytest.raises(ValueError, match="line break"):
        response_head(200, [(value, b"x")])


def test_a_status_without_a_name_is_written_too() -> None:
    assert response_head(299, []) == b"HTTP/1.1 299 \r\n\r\n"


def test_the_head_of_a_stream_leaves_its_body_to_others() -> None:
    response = writer()
    response.start(200, [])
    wire = response.head_of_stream(DATE, chunked=True) + chunk(b"a" * 20) + LAST_CHUNK
    assert read(wire)[2:] == (b"a" * 20, True)
    ended = writer()
    ended.start(200, [])
    assert read(ended.head_of_stream(DATE, chunked=False) + b"abc")[2:] == (b"abc", False)
    assert not ended.keep_alive
    old = writer(version="1.0")
    old.start(200, [])
    with pytest.raises(ValueError, match="chunks"):
        old.head_of_stream(DATE, chunked=True)
