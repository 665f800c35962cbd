"""HTTP connections, as an attacker and as a slow network see them.

The application behind is a small one; the guard and the transport are the real ones, over
streams in memory, so that an hour passes at once.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from trio.testing import MockClock

from mist.config import Listen
from mist.http import HttpTransport
from mist.http.bodies import answer
from mist.http.guard import Guard
from mist.http.guarded import GuardLimits
from mist.http.problems import Problem, answer_of, mistake
from mist.http.rates import Rates
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins
from mist.turns import Account, Turns
from tests.http.client import Client
from tests.passes import counted

LISTEN = Listen("http", "127.0.0.1", 8080)
LIMITS = GuardLimits(body=100_000, body_seconds=10.0)
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
LARGE = 10_000_000


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem | HTTPException)
    return answer_of(error)


async def failed(request: Request, error: Exception) -> Response:
    return mistake().response()


class Site:
    """An application, and what became of its requests."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.go_on = trio.Event()
        self.asked = trio.Event()
        self.bodies: list[bytes] = []

    async def hello(self, request: Request) -> Response:
        return answer({"query": request.url.query, "host": request.headers["host"]})

    async def take(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        return answer({"size": len(self.bodies[-1])})

    async def refuse(self, request: Request) -> Response:
        await trio.sleep(1.0)  # as for a wrong token, which isn't told so at once
        raise Problem(401, "unauthorized", "no")

    async def large(self, request: Request) -> Response:
        return Response(bytes(LARGE))

    async def wait(self, request: Request) -> Response:
        self.asked.set()
        await self.go_on.wait()
        return answer("done")

    async def drip(self, request: Request) -> Response:
        async def content() -> AsyncIterator[bytes]:
            yield b"begun"
            await request.receive()  # the body, of which none may come
            yield b"never"

        return StreamingResponse(content())

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self.hello),
                Route("/take", self.take, methods=["POST"]),
                Route("/refuse", self.refuse, methods=["POST"]),
                Route("/large", self.large),
                Route("/wait", self.wait),
                Route("/drip", self.drip, methods=["POST"]),
            ],
            exception_handlers={Problem: refused, HTTPException: refused, Exception: failed},
        )


class Endpoint:
    """The transport, to be connected to in memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.site = Site()
        self.limiter = ConnectionLimiter()
        self.nursery = nursery
        rates = Rates(1000.0, trio.current_time)
        guard = Guard(self.site.app(), self.limiter, Origins(loopback=True), (), LIMITS, rates)
        self.transport = HttpTransport(guard, self.limiter, LISTEN)
        self.open = 0

    def connect(self, *, buffered: bool = True) -> Client:
        """A connection; one that isn't buffered has every byte wait until it is read."""
        pair = trio.testing.memory_stream_pair if buffered else trio.testing.lockstep_stream_pair
        ours, theirs = pair()
        self.nursery.start_soon(self._serve, theirs)
        return Client(ours, "localhost")

    def connect_socket(self) -> trio.socket.SocketType:
        """A connection by a real socket."""
        ours, theirs = trio.socket.socketpair()
        self.nursery.start_soon(self._serve, trio.SocketStream(theirs))
        return ours

    async def _serve(self, stream: trio.abc.Stream) -> None:
        self.open += 1
        await self.transport.handle(stream, self.nursery)
        self.open -= 1

    async def ask(self, *pieces: bytes) -> bytes:
        """Send these, and return all that comes until the connection ends."""
        client = self.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, client, *pieces)
            found = await drained(client)
            nursery.cancel_scope.cancel()
        return found


async def send(client: Client, *pieces: bytes) -> None:
    try:
        for piece in pieces:
            await client.connection.send_all(piece)
    except trio.BrokenResourceError:
        pass


async def drained(client: Client) -> bytes:
    found = b""
    while data := await client.receive_some():
        found += data
    return found


