"""mist.js gets another token before a JWT expires, in a real browser."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mist.server import Server
from tests.auth.jwt.issuer import claims, sign, write_jwks
from tests.servers import port_of, running
from tests.static.pages import ClientPage, Proxy
from tests.waiting import until

GRANTS = {"tags": ["a"]}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    keys = write_jwks(tmp_path / "jwks.json", "ed")
    async with running(tmp_path, history="memory://", jwt_jwks=(str(keys),)) as server:
        yield server


@pytest.fixture
async def proxy(server: Server, nursery: trio.Nursery) -> Proxy:
    return await nursery.start(Proxy(port_of(server.urls[1])).run)


def token(seconds: float, jti: str) -> str:
    now = time.time()
    return sign(claims(mist=GRANTS, jti=jti, iat=now, exp=now + seconds), "ed")


async def begin(page: ClientPage, proxy: Proxy, *tokens: str) -> None:
    """Connect with a function that gives these tokens, the last one again and again."""
    await page.evaluate(
        f"window.tokens = {json.dumps(tokens)};"
        "window.asked = 0;"
        "window.next = async () => tokens[Math.min(asked++, tokens.length - 1)]"
    )
    url = f"ws://127.0.0.1:{proxy.port}"
    await page.start(url, token="=>next")
    await page.listen("a")


async def test_another_token_is_presented_before_a_jwt_expires(
    page: ClientPage, server: Server, proxy: Proxy
) -> None:
    await begin(page, proxy, token(2.5, "one"), token(600, "two"))
    await page.until("asked === 2")
    await trio.sleep(1.5)
    assert not server.hub.expiry.ended
    await server.hub.store(frozenset({"a"}), b"hello")
    assert await page.got(1) == ["a: hello"]
    assert proxy.connections == 1
    assert await page.evaluate("asked") == 2


async def test_without_a_newer_token_it_reconnects_once_there_is_one(
    page: ClientPage, server: Server, proxy: Proxy
) -> None:
    first = token(1.5, "one")
    await begin(page, proxy, first, first, token(600, "two"))
    await until(lambda: server.hub.expiry.ended == 1)
    await page.until("client.state === 'open' && asked === 3")
    await server.hub.store(frozenset({"a"}), b"hello")
    assert await page.got(1) == ["a: hello"]
    assert proxy.connections == 2
