"""Requests that a trusted proxy passes on, and one port for HTTP and WebSockets."""

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mist.config import Listen
from mist.config.public_url import PublicUrl
from mist.server import Server
from tests.http.client import Client, Response, connect, request
from tests.http.events import listen
from tests.servers import listeners, running
from tests.transports.test_websocket import browse, code, status
from tests.waiting import until

LISTEN = listeners("http", "ws")
TRUSTED = (ip_network("127.0.0.1/32"), ip_network("10.0.0.0/8"))
PUBLIC = "https://mist.example/below"
GRANTS = {"T": {"a", ">a"}}
ENDPOINTS = "/v1/endpoints"
FROM = {"X-Forwarded-For": "203.0.113.9"}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": LISTEN,
        "trusted_proxies": TRUSTED,
        "grants": GRANTS,
        "server_names": ("mist.example",),
        "max_connections_per_address": 3,
        "request_rate": 5,
        "failed_auth_delay": 0.0,
    }


async def get(server: Server, headers: Mapping[str, str], path: str = ENDPOINTS) -> Response:
    return await request(server, "GET", path, headers)


# addresses


async def test_each_client_has_its_own_rate(server: Server) -> None:
    async def asked(headers: Mapping[str, str], count: int = 12) -> list[int]:
        async with connect(server) as client:
            return [(await client.request("GET", "/healthz", headers)).status for _ in range(count)]

    assert 429 in await asked(FROM)
    # The same one, whatever it writes itself, and over the standard's header.
    assert await asked({"X-Forwarded-For": "1.2.3.4, 203.0.113.9"}, 1) == [429]
    assert await asked({"Forwarded": "for=1.2.3.4, for=203.0.113.9, for=10.1.1.1"}, 1) == [429]
    assert await asked({"X-Forwarded-For": "203.0.113.10"}, 1) == [200]
    assert await asked({}) == [200] * 12  # the proxy itself


async def test_a_stranger_is_believed_nothing(tmp_path: Path) -> None:
    names = ("mist.example",)
    async with running(
        tmp_path,
        listen=LISTEN,
        trusted_proxies=TRUSTED[1:],
        server_names=names,
        grants=GRANTS,
    ) as server:
        for more in ({"X-Forwarded-Host": "evil.example"}, {"X-Forwarded-For": "evil"}):
            headers = {**FROM, "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/x", **more}
            found = await get(server, headers)
            assert found.status == 200
            assert found.json()["stream"] == "/v1/stream"
            assert found.json()["websocket"].startswith("ws://127.0.0.1:")
        for index in (0, 1):
            async with browse(server, "T", index=index, headers=dict(FROM)) as page:
                assert (await page.ask("ping"))["success"]
                assert [each.peer for each in server.hub.sessions] == ["127.0.0.1"]
            await until(lambda: server.hub.sessions.connected == 0)


@pytest.mark.parametrize("index", [None, 0, 1])  # a request, and a WebSocket at either listener
async def test_a_proxy_that_nobody_trusts_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, index: int | None
) -> None:
    def told() -> list[str]:
        return [each.__dict__["peer"] for each in caplog.records if "proxy" in each.message]

    async with running(tmp_path, listen=LISTEN, grants=GRANTS) as server:
        for headers, peers in [({}, []), (FROM, ["127.0.0.1"]), (FROM, ["127.0.0.1"])]:
            if index is None:
                assert (await get(server, headers)).status == 200
            else:
                async with browse(server, "T", index=index, headers=dict(headers)) as page:
                    assert (await page.ask("ping"))["success"]
            assert told() == peers


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "evil"},
        {"Forwarded": 'for="x, for=203.0.113.9'},
        {**FROM, "X-Forwarded-Proto": "gopher"},
        {**FROM, "X-Forwarded-Prefix": "//evil.example"},
    ],
)
async def test_what_cannot_be_understood_is_refused_and_costs_nobody_else(
    server: Server, headers: dict[str, str]
) -> None:
    found = await get(server, headers)
    assert (found.status, found.json()["code"]) == (400, "invalid_forwarding")
    assert await status(server, token="T", ours=False, headers=headers) == 400
    assert await code(server, token="T", headers=headers, index=0) == 4400
    assert (await get(server, FROM)).status == 200