@pytest.fixture
async def endpoint(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(nursery)
    nursery.start_soon(endpoint.transport.sweep)
    yield endpoint
    endpoint.site.go_on.set()
    # Nothing that a peer does is an error of ours, or keeps a place for ever.
    await trio.sleep(3600)
    assert not endpoint.open
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    nursery.cancel_scope.cancel()


# what is no request


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), 400),  # TLS
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Host: evil\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1, 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 0x1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: x\r\n" * 3_000 + b"\r\n", 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
        (b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 1_000_000, 431),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else None,
)
@pytest.mark.parametrize("piece", [1_000_000, 1_000])
async def test_what_is_no_request_is_told_why_and_ends(
    autojump_clock: MockClock, endpoint: Endpoint, sent: bytes, status: int, piece: int
) -> None:
    found = await endpoint.ask(*[sent[at : at + piece] for at in range(0, len(sent), piece)])
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/problem+json" in head.lower()
    assert b"connection: close" in head.lower()
    assert b'"status":%d' % status in body


async def test_a_head_that_is_too_long_gets_no_body_where_none_may_be(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    head = b"HEAD / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 20_000 + b"\r\n\r\n"
    found = await endpoint.ask(head)
    assert found.startswith(b"HTTP/1.1 431 ")
    assert found.endswith(b"\r\n\r\n")


async def test_a_head_of_nearly_the_limit_passes(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    head = b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 16_000 + b"\r\n\r\n"
    assert (await endpoint.ask(head)).startswith(b"HTTP/1.1 200 ")


# slowly


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHo",
        b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 100,
    ],
)
async def test_a_head_that_does_not_come_in_time_ends_the_connection(
    autojump_clock: MockClock, endpoint: Endpoint, sent: bytes
) -> None:
    async def trickle() -> None:
        client = endpoint.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip, client, sent)
            found.append(await drained(client))
            nursery.cancel_scope.cancel()

    async def drip(client: Client, sent: bytes) -> None:
        for at in range(len(sent)):
            await send(client, sent[at : at + 1])
            await trio.sleep(1)
        await trio.sleep_forever()

    found: list[bytes] = []
    started = trio.current_time()
    await trickle()
    assert found == [b""]
    assert 9.9 < trio.current_time() - started < 12.1


