"""Every answer tells browsers that no foreign page may load it (Fetch, section 3.7)."""

from typing import Any, Final

import pytest
import trio

from mist.server import Server
from mist.transports.connection_limiter import ConnectionLimiter
from tests.http.client import connect, request
from tests.servers import listeners, port_of, running

TOKEN: Final = "t0ken"
POLICY: Final = "cross-origin-resource-policy"
OURS: Final = "http://localhost:3000"
WEBSOCKET: Final = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

# What is sent, and the status of the answer.
ANSWERED: Final = (
    ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    ("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    ('GET / HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: "x", *\r\n\r\n', 304),
    ("GET /static/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ("GET /mist.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    ("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ("GET /v1/tokens/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    ("GET /v1/stream?tags=a HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    (f"GET /v1/stream?tags=b HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: {TOKEN}\r\n\r\n", 403),
    ("GET /v1/poll?tags=a&timeout=0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    (
        "POST /message-bus/x/poll HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f'X-Auth-Token: {TOKEN}\r\nContent-Length: 11\r\n\r\n{{"/foo":-1}}',
        200,
    ),
    ("POST /api/message/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 404),
    ("PUT /api/message/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 405),
    (
        "OPTIONS /v1/messages HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
        "Access-Control-Request-Method: POST\r\n\r\n",
        204,
    ),
    (
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 99999999\r\n\r\n",
        413,
    ),
    # not answered by the application
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("\x16\x03\x01", 400),
    ("GET / HTTP/1.1\r\nX: " + "x" * 20_000, 431),
    ("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    (f"GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\n{WEBSOCKET}\r\n", 401),
    (
        "GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\n"
        f"Origin: http://evil.example\r\n{WEBSOCKET}\r\n",
        403,
    ),
)
AT_WEBSOCKETS: Final = (
    (f"GET /nothing HTTP/1.1\r\nHost: localhost\r\n{WEBSOCKET}\r\n", 404),
    (f"GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\n{WEBSOCKET}\r\n", 401),
    ("GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (
        "GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\n"
        f"{WEBSOCKET.replace('13', '12')}\r\n",
        426,
    ),
    ("nonsense\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nX: " + "x" * 20_000, 431),
)


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": listeners("http", "ws"),
        "history": "memory://",
        "grants": {TOKEN: {"a", "/foo"}},
    }


async def head_of(server: Server, listener: int, sent: str) -> tuple[int, dict[str, str]]:
    """The status and the headers of what answers these bytes."""
    port = port_of(server.urls[listener])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        if sent:
            await stream.send_all(sent.encode("latin-1"))
        found = b""
        while b"\r\n\r\n" not in found:
            data = await stream.receive_some(65_536)
            assert data, found
            found += data
    first, *lines = found.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    return int(first.split()[1]), {
        name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
    }


@pytest.mark.parametrize(
    ("listener", "sent", "status"),
    [(0, *each) for each in ANSWERED] + [(1, *each) for each in AT_WEBSOCKETS],
)
async def test_no_foreign_page_may_load_an_answer(
    server: Server, listener: int, sent: str, status: int
) -> None:
    found, headers = await head_of(server, listener, sent)
    assert found == status
    assert headers[POLICY] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_nor_that_there_are_too_many_connections(
    server: Server, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionLimiter, "enter", lambda self, address: None)
    listener = ("http", "ws").index(scheme)
    status, headers = await head_of(server, listener, AT_WEBSOCKETS[1][0])
    assert status == 429
    assert headers[POLICY] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"


async def test_pages_of_an_allowed_origin_may_load_what_is_answered_to_them(
    server: Server,
) -> None:
    async with connect(server) as client:
        for path in ("/", "/mist.js", "/nothing", "/v1/messages?tags=a"):
            for origin, policy in (
                (OURS, "cross-origin"),
                ("http://evil.example", "same-origin"),
                ("null", "same-origin"),
            ):
                response = await client.request("GET", path, {"Origin": origin})
                assert response.headers[POLICY] == policy
                assert "Origin" in response.headers["vary"]


async def test_a_page_shares_no_window_with_a_foreign_one(server: Server) -> None:
    for path in ("/", "/static/dashboard.css"):
        response = await request(server, "GET", path)
        assert response.status == 200
        assert response.headers["cross-origin-opener-policy"] == "same-origin"


async def test_a_mistake_of_ours_is_isolated_as_well(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, listen=listeners("http")) as server:
        monkeypatch.setattr(server.hub.registry, "page", None)
        response = await request(server, "GET", "/v1/tokens")
        assert response.status == 500
        assert response.headers[POLICY] == "same-origin"
    assert any(record.exc_info for record in caplog.records)