async def test_connections_are_counted_by_client(server: Server) -> None:
    async with connect(server) as one, connect(server) as two, connect(server) as proxy:
        bodies = []
        for client in (one, two):  # streams, each of which takes one of the proxy's connections
            await client.send_request("GET", "/v1/stream?tags=a", {**FROM, "X-Auth-Token": "T"})
            bodies.append(await client.receive_head())
        async with browse(server, "T", headers=dict(FROM)) as page:
            assert (await page.ask("ping"))["success"]
            refused = await proxy.request("GET", "/healthz", FROM)
            assert (refused.status, refused.json()["code"]) == (429, "too_many_connections")
            assert refused.headers["connection"] == "close"
            for index in (0, 1):
                assert await code(server, token="T", headers=dict(FROM), index=index) == 4429
            other = {"X-Forwarded-For": "203.0.113.10"}
            assert (await get(server, other)).status == 200
            assert (await get(server, {})).status == 200
        async with connect(server) as client:
            await until(lambda: server.hub.sessions.connected == 2)
            assert (await client.request("GET", "/healthz", FROM)).status == 200
    await until(lambda: server.hub.sessions.connected == 0)
    for _ in range(2):  # all is given back
        assert (await get(server, {"X-Forwarded-For": "203.0.113.11"})).status == 200
    assert server.hub.sessions.refused


@pytest.mark.parametrize("index", [0, 1])
async def test_a_sessions_address_is_the_clients(server: Server, index: int) -> None:
    async with browse(server, "T", headers=dict(FROM), index=index) as page:
        assert (await page.ask("ping"))["success"]
        assert [each.peer for each in server.hub.sessions] == ["203.0.113.9"]
        found = await get(server, {}, "/v1/connections")
        assert [each["peer"] for each in found.json()["connections"]] == ["203.0.113.9"]


async def test_a_streams_address_is_the_clients(server: Server) -> None:
    async with listen(server, "tags=a", {**FROM, "X-Auth-Token": "T"}):
        assert [each.peer for each in server.hub.sessions] == ["203.0.113.9"]


async def test_requests_of_several_clients_share_a_connection(server: Server) -> None:
    async with connect(server) as proxy:
        for number in range(20):
            headers = {"X-Forwarded-For": f"203.0.113.{number}", "X-Forwarded-Prefix": f"/{number}"}
            found = await proxy.request("GET", ENDPOINTS, headers)
            assert found.json()["poll"].endswith(f"/{number}/v1/poll")
        found = await proxy.request("GET", ENDPOINTS, {})
        assert found.json()["poll"] == "/v1/poll"


# names and URLs


def urls(base: str) -> dict[str, object]:
    return {
        "websocket": f"ws{base.removeprefix('http')}/subscribe/websocket",
        "stream": f"{base}/v1/stream",
        "poll": f"{base}/v1/poll",
        "publish": f"{base}/v1/messages",
        "tickets": f"{base}/v1/tickets",
        "history": False,
    }


@pytest.mark.parametrize(
    ("headers", "base"),
    [
        ({"X-Forwarded-Proto": "https", "Host": "mist.example"}, "https://mist.example"),
        (
            {
                "X-Forwarded-Proto": "https",
                "X-Forwarded-Host": "MIST.example:8443",
                "X-Forwarded-Prefix": "/below/",
                "Host": "upstream",
            },
            "https://MIST.example:8443/below",
        ),
        (
            {"Forwarded": "for=203.0.113.9;proto=https;host=mist.example", "Host": "upstream"},
            "https://mist.example",
        ),
        ({**FROM, "Host": "mist.example"}, "http://mist.example"),
    ],
)
async def test_endpoints_are_where_the_proxy_has_them(
    server: Server, headers: dict[str, str], base: str
) -> None:
    found = await get(server, headers)
    assert found.json() == urls(base)
    assert found.headers["cache-control"] == "no-store"  # it is another's for another
    policy = (await get(server, headers, "/")).headers["content-security-policy"]
    assert f" ws{base.removeprefix('http').removesuffix('/below')};" in policy


