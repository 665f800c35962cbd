"""guble's endpoint from pages in Chromium, with what they may offer as subprotocols."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from mist.commands import Register
from mist.server import Server
from tests.chromium import Page, chromium, open_page
from tests.servers import listeners, port_of, running
from tests.static.pages import serve_site
from tests.transports.test_websocket import encode

TOKEN = "t0ken-that-no-log-may-hold"
SETTINGS = {"listen": listeners("tcp", "ws", "http"), "history": "memory://"}
# What a page gets of a connection: the subprotocol and what it is told, or the close code.
_TALK = """
new Promise((resolve) => {
  const socket = new WebSocket(%s, %s);
  const told = [];
  socket.onmessage = ({ data }) => {
    told.push(/^[^ ,]+/.exec(data)[0]);
    if (told.length === 1) socket.send("+ /foo");
    if (told.length === 2) socket.send("> /foo/bar id1\\n\\n\\nhello");
    if (told.length === 4) resolve([socket.protocol, told.sort()]);
  };
  socket.onclose = ({ code }) => resolve(code);
})
"""
TOLD = sorted(["#connected", "#subscribed-to", "#send", "/foo/bar"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
async def page(browser: str, nursery: trio.Nursery) -> AsyncIterator[Page]:
    site = await nursery.start(serve_site)
    async with open_page(browser) as page:
        await page.open(site)
        yield page


async def talk(page: Page, server: Server, offered: list[str], index: int = 1) -> object:
    url = f"ws://127.0.0.1:{port_of(server.urls[index])}/stream/user/marvin"
    return await page.evaluate(_TALK % (json.dumps(url), json.dumps(offered)))


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["mist.topics", "TOKEN"], "mist.topics"),
        (["TOKEN", "mist.v1", "mist.topics"], "mist.topics"),
        # Pages written for guble; a browser fails a connection that names none of its own.
        (["guble", "TOKEN"], "guble"),
        (["TOKEN"], "TOKEN"),
    ],
)
async def test_a_page_brings_its_token_beside_any_subprotocol_or_none(
    page: Page, tmp_path: Path, offered: list[str], chosen: str
) -> None:
    token = encode(TOKEN)
    async with running(tmp_path, **SETTINGS, secret="s3cret") as server:
        await server.hub.registry.execute([Register(TOKEN, frozenset({"/foo", ">/foo"}))])
        for index in (1, 2):
            found = await talk(
                page, server, [each.replace("TOKEN", token) for each in offered], index
            )
            assert found == [chosen.replace("TOKEN", token), TOLD]


async def test_a_page_without_a_token_is_told_so(page: Page, tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS, secret="s3cret") as server:
        assert await talk(page, server, ["mist.topics"]) == 4401
        assert await talk(page, server, ["guble"]) == 1006
        assert await talk(page, server, []) == 1006


@pytest.mark.parametrize("offered", [[], ["guble"], ["mist.topics"]])
async def test_a_page_of_this_machine_is_a_service_where_there_is_no_secret(
    page: Page, tmp_path: Path, offered: list[str]
) -> None:
    async with running(tmp_path, **SETTINGS) as server:
        for index in (1, 2):
            assert await talk(page, server, offered, index) == ["".join(offered), TOLD]
