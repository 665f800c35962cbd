"""The WebSocket endpoint over real sockets: who gets in, what it says, how it ends."""

import base64
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio_websocket
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection

from mist.commands import Register
from mist.config import Listen
from mist.protocols.rfc6455 import ping_frame
from mist.server import Server
from tests.http.client import Client, connect, request
from tests.passes import counted
from tests.servers import port_of, running
from tests.transports.lines import Lines, talk
from tests.transports.test_tcp import certificate
from tests.transports.websockets import open_websocket
from tests.waiting import until

PATH = "/subscribe/websocket"
TOKEN = "t0ken-that-no-log-may-hold"


@pytest.fixture
async def admin(server: Server) -> AsyncIterator[Lines]:
    async with talk(server) as admin:
        await admin.ask(f"register a,b,room:* {TOKEN}\n".encode())
        yield admin


def encode(token: str) -> str:
    return "mist.token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


class Browser:
    """One WebSocket, spoken as a page would."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def get(self) -> dict[str, object]:
        return dict(json.loads(await self.socket.get_message()))

    async def ask(self, command: str, **fields: object) -> dict[str, object]:
        await self.socket.send_message(json.dumps({"command": command, **fields}))
        return await self.get()

    async def closed(self) -> int:
        """The close code, once everything before it was read."""
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                await self.socket.get_message()
        assert caught.value.reason is not None
        return caught.value.reason.code


@asynccontextmanager
async def browse(
    server: Server,
    token: str | None = TOKEN,
    *,
    path: str = PATH,
    ours: bool = True,
    headers: dict[str, str] | None = None,
    index: int = 1,
) -> AsyncIterator[Browser]:
    """Connect as a page does, or (`ours` false) as a plain WebSocket client with a header."""
    headers = dict(headers or {})
    subprotocols = ["mist.v1"] if ours else []
    if token is not None:
        if ours:
            subprotocols.append(encode(token))
        else:
            headers["X-Auth-Token"] = token
    async with open_websocket(
        server, path, subprotocols=subprotocols, headers=headers, index=index
    ) as socket:
        yield Browser(socket)


async def status(server: Server, **options: object) -> int:
    """The HTTP status that a handshake is refused with."""
    with pytest.raises(ConnectionRejected) as caught:
        async with browse(server, **options):  # type: ignore[arg-type]
            pass
    assert not caught.value.body
    return caught.value.status_code


async def code(server: Server, **options: object) -> int:
    """The close code that a page is refused with."""
    async with browse(server, **options) as page:  # type: ignore[arg-type]
        return await page.closed()


# who gets in


async def test_a_page_gets_in_by_subprotocol_which_is_not_echoed(
    server: Server, admin: Lines
) -> None:
    async with browse(server) as page:
        assert page.socket.subprotocol == "mist.v1"
        assert (await page.ask("ping"))["success"]


async def test_a_service_gets_in_by_header(server: Server, admin: Lines) -> None:
    async with browse(server, ours=False) as page:
        assert page.socket.subprotocol is None
        assert (await page.ask("ping"))["success"]
    async with browse(server, None, headers={"X-Auth-Token": TOKEN}) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]


async def test_a_page_gets_in_by_its_first_frame(server: Server, admin: Lines) -> None:
    async with browse(server, None) as page:
        assert await page.ask("auth", token=TOKEN) == {"success": True, "command": "auth"}
        assert (await page.ask("subscribe", tags=["a"]))["success"]


async def test_the_url_lets_in_only_where_that_is_allowed(server: Server, tmp_path: Path) -> None:
    path = f"{PATH}?x-auth-token={TOKEN}"
    async with running(tmp_path / "other", allow_query_token=True) as open_server:
        for each in (server, open_server):
            async with talk(each) as admin:
                await admin.ask(f"register a {TOKEN}\n".encode())
        assert await status(server, token=None, ours=False, path=path) == 401
        async with browse(open_server, None, ours=False, path=path) as page:
            assert (await page.ask("ping"))["success"]


async def test_a_bad_token_is_401_or_for_pages_4401(server: Server, admin: Lines) -> None:
    await admin.ask(b"register a empty\nunset a empty\n")
    for token in ("nobody's", "empty", ""):
        assert await status(server, token=token, ours=False) == 401
        assert await code(server, token=token) == 4401
    assert await status(server, token=None, ours=False) == 401


async def test_two_different_credentials_are_refused(server: Server, admin: Lines) -> None:
    assert await code(server, headers={"X-Auth-Token": "other"}) == 4400
    async with browse(server, headers={"X-Auth-Token": TOKEN}) as page:
        assert (await page.ask("ping"))["success"]


async def test_any_other_path_is_404(server: Server, admin: Lines) -> None:
    for path in ("/", "/subscribe/websocket/", "/subscribe", "/subscribe/websocketx"):
        assert await status(server, path=path) == 404


async def test_pages_of_other_origins_stay_out(server: Server, admin: Lines) -> None:
    evil = {"Origin": "http://evil.example", "X-Forwarded-Host": "evil.example"}
    assert await status(server, ours=False, headers=evil) == 403
    assert await code(server, headers=evil) == 4403
    assert await code(server, headers={"Origin": "null"}) == 4403
    async with browse(server, headers={"Origin": "http://localhost:5173"}) as page:
        assert (await page.ask("ping"))["success"]


async def test_who_brings_no_token_in_time_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, auth_seconds=0.05) as server:
        assert await code(server, token=None) == 4408


async def test_who_goes_before_a_token_was_due_has_disconnected(server: Server) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[1]))
    await stream.aclose()
    async with browse(server, None):
        pass
    codes = server.hub.sessions.close_codes
    await until(lambda: codes.total() == 2)
    assert codes == {1006: 2}


async def test_a_first_frame_that_is_no_auth_or_too_long_ends_it(server: Server) -> None:
    async with browse(server, None) as page:
        await page.socket.send_message('{"command":"subscribe","tags":["a"]}')
        assert await page.closed() == 4401
    async with browse(server, None) as page:
        await page.socket.send_message(json.dumps({"command": "auth", "token": "x" * 8_500}))
        assert await page.closed() == 1009


async def test_too_many_connections_are_429_or_for_pages_4429(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections=1) as server, talk(server) as admin:
        await admin.ask(f"register a {TOKEN}\n".encode())
        assert await status(server, ours=False) == 429
        assert await code(server) == 4429
        assert await admin.ask(b"") == []


async def test_a_slow_handshake_is_cut(tmp_path: Path) -> None:
    async with running(tmp_path, handshake_seconds=0.05) as server, talk(server, 1) as slow:
        await slow.send(b"GET /subscribe/websocket HTTP/1.1\r\nHost: x\r\n")
        with trio.fail_after(10):
            await slow.rest()


async def test_a_refused_client_that_stays_is_cut_within_a_second_or_so(server: Server) -> None:
    async with talk(server, 1) as one:
        request = (
            b"GET /subscribe/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Version: 13\r\n\r\n"
        )
        await one.send(request)
        with trio.fail_after(6):
            answer = await one.rest()
        assert answer.startswith(b"HTTP/1.1 401 ")


BAD_REQUESTS = [
    b"nonsense\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /subscribe/websocket HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: " + b"a" * 300 + b".\xff\r\n\r\n",
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: x\r\nConnection: \xff\r\nUpgrade: \xff\r\n\r\n",
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
]


@pytest.mark.parametrize("request_", BAD_REQUESTS, ids=lambda request: repr(request[:30]))
async def test_a_bad_request_gets_an_http_error_and_costs_nothing_else(
    server: Server, admin: Lines, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with browse(server) as page:
        async with talk(server, 1) as one:
            await one.send(request_)
            assert (await one.rest()).startswith(b"HTTP/1.1 4")
        assert (await page.ask("ping"))["success"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_no_compression_is_agreed_to(server: Server, admin: Lines) -> None:
    async with talk(server, 1) as one:
        await one.send(
            b"GET /subscribe/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Version: 13\r\nX-Auth-Token: " + TOKEN.encode() + b"\r\n"
            b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        )
        assert await one.line() == b"HTTP/1.1 101 Switching Protocols\r\n"
        while (line := await one.line()) != b"\r\n":
            assert not line.lower().startswith(b"sec-websocket-extensions")


# what it says


async def test_a_page_sees_what_it_subscribed_to(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        assert (await page.ask("subscribe", tags=["a", "x"], ref=7))["ref"] == 7
        await admin.ask(b"publish a no\npublish x,a,y yes\npublish a,x \xff\n")
        assert await page.get() == {"keys": ["a", "x", "y"], "data": "yes"}
        assert await page.get() == {"keys": ["a", "x"], "data64": "/w=="}


async def test_one_granted_tag_is_enough_and_none_is_not(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        assert (await page.ask("subscribe", tags=["secret", "room:9"]))["success"]
        refused = await page.ask("subscribe", tags=["secret"])
        assert refused["error"] == "not granted by the token"
        assert (await page.ask("list"))["subscriptions"] == [["room:9", "secret"]]


async def test_strict_means_that_every_tag_is_granted(tmp_path: Path) -> None:
    async with running(tmp_path, token_policy="strict") as server, talk(server) as admin:
        await admin.ask(f"register a,b {TOKEN}\n".encode())
        async with browse(server) as page:
            assert (await page.ask("subscribe", tags=["a", "b"]))["success"]
            assert not (await page.ask("subscribe", tags=["a", "x"]))["success"]


async def test_a_subscription_made_twice_is_one(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        for _ in range(2):
            await page.ask("subscribe", tags=["a"])
        await page.ask("unsubscribe", tags=["a"])
        assert (await page.ask("list"))["subscriptions"] == []
        assert (await page.ask("unsubscribe", tags=["a"]))["success"]


async def test_subscriptions_of_a_token_are_limited(tmp_path: Path) -> None:
    async with running(tmp_path, max_token_subscriptions=2) as server, talk(server) as admin:
        await admin.ask(f"register * {TOKEN}\n".encode())
        async with browse(server) as page:
            found = [(await page.ask("subscribe", tags=[tag]))["success"] for tag in "abca"]
            assert found == [True, True, False, True]


async def test_subscriptions_of_all_sessions_of_a_token_are_limited_together(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_token_subscriptions=3) as server, talk(server) as admin:
        await admin.ask(f"register * {TOKEN}\n".encode())
        async with browse(server) as one:
            async with browse(server) as two:
                found = [
                    (await page.ask("subscribe", tags=[tag]))["success"]
                    for page, tag in ((one, "a"), (two, "a"), (two, "b"), (one, "b"), (two, "c"))
                ]
                assert found == [True, True, True, False, False]
                await two.ask("unsubscribe", tags=["b"])
                assert (await one.ask("subscribe", tags=["b"]))["success"]
            await until(lambda: server.hub.sessions.connected == 2)
            assert (await one.ask("subscribe", tags=["c"]))["success"]
            assert not (await one.ask("subscribe", tags=["d"]))["success"]


async def test_binary_messages_are_answered(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        await page.socket.send_message(b"\x00")
        assert (await page.get())["error"] == "binary frames are not understood"
        assert (await page.ask("ping"))["success"]


async def test_all_pages_get_a_message_of_any_number(server: Server, admin: Lines) -> None:
    async with browse(server) as one, browse(server) as two, browse(server, ours=False) as three:
        for page in (one, two, three):
            await page.ask("subscribe", tags=["a"])
        await admin.ask(b"publish a x\n")
        assert [await page.get() for page in (one, two, three)] == [
            {"keys": ["a"], "data": "x"}
        ] * 3


# how it ends


async def test_a_gone_token_closes_its_pages_at_once(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        await page.ask("subscribe", tags=["a"])
        await admin.ask(f"unregister {TOKEN}\npublish a late\n".encode())
        assert await page.closed() == 4401


async def test_the_last_tag_taken_closes_too(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        await admin.ask(f"unset a,b,room:* {TOKEN}\n".encode())
        assert await page.closed() == 4401


async def test_nothing_for_a_revoked_subscription_comes_after_the_fence(
    server: Server, admin: Lines
) -> None:
    async with browse(server) as page:
        await page.ask("subscribe", tags=["a"])
        await page.ask("subscribe", tags=["b"])
        await admin.ask(f"publish a before\nunset a {TOKEN}\npublish a after\n".encode())
        await admin.ask(b"publish b still\n")
        assert [await page.get() for _ in range(3)] == [
            {"keys": ["a"], "data": "before"},
            {"success": False, "command": "revoked", "tags": ["a"]},
            {"keys": ["b"], "data": "still"},
        ]
        assert not (await page.ask("subscribe", tags=["a"]))["success"]


async def test_a_swapped_token_ends_what_it_does_not_allow(server: Server, admin: Lines) -> None:
    await admin.ask(b"register b,c other\n")
    async with browse(server) as page:
        await page.ask("subscribe", tags=["a"])
        await page.ask("subscribe", tags=["b"])
        assert (await page.ask("auth", token="other"))["command"] == "revoked"
        assert (await page.get())["command"] == "auth"
        assert (await page.ask("list"))["subscriptions"] == [["b"]]
        # The old token is nothing to this session any more, the new one is.
        await admin.ask(f"unregister {TOKEN}\n".encode())
        assert (await page.ask("ping"))["success"]
        await admin.ask(b"unregister other\n")
        assert await page.closed() == 4401


async def test_a_failed_swap_ends_it(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        await page.socket.send_message('{"command":"auth","token":"nobody\'s"}')
        assert await page.closed() == 4401


async def test_a_message_too_large_is_1009_before_it_has_come(tmp_path: Path) -> None:
    async with running(tmp_path, max_frame=1_000) as server, talk(server) as admin:
        await admin.ask(f"register a {TOKEN}\n".encode())
        async with browse(server) as page:
            assert (await page.ask("x" * 900))["error"] == "unknown command"
            await page.socket.send_message("ä" * 501)
            assert await page.closed() == 1009


def handshake(path: bytes = PATH.encode(), version: bytes = b"13") -> bytes:
    """A good one, of a service."""
    return (
        b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        b"Sec-WebSocket-Version: " + version + b"\r\nX-Auth-Token: " + TOKEN.encode() + b"\r\n\r\n"
    )


async def raw(server: Server, frames: bytes) -> bytes:
    """What comes back for raw bytes behind a good handshake."""
    async with talk(server, 1) as one:
        await one.send(handshake())
        while await one.line() != b"\r\n":
            pass
        await one.send(frames)
        return await one.rest()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (b"\x81\x01x", 1002),  # not masked
        (b"\xc1\x80mask", 1002),  # a reserved bit
        (b"\x83\x80mask", 1002),  # no such opcode
        (b"\x80\x80mask", 1002),  # a continuation of nothing
        (b"\x09\x80mask", 1002),  # a ping in fragments
        (b"\x81\x81\x00\x00\x00\x00\xff", 1007),  # no UTF-8
        (b"\x01\x80mask" + b"\x00\x80mask" * 2_000, 1009),  # fragments without end
    ],
)
async def test_broken_frames_end_it_with_the_right_code(
    server: Server, admin: Lines, frames: bytes, code: int
) -> None:
    answer = await raw(server, frames)
    assert answer[0] == 0x88
    assert int.from_bytes(answer[2:4], "big") == code
    assert await admin.ask(b"") == []


async def test_a_page_that_says_goodbye_is_answered(server: Server, admin: Lines) -> None:
    assert await raw(server, b"\x88\x82\x00\x00\x00\x00\x03\xe8") == b"\x88\x02\x03\xe8"


async def test_a_ping_is_answered_with_its_payload(server: Server, admin: Lines) -> None:
    pings = b"\x89\x82\x00\x00\x00\x00hi" * 3
    goodbye = b"\x88\x82\x00\x00\x00\x00\x03\xe8"
    assert (await raw(server, pings + goodbye)).startswith(b"\x8a\x02hi" * 3)


async def test_the_silent_are_pinged_and_then_let_go(tmp_path: Path) -> None:
    settings = {"ping_seconds": 0.05, "idle_seconds": 0.3}
    async with running(tmp_path, **settings) as server, talk(server) as admin:
        await admin.ask(f"register a {TOKEN}\n".encode())
        async with browse(server) as alive:
            with trio.fail_after(10):
                silent = await raw(server, b"")
            assert silent.startswith(b"\x89\x00")
            assert b"\x88" in silent
            assert (await alive.ask("ping"))["success"]


async def test_many_are_pinged_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(tmp_path, ping_seconds=0.5))
        admin = await stack.enter_async_context(talk(server))
        await admin.ask(f"register a {TOKEN}\n".encode())
        for _ in range(5):
            await stack.enter_async_context(browse(server))
        passes = counted(monkeypatch)
        pinged: list[int] = []

        def ping() -> bytes:
            pinged.append(passes.count)
            return ping_frame()

        monkeypatch.setattr("mist.transports.websocket.ping_frame", ping)
        with trio.fail_after(10):
            await until(lambda: len(pinged) >= 5)
        assert len(set(pinged[:5])) == 5


async def test_a_draining_server_says_1001(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        await page.ask("subscribe", tags=["a"])
        await admin.ask(b"publish a last\n")
        server.drain()
        assert await page.get() == {"keys": ["a"], "data": "last"}
        assert await page.closed() == 1001


async def test_one_stalled_page_costs_the_others_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, outbox_bytes=1 << 20) as server, talk(server) as admin:
        await admin.ask(f"register a {TOKEN}\n".encode())
        async with browse(server) as stalled, browse(server) as healthy:
            for page in (stalled, healthy):
                await page.ask("subscribe", tags=["a"])
            for n in range(300):
                await admin.ask(b"publish a %d-" % n + b"x" * 50_000 + b"\n")
                assert str((await healthy.get())["data"]).startswith(f"{n}-")
            assert server.hub.statistics().broker.dropped["full"] > 0


async def test_no_log_line_holds_a_token(
    server: Server, admin: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with browse(server) as page:
        await page.ask("auth", token="also-a-t0ken")
    assert await status(server, token="wrong-t0ken", ours=False) == 401
    assert caplog.records
    for secret in (TOKEN, encode(TOKEN), "also-a-t0ken", "wrong-t0ken"):
        assert secret not in "".join(
            record.getMessage() for record in caplog.records if record.name.startswith("mist")
        )


@given(st.lists(st.binary(max_size=100), max_size=6))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_bytes_hurt_the_server_or_another_page(
    tmp_path: Path, chunks: list[bytes]
) -> None:
    async with running(tmp_path) as server, talk(server) as admin:
        await admin.ask(f"register a {TOKEN}\n".encode())
        async with browse(server) as healthy:
            with trio.move_on_after(0.2):
                await raw(server, b"".join(chunks))
            async with talk(server, 1) as one:
                try:
                    for chunk in chunks:
                        await one.send(chunk or os.linesep.encode())
                except trio.BrokenResourceError:
                    pass
            await healthy.ask("subscribe", tags=["a"])
            await admin.ask(b"publish a x\n")
            assert await healthy.get() == {"keys": ["a"], "data": "x"}


# one port for requests and WebSockets


@pytest.fixture
async def one_port(tmp_path: Path) -> AsyncIterator[Server]:
    listen = (Listen("tcp", "127.0.0.1", 0), Listen("http", "127.0.0.1", 0))
    async with running(tmp_path, listen=listen) as server:
        with trio.fail_after(30):
            async with talk(server) as admin:
                await admin.ask(f"register a,b,room:*,>/foo {TOKEN}\n".encode())
            yield server


async def test_an_http_listener_takes_websockets_too(one_port: Server) -> None:
    async with browse(one_port) as page, talk(one_port) as admin:
        assert page.socket.subprotocol == "mist.v1"
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        await admin.ask(b"publish a x\n")
        assert await page.get() == {"keys": ["a"], "data": "x"}
        assert one_port.hub.sessions.accepted["ws"] == 1
        endpoints = (await request(one_port, "GET", "/v1/endpoints")).json()
        assert endpoints["websocket"] == one_port.urls[1].replace("http:", "ws:") + PATH
        await admin.ask(f"unregister {TOKEN}\n".encode())
        assert await page.closed() == 4401


async def test_who_gets_in_is_the_same_there(one_port: Server) -> None:
    assert await status(one_port, token="wrong", ours=False) == 401
    assert await code(one_port, token="wrong") == 4401
    evil = {"Origin": "http://evil.example"}
    assert await status(one_port, ours=False, headers=evil) == 403
    assert await code(one_port, headers=evil) == 4403
    async with browse(one_port, headers={"Origin": "http://localhost:5173"}) as page:
        assert (await page.ask("ping"))["success"]


async def test_a_page_of_gubles_gets_in_there_by_any_subprotocol(one_port: Server) -> None:
    for offered in (["guble", encode(TOKEN)], [encode(TOKEN)]):
        port = int(one_port.urls[1].rpartition(":")[2])
        async with trio_websocket.open_websocket(
            "127.0.0.1", port, "/stream/user/marvin", use_ssl=False, subprotocols=offered
        ) as socket:
            assert socket.subprotocol == offered[0]
            assert str(await socket.get_message()).startswith("#connected ")


async def test_a_websocket_may_follow_requests_on_a_connection(one_port: Server) -> None:
    async with connect(one_port) as client:
        for _ in range(2):
            assert (await client.request("GET", "/healthz")).status == 200
        await client.connection.send_all(handshake())
        assert (await client.receive_some()).startswith(b"HTTP/1.1 101 ")
        await client.connection.send_all(b"\x89\x82\x00\x00\x00\x00hi")
        assert await client.receive_some() == b"\x8a\x02hi"


@pytest.mark.parametrize("index", [1, 2])
async def test_another_version_is_told_which_there_is(tmp_path: Path, index: int) -> None:
    listen = tuple(Listen(each, "127.0.0.1", 0) for each in ("tcp", "ws", "http"))
    async with running(tmp_path, listen=listen) as server, talk(server, index) as one:
        await one.send(handshake(version=b"8"))
        answer = await one.rest()
    assert answer.startswith(b"HTTP/1.1 426 ")
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in answer


async def test_frames_before_the_answer_are_refused(one_port: Server) -> None:
    async with talk(one_port, 1) as one:
        await one.send(handshake() + b"\x89\x80mask")
        assert (await one.rest()).startswith(b"HTTP/1.1 400 ")


async def test_other_paths_there_are_requests_like_others(one_port: Server) -> None:
    async with connect(one_port) as client:
        await client.connection.send_all(handshake(path=b"/healthz"))
        answer = await client.receive_some()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'{"status":"alive"}' in answer


async def test_a_draining_server_says_goodbye_there_too(one_port: Server) -> None:
    async with browse(one_port) as page:
        await page.ask("ping")
        one_port.drain()
        assert await page.closed() == 1001


async def test_a_slow_first_frame_and_silence_end_it_there_too(tmp_path: Path) -> None:
    listen = (Listen("tcp", "127.0.0.1", 0), Listen("http", "127.0.0.1", 0))
    settings = {"auth_seconds": 0.05, "ping_seconds": 0.05, "idle_seconds": 0.3}
    async with running(tmp_path, listen=listen, **settings) as server, talk(server) as admin:
        assert await code(server, token=None) == 4408
        await admin.ask(f"register a {TOKEN}\n".encode())
        async with talk(server, 1) as silent:
            await silent.send(handshake())
            with trio.fail_after(10):
                rest = await silent.rest()
        assert b"\x89\x00" in rest
        assert b"\x88" in rest


async def test_where_there_are_too_many_a_page_is_told_there_too(tmp_path: Path) -> None:
    listen = (Listen("tcp", "127.0.0.1", 0), Listen("http", "127.0.0.1", 0))
    async with running(tmp_path, listen=listen, max_connections=1) as server:
        async with talk(server) as admin:
            await admin.ask(f"register a {TOKEN}\n".encode())
            assert await status(server, ours=False) == 429
            assert await code(server) == 4429
            answered = await request(server, "GET", "/healthz")
            assert (answered.status, answered.json()["code"]) == (429, "too_many_connections")
            assert server.hub.sessions.refused["ws"] == 2


async def test_tls_carries_requests_and_websockets(tmp_path: Path) -> None:
    authority, files = certificate(tmp_path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    listen = (Listen("https", "127.0.0.1", 0),)
    async with running(tmp_path / "data", listen=listen, **files) as server:
        port = int(server.urls[0].rpartition(":")[2])
        await server.hub.registry.execute([Register(TOKEN, frozenset({"a"}))])
        with trio.fail_after(30):
            stream = await trio.open_ssl_over_tcp_stream(
                "127.0.0.1", port, ssl_context=context, https_compatible=True
            )
            client = Client(stream, "localhost")
            found = (await client.request("GET", "/v1/endpoints")).json()
            assert found["websocket"] == f"wss://localhost{PATH}"
            await client.connection.send_all(handshake())
            assert (await client.receive_some()).startswith(b"HTTP/1.1 101 ")
            await client.connection.send_all(b"\x89\x82\x00\x00\x00\x00hi")
            assert await client.receive_some() == b"\x8a\x02hi"
            assert server.hub.sessions.accepted == {"wss": 1}
            await trio.aclose_forcefully(stream)