async def test_the_public_url_comes_before_all_else(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"listen": LISTEN, "secret": "s", "trusted_proxies": TRUSTED}
    settings["failed_auth_delay"] = 0.0
    async with running(tmp_path, public_url=PublicUrl.parse(PUBLIC), **settings) as server:
        for headers in (
            {},
            {"Host": "mist.example"},
            {"X-Forwarded-Host": "localhost", "X-Forwarded-Prefix": "/x"},
        ):
            assert (await get(server, headers)).json() == urls(PUBLIC)
        page = {"Origin": "https://mist.example", "X-Auth-Token": "nobody"}
        assert (await get(server, page, "/v1/poll?tags=a")).status == 401
        found = await request(server, "POST", "/v1/tickets", page, json={})
        assert found.status == 401
        assert found.headers["access-control-allow-origin"] == "https://mist.example"
        for origin in ("https://mist.example:8443", "https://evil.example"):
            found = await request(server, "POST", "/v1/tickets", {"Origin": origin}, json={})
            assert found.status == 403
            headers = {"Origin": origin}
            assert await code(server, token="T", headers=headers, index=0) == 4403
        headers = {"Origin": "https://mist.example"}
        assert await code(server, token="T", headers=headers, index=0) == 4401


async def test_a_name_that_is_not_ours_is_refused_and_told_what_to_set(server: Server) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"Host": "mist.example", **FROM, "X-Forwarded-Host": "evil.example"},
        {"Host": "mist.example", "Forwarded": "for=1.1.1.1;host=evil.example"},
    ):
        found = await get(server, headers)
        assert (found.status, found.json()["code"]) == (421, "misdirected_request")
        assert "--server-name" in found.json()["detail"]


async def test_orchestrators_ask_under_any_name(server: Server) -> None:
    for path in ("/healthz", "/readyz"):
        found = await get(server, {"Host": "10.1.2.3.nip.example"}, path)
        assert (found.status, found.headers.get("server")) == (200, None)
    for path in ("/healthz/", "/v1/stats", "/", "/mist.js", "/healthz%20"):
        assert (await get(server, {"Host": "10.1.2.3.nip.example"}, path)).status == 421
    two = b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"
    async with connect(server) as client:
        await client.connection.send_all(two)
        assert (await client.receive_some()).startswith(b"HTTP/1.1 400 ")


async def test_a_name_of_a_page_gets_no_service_of_loopback(tmp_path: Path) -> None:
    """DNS rebinding: a page's own name resolves to this machine."""
    evil = {"Host": "evil.example"}
    async with running(tmp_path / "1", listen=LISTEN) as server:
        assert (await get(server, {}, "/metrics")).status == 200
        assert (await get(server, evil, "/metrics")).status in (401, 403)
    async with running(tmp_path / "2", listen=LISTEN, open_metrics=True) as server:
        assert (await get(server, evil, "/metrics")).status == 200
    async with running(tmp_path / "3", listen=LISTEN, secret="s") as server:
        assert (await get(server, evil, "/metrics")).status == 401
        allowed = {**evil, "Authorization": "Bearer s"}
        assert (await get(server, allowed, "/metrics")).status == 200


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
async def test_what_was_passed_on_is_no_service_without_a_secret(server: Server, name: str) -> None:
    value = {"Forwarded": "for=203.0.113.9", "Via": "1.1 proxy"}.get(name, "203.0.113.9")
    body = {"tags": ["a"], "data": "x"}
    assert (await request(server, "POST", "/v1/messages", json=body)).status == 202
    headers = {name: value}
    found = await request(server, "POST", "/v1/messages", headers, json=body)
    assert (found.status, found.json()["code"]) == (401, "unauthorized")
    for path in ("/v1/stats", "/v1/connections", "/metrics"):
        assert (await get(server, headers, path)).status in (401, 403)
    found = await request(
        server, "POST", "/v1/messages", {**headers, "X-Auth-Token": "T"}, json=body
    )
    assert found.status == 202


