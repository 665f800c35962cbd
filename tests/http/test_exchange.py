"""Requests and responses between a connection and an application that knows more than ASGI."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.config import Listen
from mist.http import HttpTransport
from mist.http.exchange import Disconnected, HandedOver, HandsOver
from mist.protocols.line.forms import PLAIN
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.http1 import chunk
from tests.http.client import Client

pytestmark = pytest.mark.usefixtures("no_warnings")

LISTEN = Listen("http", "127.0.0.1", 8080)
EVENTS = [(b"content-type", b"text/event-stream")]

App = Callable[[Any, Any, Any], Awaitable[None]]


def outbox() -> Outbox:
    return Outbox(PLAIN, OutboxLimits(), [])


def extension(scope: Any) -> HandsOver:
    found: HandsOver = scope["extensions"]["mist.connection"]
    return found


@asynccontextmanager
async def serving(app: App, *, sockets: bool) -> AsyncIterator[Client]:
    """A connection to an application, in memory or over a socket."""
    transport = HttpTransport(app, ConnectionLimiter(), LISTEN)
    async with trio.open_nursery() as nursery:
        if sockets:
            listeners = await nursery.start(
                trio.serve_listeners,
                lambda stream: transport.handle(stream, nursery),
                await trio.open_tcp_listeners(0, host="127.0.0.1"),
            )
            ours: trio.abc.Stream = await trio.testing.open_stream_to_socket_listener(listeners[0])
        else:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(transport.handle, theirs, nursery)
        yield Client(ours, "localhost")
        await trio.aclose_forcefully(ours)
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[True, False], ids=["socket", "memory"])
def sockets(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# a session's outbox


async def test_an_outbox_writes_a_stream_until_it_is_finished(sockets: bool) -> None:
    box = outbox()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = extension(scope).hand_over(box, EVENTS)
        for number in range(1_000):
            box.reply(b"data: %d\n\n" % number)
            box.flush()
        box.reply(b"event: end\n\n")
        box.close()
        await body.finish(10.0)

    async with serving(app, sockets=sockets) as client:
        async with client.stream("GET", "/") as response:
            assert response.status == 200
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["connection"] == "close"
            found = await response.read()
    assert found == b"".join(b"data: %d\n\n" % n for n in range(1_000)) + b"event: end\n\n"


async def test_chunks_leave_the_connection_to_the_next_request(sockets: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"body"
        box = outbox()
        body = extension(scope).hand_over(box, [], chunked=True)
        for piece in (b"one", scope["path"].encode()):
            box.reply(chunk(piece))
            box.flush()
        await body.finish(10.0)

    async with serving(app, sockets=sockets) as client:
        for number in range(3):
            response = await client.request("POST", f"/{number}", body=b"body")
            assert response.body == b"one/%d" % number
            assert response.headers["transfer-encoding"] == "chunked"


async def test_who_hangs_up_is_seen(sockets: bool) -> None:
    gone = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        box = outbox()
        body = extension(scope).hand_over(box, EVENTS)
        await body.until_gone()
        await body.finish(1.0)
        gone.set()

    async with serving(app, sockets=sockets) as client:
        await client.send_request("GET", "/")
        assert (await client.receive_head()).status == 200
        await client.connection.send_all(b"said meanwhile")
        await trio.testing.wait_all_tasks_blocked()
        assert not gone.is_set()
        await client.connection.aclose()
        await gone.wait()


async def test_a_request_behind_a_chunked_one_waits_for_its_turn(sockets: bool) -> None:
    bodies: list[HandedOver] = []
    begun = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        box = outbox()
        bodies.append(extension(scope).hand_over(box, [], chunked=True))
        begun.set()
        with trio.CancelScope() as watching:
            if scope["path"] == "/1":
                ended.append(watching)
                await bodies[-1].until_gone()
        box.reply(chunk(scope["path"].encode()))
        await bodies[-1].finish(10.0)

    ended: list[trio.CancelScope] = []
    async with serving(app, sockets=sockets) as client:
        await client.connection.send_all(
            b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        await begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(bodies) == 1
        ended[0].cancel()
        found = b""
        while b"/2" not in found:
            found += await client.receive_some()
        assert found.index(b"/1") < found.index(b"/2")


async def test_an_application_that_fails_first_answers_as_usual(sockets: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})
        with pytest.raises(RuntimeError, match="starts once"):
            extension(scope).hand_over(outbox(), EVENTS)

    async with serving(app, sockets=sockets) as client:
        for _ in range(2):
            assert (await client.request("GET", "/")).status == 403


async def test_one_who_does_not_read_is_waited_for_as_long_as_said(
    autojump_clock: MockClock,
) -> None:
    ended: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        box = outbox()
        body = extension(scope).hand_over(box, EVENTS)
        box.reply(bytes(1_000_000))
        started = trio.current_time()
        await body.finish(5.0)
        ended.append(trio.current_time() - started)

    transport = HttpTransport(app, ConnectionLimiter(), LISTEN)
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.handle, theirs, nursery)
        await ours.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert 4.9 < ended[0] < 7.1


# what ASGI says


async def test_a_body_comes_in_pieces_and_then_the_end(sockets: bool) -> None:
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            found.append(await receive())
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})
        found.append(await receive())

    async with serving(app, sockets=sockets) as client:
        await client.connection.send_all(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"
        )
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.connection.send_all(b"cde")
        assert (await client.receive_some()).startswith(b"HTTP/1.1 204 ")
    assert found == [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "body": b"cde", "more_body": False},
        {"type": "http.disconnect"},
    ]


async def test_the_scope_is_asgi_s(sockets: bool) -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    async with serving(app, sockets=sockets) as client:
        await client.request("PUT", "/a%20%C3%A4?b=%20", {"X-Y": "Z"})
    [scope] = scopes
    assert scope["method"] == "PUT"
    assert scope["path"] == "/a ä"
    assert scope["raw_path"] == b"/a%20%C3%A4"
    assert scope["query_string"] == b"b=%20"
    assert (b"x-y", b"Z") in scope["headers"]
    assert scope["http_version"] == "1.1"
    assert scope["state"]["listen"] is LISTEN


async def test_who_writes_to_one_who_is_gone_is_told(sockets: bool) -> None:
    told = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        try:
            while True:
                await send(
                    {"type": "http.response.body", "body": bytes(100_000), "more_body": True}
                )
        except Disconnected:
            told.set()
            raise

    async with serving(app, sockets=sockets) as client:
        await client.send_request("GET", "/")
        await client.receive_some()
        await client.connection.aclose()
        await told.wait()
