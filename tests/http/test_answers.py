"""A whole response is the same bytes, written in one call or as ASGI has it."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.config import Listen
from mist.http import HttpTransport
from mist.http.answers import write
from mist.http.bodies import answer
from mist.http.guard import Guard
from mist.http.guarded import GuardLimits
from mist.http.problems import Problem
from mist.http.rates import Rates
from mist.protocols.line.forms import PLAIN
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins

LISTEN = Listen("http", "127.0.0.1", 8080)
HOST = b"Host: localhost\r\nX-Request-Id: one\r\n"

App = Callable[[Any, Any, Any], Awaitable[None]]


async def told(app: App, sent: bytes) -> bytes:
    """All that is answered to these bytes behind the guard, up to the end of the connection."""
    limiter, rates = ConnectionLimiter(), Rates(1e6, trio.current_time)
    limits = GuardLimits(body=100, body_seconds=10.0)
    guard = Guard(app, limiter, Origins(loopback=True), (), limits, rates)
    transport = HttpTransport(guard, limiter, LISTEN)
    transport.shared.date = lambda: b"Thu, 01 Jan 2026 00:00:00 GMT"
    ours, theirs = trio.testing.memory_stream_pair()
    found = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.handle, theirs, nursery)
        await ours.send_all(sent)
        await trio.testing.wait_all_tasks_blocked()
        await ours.send_eof()
        while piece := await ours.receive_some():
            found += piece
    return found


async def in_one_call(scope: Any, receive: Any, send: Any) -> None:
    await write(answer({"path": scope["path"]}, 201, [(b"location", b"/x")]), scope, receive, send)


async def as_asgi(scope: Any, receive: Any, send: Any) -> None:
    await answer({"path": scope["path"]}, 201, [(b"location", b"/x")])(scope, receive, send)


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize(
    ("sent", "answers", "ends"),
    [
        (b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n", 1, False),
        (b"GET /a HTTP/1.1\r\n" + HOST + b"\r\nGET /b HTTP/1.1\r\n" + HOST + b"\r\n", 2, False),
        (b"HEAD /a HTTP/1.1\r\n" + HOST + b"\r\nGET /b HTTP/1.1\r\n" + HOST + b"\r\n", 2, False),
        (b"GET /a HTTP/1.0\r\n" + HOST + b"\r\n", 1, True),
        (b"GET /a HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n", 1, False),
        (b"GET /a HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\nGET /b HTT", 1, True),
        (b"GET /a HTTP/1.1\r\n" + HOST + b"Origin: http://localhost:3000\r\n\r\n", 1, False),
        # A body that is there and is not read is passed over; one that isn't there ends it.
        (b"GET /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabcGET /b HT", 1, False),
        (b"GET /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nab", 1, True),
        (b"GET /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nab", 1, True),
        # What stands in a body is no request.
        (
            b"GET /a HTTP/1.1\r\n" + HOST + b"Content-Length: 20\r\n\r\nGET /b HTTP/1.1\r\n\r\n ",
            1,
            False,
        ),
        # Refused by the guard, which answers likewise.
        (b"GET /a HTTP/1.1\r\nHost: evil.example\r\nX-Request-Id: one\r\n\r\n", 1, False),
        (b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\n\r\n", 1, False),
    ],
)
async def test_what_is_written_in_one_call_is_what_asgi_writes(
    sent: bytes, answers: int, ends: bool
) -> None:
    found = await told(in_one_call, sent)
    assert found == await told(as_asgi, sent)
    assert found.count(b"HTTP/1.1 ") == answers
    assert (b"\r\nconnection: close\r\n" in found) == ends
    lengths = list(map(int, re.findall(rb"\r\ncontent-length: (\d+)\r\n", found)))
    assert len(lengths) == answers
    heads = [part.rpartition(b"\r\n\r\n") for part in found.split(b"HTTP/1.1 ")[1:]]
    bodies = [len(body) for *_, body in heads]
    assert bodies == [
        0 if sent.startswith(b"HEAD ") and not n else size for n, size in enumerate(lengths)
    ]


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "a\rb", "a\0b"])
async def test_an_answer_with_a_header_that_would_be_two_is_not_written(value: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise Problem(400, "code", "detail", {"X-Y": value})

    assert await told(app, b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n") == b""


@pytest.mark.usefixtures("no_warnings")
async def test_a_response_is_written_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await in_one_call(scope, receive, send)
        connection = scope["extensions"]["mist.connection"]
        with pytest.raises(RuntimeError, match="starts once"):
            await in_one_call(scope, receive, send)
        with pytest.raises(RuntimeError, match="starts once"):
            await as_asgi(scope, receive, send)
        with pytest.raises(RuntimeError, match="starts once"):
            connection.hand_over(Outbox(PLAIN, OutboxLimits(), []), [])

    found = await told(app, 2 * (b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"))
    assert found.count(b"HTTP/1.1 201 ") == 2
