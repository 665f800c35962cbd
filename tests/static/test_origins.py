"""mist.js from a page of the server's own, under its policy, and from pages of other origins."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mist.client import connect
from mist.config import Listen
from mist.server import Server
from tests.chromium import Page, open_page
from tests.servers import running
from tests.static.pages import serve_site

# A client in the page; what it gets, and the last error of its connection.
START = """
(async () => {
  const {connect} = await import("/mist.js");
  window.got = [];
  window.failed = null;
  window.client = connect(%r, {token: "T", transports: ["websocket"]});
  client.on("state", ({error}) => { window.failed = error?.code ?? window.failed; });
  client.subscribe(["a"], ({data}) => got.push(data), {since: -1});
})()
"""


@asynccontextmanager
async def serving(tmp_path: Path, *listen: Listen, **settings: object) -> AsyncIterator[Server]:
    """A server with one message in its history, `hello`."""
    given = {"listen": (Listen("tcp", "127.0.0.1", 0), *listen), "history": "memory://", **settings}
    async with running(tmp_path, **given) as server, connect(server.urls[0]) as services:
        await services.register(["a"], "T")
        await services.store(["a"], "hello")
        yield server


@asynccontextmanager
async def visiting(browser: str, url: str) -> AsyncIterator[Page]:
    async with open_page(browser) as page:
        await page.open(url)
        yield page
        await page.evaluate("window.client?.close()")
        assert page.errors == []


async def uses_a_websocket(page: Page, url: str) -> None:
    await page.evaluate(START % url)
    await page.until("got.length === 1 || failed")
    assert await page.evaluate("[got, client.transport, failed]") == [["hello"], "websocket", None]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("protocols", [["http"], ["http", "ws"], ["http", "ws", "ws"]])
async def test_a_page_of_the_servers_own_uses_its_websocket(
    browser: str, tmp_path: Path, protocols: list[str], host: str
) -> None:
    listen = [Listen(protocol, host, 0) for protocol in protocols]
    async with serving(tmp_path, *listen) as server, visiting(browser, server.urls[1]) as page:
        await uses_a_websocket(page, server.urls[1])
        # And without mist.js, at the endpoint that it names.
        assert await page.evaluate("""
          (async () => {
            const {websocket} = await (await fetch("/v1/endpoints")).json();
            const socket = new WebSocket(websocket, ["mist.v1", "mist.token.VA"]);
            return new Promise((done) => {
              socket.onopen = () => { done("open"); socket.close(); };
              socket.onerror = () => done("error");
            });
          })()
        """) == "open"  # fmt: skip


async def test_its_policy_forbids_websockets_of_others(browser: str, tmp_path: Path) -> None:
    listen = Listen("http", "127.0.0.1", 0), Listen("ws", "127.0.0.1", 0)
    async with (
        serving(tmp_path / "one", *listen) as server,
        serving(tmp_path / "other", *listen) as other,
        open_page(browser) as page,
    ):
        await page.open(server.urls[1])
        await page.evaluate(START % other.urls[2])
        await page.until("failed")
        assert await page.evaluate("got") == []
        await page.evaluate("client.close()")
        assert any("Content Security Policy" in error for error in page.errors)


async def test_a_page_of_an_allowed_origin_uses_it(
    browser: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    site = await nursery.start(serve_site)
    listen = Listen("http", "0.0.0.0", 0), Listen("ws", "0.0.0.0", 0)
    settings = {"insecure": True, "allow_origin": (site,)}
    async with serving(tmp_path, *listen, **settings) as server, visiting(browser, site) as page:
        await uses_a_websocket(page, server.urls[1].replace("0.0.0.0", "127.0.0.1"))


async def test_a_page_of_another_origin_is_refused(
    browser: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    site = await nursery.start(serve_site)
    listen = Listen("http", "0.0.0.0", 0), Listen("ws", "0.0.0.0", 0)
    async with serving(tmp_path, *listen, insecure=True) as server, open_page(browser) as page:
        await page.open(site)
        found = []
        for url in server.urls[1:]:
            await page.evaluate(START % url.replace("0.0.0.0", "127.0.0.1"))
            await page.until("failed")
            found.append(await page.evaluate("failed"))
            assert await page.evaluate("got") == []
            await page.evaluate("client.close()")
        # Of an answer from another origin a page learns nothing but that there is none for it.
        assert found == ["connection_lost", "origin_not_allowed"]