async def test_a_body_that_does_not_come_in_time_is_told_so(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    started = trio.current_time()
    head = b"POST /take HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 1000\r\n\r\n"
    client = endpoint.connect()
    await send(client, head)
    for _ in range(9):
        await trio.sleep(1)
        await send(client, b"x")
    found = await drained(client)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in found.lower()
    assert b"request_timeout" in found
    assert 9.9 < trio.current_time() - started < 12.1
    assert endpoint.site.bodies == []


async def test_a_body_that_comes_slowly_but_in_time_is_taken(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect()
    await send(client, b"POST /take HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 9\r\n\r\n")
    for _ in range(9):
        await trio.sleep(1)
        await send(client, b"x")
    await client.connection.send_eof()  # type: ignore[attr-defined]
    assert b'{"size":9}' in await drained(client)


async def test_a_body_missing_in_a_begun_answer_ends_it_unfinished(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    head = b"POST /drip HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 1000\r\n\r\n"
    found = await endpoint.ask(head)
    assert b"begun" in found
    assert b"never" not in found
    assert not found.endswith(b"0\r\n\r\n")


async def test_a_connection_kept_alive_ends_some_time_after_its_last_answer(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect()
    for _ in range(3):
        await trio.sleep(9)
        assert (await client.request("GET", "/")).status == 200
    last = trio.current_time()
    assert await client.closed()
    assert 9.9 < trio.current_time() - last < 12.1


async def test_a_thousand_idle_connections_are_gone_again(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    clients = [endpoint.connect() for _ in range(1_000)]
    for client in clients:
        assert (await client.request("GET", "/")).status == 200
    assert endpoint.open == 1_000
    await trio.sleep(15)
    assert endpoint.open == 0
    assert endpoint.limiter.enter("192.0.2.1") is not None


@pytest.mark.parametrize("draining", [False, True])
async def test_many_idle_connections_end_in_turns(
    autojump_clock: MockClock,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    draining: bool,
) -> None:
    for _ in range(5):
        assert (await endpoint.connect().request("GET", "/")).status == 200
    passes = counted(monkeypatch)
    ended: list[int] = []

    class Noted(dict[trio.CancelScope, float]):
        def pop(self, scope: trio.CancelScope, *default: Any) -> Any:
            ended.append(passes.count)
            return super().pop(scope, *default)

    shared = endpoint.transport.shared
    shared.waiting = Noted(shared.waiting)
    if draining:
        await endpoint.transport.drain()
    await trio.sleep(15)
    assert len(ended) == len(set(ended)) == 5


async def test_a_client_that_never_reads_is_given_up(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect(buffered=False)
    await send(client, b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n")
    await trio.sleep(29)
    assert endpoint.open == 1
    await trio.sleep(5)
    assert endpoint.open == 0


async def test_a_client_that_reads_slowly_gets_it_all(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect(buffered=False)
    await send(client, b"GET /large HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    size = 0
    while data := await client.connection.receive_some(1_000_000):
        size += len(data)
        await trio.sleep(20)
    assert size > LARGE
    assert trio.current_time() > 200


# bodies


def posted(path: bytes, *headers: bytes) -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", HOST.strip(), JSON.strip(), *headers, b"", b""]
    return b"\r\n".join(lines)


def chunks(size: int, of: int = 1_000) -> bytes:
    chunk = b"%x\r\n" % of + b"x" * of + b"\r\n"
    return chunk * (size // of) + b"0\r\n\r\n"


async def test_a_body_over_the_limit_is_refused_by_its_length_alone(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    found = await endpoint.ask(posted(b"/take", b"Content-Length: 100001"))
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"payload_too_large" in found


async def test_a_body_of_the_limit_is_taken(autojump_clock: MockClock, endpoint: Endpoint) -> None:
    client = endpoint.connect()
    headers = {"Content-Type": "application/json"}
    assert (await client.request("POST", "/take", headers, bytes(100_000))).status == 200
    assert (await client.request("GET", "/")).status == 200


@pytest.mark.parametrize("size", [200_000, 5_000_000])
async def test_a_body_over_the_limit_is_refused_where_no_length_was_told(
    autojump_clock: MockClock, endpoint: Endpoint, size: int
) -> None:
    sent = posted(b"/take", b"Transfer-Encoding: chunked") + chunks(size)
    found = await endpoint.ask(*[sent[at : at + 10_000] for at in range(0, len(sent), 10_000)])
    assert found.startswith(b"HTTP/1.1 413 ")
    assert endpoint.site.bodies == []


async def test_chunks_are_put_together(autojump_clock: MockClock, endpoint: Endpoint) -> None:
    sent = posted(b"/take", b"Transfer-Encoding: chunked", b"Connection: close") + chunks(9, 3)
    assert b'{"size":9}' in await endpoint.ask(sent)


@pytest.mark.parametrize("chunk", [b"zz\r\nx", b"-1\r\nx", b"1\r\nxy"])
async def test_a_chunk_that_is_none_is_refused(
    autojump_clock: MockClock, endpoint: Endpoint, chunk: bytes
) -> None:
    sent = posted(b"/take", b"Transfer-Encoding: chunked") + chunk + b"\r\n"
    assert (await endpoint.ask(sent)).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    assert endpoint.site.bodies == []


async def test_two_lengths_are_refused(autojump_clock: MockClock, endpoint: Endpoint) -> None:
    sent = posted(b"/take", b"Content-Length: 5", b"Transfer-Encoding: chunked")
    found = await endpoint.ask(sent + b"0\r\n\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("sent", [b"", b"abc"])
async def test_a_peer_that_leaves_within_its_body_is_no_news(
    autojump_clock: MockClock, endpoint: Endpoint, sent: bytes
) -> None:
    client = endpoint.connect()
    await send(client, posted(b"/take", b"Content-Length: 10") + sent)
    await trio.testing.wait_all_tasks_blocked()
    await client.connection.aclose()
    await trio.sleep(1)
    assert endpoint.site.bodies == []
    assert endpoint.open == 0


async def test_a_peer_that_leaves_while_it_is_answered_is_no_news(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect()
    await send(client, b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    await endpoint.site.asked.wait()
    await client.connection.aclose()
    endpoint.site.go_on.set()
    await trio.sleep(1)
    assert endpoint.open == 0


async def test_a_body_that_nobody_reads_keeps_no_connection(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    # Longer than all that is buffered on its way to an application that answers late.
    sent = posted(b"/refuse", b"Transfer-Encoding: chunked") + chunks(90_000, 100)
    found = await endpoint.ask(*[sent[at : at + 1_000] for at in range(0, len(sent), 1_000)])
    assert found.startswith(b"HTTP/1.1 401 ")
    await trio.sleep(5)
    assert endpoint.open == 0


async def test_an_answer_is_not_lost_to_those_who_still_send(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    # In memory nothing would be lost; that everything sent is taken for a while is what is seen.
    client = endpoint.connect()
    await send(client, posted(b"/take", b"Content-Length: 50000000"))
    sent = 0
    for _ in range(20):
        await client.connection.send_all(bytes(100_000))
        sent += 100_000
    assert (await drained(client)).startswith(b"HTTP/1.1 413 ")
    assert sent == 2_000_000


async def test_who_never_ends_sending_is_not_listened_to_for_long(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    async def pour() -> None:
        while True:
            await client.connection.send_all(bytes(1_000))
            await trio.sleep(0.1)

    client = endpoint.connect()
    await send(client, posted(b"/take", b"Content-Length: 50000000"))
    started = trio.current_time()
    with pytest.raises((trio.BrokenResourceError, ExceptionGroup)):
        await pour()
    assert trio.current_time() - started < 3


async def test_who_expects_to_be_asked_for_the_body_is_asked(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    head = posted(b"/take", b"Content-Length: 3", b"Expect: 100-continue", b"Connection: close")
    client = endpoint.connect()
    await send(client, head)
    assert (await client.receive_some()).startswith(b"HTTP/1.1 100 ")
    await send(client, b"abc")
    assert b'{"size":3}' in await drained(client)


# odd requests


async def test_pipelined_requests_are_answered_in_order(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    gets = b"".join(b"GET /?%d HTTP/1.1\r\n%b\r\n" % (n, HOST) for n in range(500))
    last = b"GET /?last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    found = await endpoint.ask(gets + last)
    places = [found.index(b'"query":"%d"' % n) for n in range(500)]
    assert places == sorted(places)
    assert found.count(b"HTTP/1.1 200 ") == 501


async def test_a_connection_has_no_last_request(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect()
    for number in range(1_200):
        response = await client.request("GET", f"/?{number}")
        assert response.json()["query"] == str(number)
        assert "connection" not in response.headers


async def test_a_pipeline_is_read_no_faster_than_it_is_answered(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    # Every byte waits until it is read.
    client = endpoint.connect(buffered=False)
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while True:
            await client.connection.send_all(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
            sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pour)
        await trio.sleep(5)
        assert sent == 1
        nursery.cancel_scope.cancel()
    await client.connection.aclose()
    endpoint.site.go_on.set()


async def test_an_old_client_may_ask_for_more_than_one_answer(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    old = b"GET / HTTP/1.0\r\n" + HOST
    found = await endpoint.ask((old + b"Connection: keep-alive\r\n\r\n") * 2 + old + b"\r\n")
    assert found.count(b"HTTP/1.1 200 ") == 3
    assert found.count(b"connection: keep-alive") == 2


async def test_an_upgrade_that_is_ignored_does_not_hide_a_body(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    offer = [b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 40"]
    hidden = b"GET /? HTTP/1.1\r\n" + HOST + b"\r\n    "
    last = b"GET /?last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    found = await endpoint.ask(posted(b"/take", *offer) + hidden + last)
    assert endpoint.site.bodies == [hidden]
    assert found.count(b"HTTP/1.1 200 ") == 2


async def test_what_stands_behind_a_request_that_ends_the_connection_is_not_carried_out(
    autojump_clock: MockClock,
    endpoint: Endpoint,
) -> None:
    first = b"GET /?1 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    second = posted(b"/take", b"Content-Length: 3") + b"abc"
    assert (await endpoint.ask(first + second)).count(b"HTTP/1.1 ") == 1
    assert endpoint.site.bodies == []


async def test_an_old_client_that_names_the_host_is_answered_and_let_go(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    found = await endpoint.ask(b"GET / HTTP/1.0\r\n" + HOST + b"\r\n")
    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in found.lower()


async def test_an_old_client_that_names_no_host_is_refused(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    assert (await endpoint.ask(b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 421 ")


async def test_a_head_request_gets_a_head(autojump_clock: MockClock, endpoint: Endpoint) -> None:
    client = endpoint.connect()
    got = await client.request("GET", "/")
    head = await client.request("HEAD", "/")
    assert head.status == 200
    assert head.body == b""
    assert head.headers["content-length"] == got.headers["content-length"]


async def test_a_folded_header_is_one_line(autojump_clock: MockClock, endpoint: Endpoint) -> None:
    found = await endpoint.ask(b"GET / HTTP/1.1\r\n" + HOST + b" .evil\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize("behind", [b"\r\n", b"GET / HTTP/1.1\r\n\r\n", bytes(200_000)])
async def test_what_stands_behind_the_last_request_does_not_cost_its_answer(
    autojump_clock: MockClock, endpoint: Endpoint, behind: bytes
) -> None:
    last = b"GET /?1 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    for pieces in ([last + behind], [last, behind]):
        found = await endpoint.ask(*pieces)
        assert found.startswith(b"HTTP/1.1 200 ")
        assert found.count(b"HTTP/1.1 ") == 1


async def test_a_pipeline_does_not_outlast_a_client_that_does_not_read(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect(buffered=False)
    await send(client, b"GET /large HTTP/1.1\r\n" + HOST + b"\r\nGET / HTTP/1.1\r\n" + HOST)
    await trio.sleep(40)
    assert endpoint.open == 0


async def test_a_drain_ends_a_pipeline_after_the_answer_it_is_at(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect()
    await send(client, b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    await send(client, b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    await endpoint.site.asked.wait()
    await endpoint.transport.drain()
    endpoint.site.go_on.set()
    assert (await drained(client)).count(b"HTTP/1.1 200 ") == 1
    await client.connection.aclose()
    await trio.sleep(1)
    assert endpoint.open == 0


@pytest.mark.parametrize("value", [b"h2c", b"websocket", b"TLS/1.0", b"h2c, websocket"])
async def test_an_upgrade_is_ignored(
    autojump_clock: MockClock, endpoint: Endpoint, value: bytes
) -> None:
    sent = (
        b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + value
    )
    sent += b"\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nSec-WebSocket-Version: 13\r\n"
    sent += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    sent += b"GET /?last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    assert (await endpoint.ask(sent)).count(b"HTTP/1.1 200 ") == 2


async def test_http_2_is_not_spoken(autojump_clock: MockClock, endpoint: Endpoint) -> None:
    found = await endpoint.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100))
    assert found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 421 "))


@pytest.mark.parametrize(
    ("target", "status", "query"),
    [
        (b"http://localhost/?a=b", 200, "a=b"),
        (b"HTTP://127.0.0.1:8080/?a=%20b", 200, "a=%20b"),
        (b"http://localhost", 200, ""),
        (b"http://localhost?a", 200, "a"),
        (b"http://evil.example/", 421, None),
        (b"http://user@localhost/", 421, None),
        (b"http:///", 421, None),
        (b"http://[::1/", 421, None),
        (b"x://localhost/", 404, None),
    ],
)
async def test_of_a_target_that_is_a_url_its_own_name_counts(
    autojump_clock: MockClock, endpoint: Endpoint, target: bytes, status: int, query: str | None
) -> None:
    sent = b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    found = await endpoint.ask(sent)
    assert found.startswith(b"HTTP/1.1 %d " % status)
    if query is not None:
        assert b'"query":"%b"' % query.encode() in found


@pytest.mark.parametrize(
    "line",
    [
        b"OPTIONS *",
        b"CONNECT localhost:80",
        b"GET *",
        b"GET localhost",
        b"GET //",
        b"GET //evil.example/%2e%2e",
        b"GET /%",
        b"GET /%zz",
        b"GET /%00",
        b"GET /%0d%0aX:y",
        b"GET /%ff",
        b"GET /..%2f..%2fetc/passwd",
        b"GET /../../etc/passwd",
        b"GET /?%ff",
        b"TRACE /",
        b"FOO /",
        b"get /",
        b"PROPFIND /",
    ],
)
async def test_an_odd_request_is_answered_like_any_other(
    autojump_clock: MockClock, endpoint: Endpoint, line: bytes
) -> None:
    sent = line + b" HTTP/1.1\r\n" + HOST + b"X-Secret: s3cret\r\nConnection: close\r\n\r\n"
    found = await endpoint.ask(sent)
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 4"))
    assert b"s3cret" not in found
    assert b"x:y" not in head.lower()
    assert b"evil.example" not in found
    assert b"root:" not in body


# coming and going


async def test_at_the_gate_one_too_many_is_told_so(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    endpoint = Endpoint(nursery)
    endpoint.limiter = ConnectionLimiter(most=1)
    endpoint.transport = HttpTransport(endpoint.site.app(), endpoint.limiter, LISTEN)
    first = endpoint.connect()
    await send(first, b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
    await endpoint.site.asked.wait()
    second = endpoint.connect()
    answered = await second.request("GET", "/")
    assert answered.status == 429
    assert int(answered.headers["retry-after"]) > 0
    assert answered.json()["code"] == "too_many_connections"
    assert await second.closed()
    endpoint.site.go_on.set()
    assert (await first.receive_some()).startswith(b"HTTP/1.1 200 ")
    await first.connection.aclose()
    await trio.sleep(1)
    assert (await endpoint.connect().request("GET", "/healthz")).status == 404
    nursery.cancel_scope.cancel()


async def test_each_connection_may_wait_for_as_long_whatever_the_others_do(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    ended: dict[str, float] = {}

    async def wait(name: str, client: Client) -> None:
        while await client.receive_some():
            pass
        ended[name] = trio.current_time() - started

    started = trio.current_time()
    silent, slow, used, busy = [endpoint.connect() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "silent", silent)
        await busy.send_request("GET", "/wait")  # its answer takes longer than a request may
        await trio.sleep(3)
        await send(slow, b"GET / HT")
        await trio.sleep(4)
        await send(slow, b"TP/1.1\r\n")
        assert (await used.request("GET", "/")).status == 200
        nursery.start_soon(wait, "slow", slow)
        nursery.start_soon(wait, "used", used)
        await trio.sleep(14)
        endpoint.site.go_on.set()
        assert (await (await busy.receive_head()).read()) == b'"done"'
        nursery.start_soon(wait, "busy", busy)
    assert ended == pytest.approx({"silent": 10, "slow": 10, "used": 17, "busy": 31}, abs=0.01)


async def test_a_drain_lets_answers_end_and_begins_no_other(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    idle, busy = endpoint.connect(), endpoint.connect()
    assert (await idle.request("GET", "/")).status == 200
    await busy.send_request("GET", "/wait")
    await endpoint.site.asked.wait()
    await endpoint.transport.drain()
    assert await idle.closed()
    await trio.sleep(5)
    endpoint.site.go_on.set()
    response = await busy.receive_head()
    assert (response.status, await response.read()) == (200, b'"done"')
    assert await busy.closed()


async def test_a_connection_in_the_middle_of_its_head_is_drained_too(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    client = endpoint.connect()
    await send(client, b"GET / HT")
    await trio.testing.wait_all_tasks_blocked()
    started = trio.current_time()
    await endpoint.transport.drain()
    assert await drained(client) == b""
    assert trio.current_time() - started < 2


async def test_where_the_server_ends_at_once_no_reader_can_keep_it(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(nursery)
        client = endpoint.connect(buffered=False)
        await send(client, b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n")
        await trio.sleep(1)
        assert endpoint.open == 1
        started = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - started < 5


# newcomers


class HeldTurns(Turns):
    """Turns that late ones wait for until they are let in; notes who asked."""

    def __init__(self) -> None:
        super().__init__()
        self.let_in = trio.Event()
        self.asked: list[str] = []

    @property
    def over(self) -> bool:
        return True

    async def begin(self, account: Account | None = None, *, late: bool = False) -> float:
        self.asked.append("late" if late else "live")
        if late:
            await self.let_in.wait()
        return self.now


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", b"no request\r\n\r\n"])
async def test_what_a_newcomer_sends_is_not_looked_at_before_it_has_its_turn(
    autojump_clock: MockClock, endpoint: Endpoint, sent: bytes
) -> None:
    endpoint.transport.shared.turns = turns = HeldTurns()
    client = endpoint.connect()
    await client.connection.send_all(sent)
    with trio.move_on_after(60):  # longer than a peer may take for its request
        raise AssertionError(await client.receive_some())
    turns.let_in.set()
    assert (await client.receive_some()).startswith(b"HTTP/1.1 ")
    await client.connection.aclose()


async def test_newcomers_wait_for_their_turns_and_not_for_what_they_say(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(nursery)
    endpoint.transport.shared.turns = turns = HeldTurns()
    wait_readable, waited = trio.lowlevel.wait_readable, []

    async def wait(sock: object) -> None:
        waited.append(sock)
        await wait_readable(sock)

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait)
    with endpoint.connect_socket() as ours:
        await ours.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (turns.asked, waited) == (["late"], [])
        turns.let_in.set()
        assert (await ours.recv(1_000)).startswith(b"HTTP/1.1 200")
        assert turns.asked == ["late"]


async def test_who_says_nothing_in_its_turn_waits_for_another(nursery: trio.Nursery) -> None:
    endpoint = Endpoint(nursery)
    endpoint.transport.shared.turns = turns = HeldTurns()
    turns.let_in.set()
    with endpoint.connect_socket() as ours:
        await trio.testing.wait_all_tasks_blocked(0.01)
        turns.let_in = trio.Event()
        await ours.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert turns.asked == ["late", "late"]
        turns.let_in.set()
        assert (await ours.recv(1_000)).startswith(b"HTTP/1.1 200")


async def test_who_has_had_an_answer_comes_late_no_more(
    autojump_clock: MockClock, endpoint: Endpoint
) -> None:
    endpoint.transport.shared.turns = turns = HeldTurns()
    turns.let_in.set()
    client = endpoint.connect()
    for _ in range(3):
        response = await client.request("GET", "/")
        assert response.status == 200
    assert turns.asked == ["late", "live", "live"]
    await client.connection.aclose()
