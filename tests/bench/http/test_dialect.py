"""HTTP as a dialect: bytes that are sent, and answers told apart."""

import socket
from collections.abc import Iterator

import pytest

from mist.bench.errors import BenchError, HungUp, UnexpectedBytes
from mist.bench.http.dialect import Http
from mist.bench.http.requests import read_answer

ANSWER = b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(5)
        yield here, there


def test_requests_carry_the_credential_that_is_theirs() -> None:
    both = Http("example.org:8080", "T0ken", "s3cret")
    assert both.post(["a", "b"], b"hi") == (
        b"POST /v1/messages HTTP/1.1\r\nHost: example.org:8080\r\n"
        b"Authorization: Bearer s3cret\r\nContent-Type: application/json\r\n"
        b'Content-Length: 34\r\n\r\n{"tags": ["a", "b"], "data": "hi"}'
    )
    assert b"\r\nConnection: close\r\n" in both.post(["a"], b"hi", close=True)
    assert both.subscribe(["a", "b&c"]) == (
        b"GET /v1/stream?tags=a%2Cb%26c HTTP/1.1\r\nHost: example.org:8080\r\n"
        b"X-Auth-Token: T0ken\r\nConnection: close\r\n\r\n"
    )
    assert b"Authorization: Bearer s3cret\r\n" in Http("h", None, "s3cret").subscribe(["a"])
    assert b"Auth" not in Http("h").subscribe(["a"]) + Http("h").publish(["a"], b"hi")


def test_a_stream_that_begins_is_told_from_a_refusal() -> None:
    http = Http("h")
    http.check(b"HTTP/1.1 200 \r\n\r\n17\r\nevent: ready\ndata: {}\n\n\r\n")
    http.check(b"")
    for wrong in (b"HTTP/1.1 401 \r\n\r\n{}", b"HTTP/1.1 200 \r\n\r\nevent: end\ndata: {}\n\n"):
        with pytest.raises(UnexpectedBytes):
            http.check(wrong)


def test_a_comment_is_passed_over() -> None:
    assert Http("h").control(b"data: x\n\n\r\n3\r\n:\n\n\r\n", 11) == (8, b"")
    assert Http("h").control(b"3\r\n:\n", 0) is None
    assert Http("h").control(b"9\r\ndata: x\n\n\r\n", 0) is None


def test_an_answer_is_whole_however_it_comes(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    for cut in range(1, len(ANSWER)):
        there.sendall(ANSWER[:cut])
        here.recv(1, socket.MSG_PEEK)
        there.sendall(ANSWER[cut:])
        assert read_answer(here) == ANSWER


@pytest.mark.parametrize(
    "wrong",
    [
        ANSWER + b"more",
        b"HTTP/1.1 202 Accepted\r\n\r\n{}",
        b"HTTP/1.1 202 Accepted\r\nContent-Length: two\r\n\r\n{}",
        ANSWER[:-1],
    ],
)
def test_an_answer_of_another_length_is_an_error(
    wrong: bytes, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    there.sendall(wrong)
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(UnexpectedBytes):
        read_answer(here)


def test_no_answer_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    here.settimeout(0.001)
    with pytest.raises(BenchError, match="no answer"):
        read_answer(here)
    there.close()
    with pytest.raises(HungUp):
        read_answer(here)