async def test_a_reload_changes_who_is_trusted_and_by_which_names(server: Server) -> None:
    headers = {**FROM, "X-Forwarded-Host": "other.example"}
    for names, proxies, expected in (
        (("other.example",), TRUSTED, 200),
        ((), TRUSTED, 421),
        ((), (), 200),  # by its own name
    ):
        server.configure(attrs.evolve(server.config, server_names=names, trusted_proxies=proxies))
        assert (await get(server, headers)).status == expected


async def test_who_connects_to_a_unix_socket_is_a_proxy(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with (
        running(tmp_path / "data", listen=(Listen("http+unix", path=str(path)),)),
        await trio.open_unix_socket(path) as stream,
    ):
        client = Client(stream, "localhost")
        headers = {**FROM, "X-Forwarded-Proto": "https", "X-Forwarded-Host": "app.localhost"}
        found = await client.request("GET", ENDPOINTS, headers)
        assert found.json()["stream"] == "https://app.localhost/v1/stream"
        assert (await client.request("GET", ENDPOINTS, {})).json()["stream"] == "/v1/stream"
        assert (await client.request("GET", "/v1/stats", headers)).status in (401, 403)


# one port

HANDSHAKE = (
    b"GET /subscribe/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nX-Auth-Token: T\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PING = b"\x81\x92" + b"\0\0\0\0" + b'{"command":"ping"}'
PONG = b'{"success":true,"command":"ping"}'


async def told(client: Client, *, until_end: bool = False) -> bytes:
    with trio.fail_after(10):
        found = await client.receive_some()
        while until_end and (more := await client.receive_some()):
            found += more
    return found


async def test_a_connection_that_was_used_becomes_a_websocket(server: Server) -> None:
    async with connect(server) as client:
        for _ in range(3):
            assert (await client.request("GET", "/healthz")).status == 200
        await client.connection.send_all(HANDSHAKE)
        assert (await told(client)).startswith(b"HTTP/1.1 101 ")
        await client.connection.send_all(PING)
        assert PONG in await told(client)


async def test_a_handshake_behind_a_request_in_one_piece(server: Server) -> None:
    async with connect(server) as client:
        await client.connection.send_all(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + HANDSHAKE
        )
        found = b""
        while b"HTTP/1.1 101 " not in found:
            found += await told(client)
        assert found.startswith(b"HTTP/1.1 200 ")
        await client.connection.send_all(PING)
        assert PONG in await told(client)


async def test_a_handshake_byte_by_byte(server: Server) -> None:
    async with connect(server) as client:
        for place in range(len(HANDSHAKE)):
            await client.connection.send_all(HANDSHAKE[place : place + 1])
        assert (await told(client)).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("behind", [PING, b"\x81", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_bytes_behind_a_handshake_are_refused(server: Server, behind: bytes) -> None:
    """They may be a request that a proxy has taken for a frame, or the other way round."""
    async with connect(server) as client:
        await client.connection.send_all(HANDSHAKE + behind)
        found = await told(client, until_end=True)
        assert found.startswith(b"HTTP/1.1 400 ")
        assert found.count(b"HTTP/1.1") == 1
    assert (await get(server, {})).status == 200


async def test_a_handshake_with_a_body_is_refused(server: Server) -> None:
    for extra in (b"Content-Length: 4\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        async with connect(server) as client:
            await client.connection.send_all(HANDSHAKE[:-2] + extra)
            assert (await told(client, until_end=True)).startswith(b"HTTP/1.1 400 ")


async def test_half_a_handshake_ends_in_time(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, handshake_seconds=0.2) as server:
        async with connect(server) as client:
            assert (await client.request("GET", "/healthz")).status == 200
            await client.connection.send_all(HANDSHAKE[:-9])
            assert await told(client, until_end=True) == b""


async def test_who_has_not_authenticated_is_counted_as_at_a_ws_listener(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, max_unauthenticated=2, grants=GRANTS) as server:
        async with browse(server, None, index=0) as oldest, browse(server, None, index=1) as second:
            async with browse(server, None, index=0):
                assert await oldest.closed() == 4429
                async with browse(server, "T", index=0) as page:
                    assert (await page.ask("ping"))["success"]
                assert await second.closed() == 4429


async def test_silence_before_auth_ends_a_websocket_at_an_http_listener(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, auth_seconds=0.1) as server:
        assert await code(server, token=None, index=0) == 4408
