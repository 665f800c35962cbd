"""Authorization without a secret: who may do what."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from mist.config import Listen
from mist.server import Server
from tests.http.client import Client, Response
from tests.servers import port_of

LISTEN = (Listen("http", "0.0.0.0", 0), Listen("http", "127.0.0.1", 0))
ADMIN = [
    "/v1/stats",
    "/v1/stats/history",
    "/v1/stats/subscriptions",
    "/v1/tokens",
    "/v1/connections",
    "/metrics",
]


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": LISTEN,
        "insecure": True,
        "history": "memory://",
        "grants": {"t0ken": {"a"}},
    }


async def ask(url: str, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """Ask the listener with this URL, from loopback in any case."""
    port = port_of(url)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        return await Client(stream, f"127.0.0.1:{port}").request("GET", path, headers)


@pytest.mark.parametrize("path", ADMIN)
async def test_without_a_secret_nobody_is_a_service_beyond_loopback(
    server: Server, path: str
) -> None:
    beyond, loopback = server.urls
    for headers in ({}, {"Authorization": "Bearer guess"}):
        response = await ask(beyond, path, headers)
        assert (response.status, response.json()["code"]) == (403, "loopback_only")
        assert "www-authenticate" not in response.headers  # there is nothing to ask for
    response = await ask(beyond, path, {"X-Auth-Token": "t0ken"})
    assert (response.status, response.json()["code"]) == (403, "secret_needed")
    assert (await ask(loopback, path)).status == 200
    assert not server.hub.failed_auths


async def test_without_a_secret_a_token_is_what_is_asked_for_beyond_loopback(
    server: Server,
) -> None:
    beyond, loopback = server.urls
    for path in ("/v1/messages?tags=a", "/v1/poll?tags=a&timeout=0"):
        response = await ask(beyond, path)
        assert (response.status, response.json()["detail"]) == (401, "give a token")
        assert (await ask(beyond, path, {"X-Auth-Token": "t0ken"})).status == 200
        assert (await ask(loopback, path)).status == 200
