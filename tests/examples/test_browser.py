"""The example page in a real browser, against a real server."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trio

from mist.client import connect
from tests.examples.chromium import Page, open_page
from tests.processes import environment, mist, serving

ROOT = Path(__file__).parents[2]
DATA = "order <script>document.title = 'attacked'</script>"


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The page, served by the example's own script."""
    with subprocess.Popen(
        [sys.executable, ROOT / "examples" / "browser" / "serve.py", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.kill()


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with open_page(tmp_path / "profile") as page:
        with trio.fail_after(60):
            yield page


def link(site: str, server: str, token: str, tags: str) -> str:
    return f"{site}#{urlencode({'url': server, 'token': token, 'tags': tags})}"


def new_token(url: str, tags: str) -> str:
    done = mist("token", "new", tags, "--host", url)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CONNECTED = "document.getElementById('state').dataset.state === 'connected'"


async def test_messages_appear_live_and_as_text(page: Page, site: str, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        tcp, ws = server.urls
        await page.open(link(site, ws, new_token(tcp, "order"), "order, eu"))
        await page.until(CONNECTED)
        async with connect(tcp) as client:
            await client.publish(["order"], "not for this page")
            await client.publish(["order", "eu", "paid"], DATA)
        await page.until("document.querySelectorAll('#messages li').length === 1")
        row = await page.text("#messages li")
        assert DATA in row
        assert row.split("\n")[1:4] == ["eu", "order", "paid"]
        assert await page.evaluate("document.title") != "attacked"
        assert await page.text("#count") == "1 message"
        # The token is not left in the address bar.
        assert await page.evaluate("location.hash") == ""


async def test_a_token_revoked_while_the_page_is_open_ends_it(
    page: Page, site: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as server:
        tcp, ws = server.urls
        token = new_token(tcp, "a,b")
        await page.open(link(site, ws, token, "a"))
        await page.until(CONNECTED)
        mist("token", "unset", "a", token, "--host", tcp)
        await page.until("document.getElementById('notice').innerText.includes('no longer allows')")
        mist("token", "unregister", token, "--host", tcp)
        await page.until("document.getElementById('state').dataset.state === 'refused'")
        assert "4401" in await page.text("#state")
        assert "revoked" in await page.text("#notice")


async def test_a_wrong_token_and_a_tag_not_granted_are_explained(
    page: Page, site: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as server:
        tcp, ws = server.urls
        await page.open(link(site, ws, "nobody's", "a"))
        await page.until("document.getElementById('state').innerText.includes('4401')")
        assert "mist token new" in await page.text("#notice")
        await page.open(link(site, ws, new_token(tcp, "a"), "b"))
        await page.until("document.getElementById('notice').innerText.includes('not granted')")


async def test_a_page_from_elsewhere_is_refused_and_told_why(
    page: Page, site: str, tmp_path: Path
) -> None:
    # Listening beyond loopback, the server knows no origin by itself.
    listen = ("--listen", "tcp://127.0.0.1:0", "--listen", "ws://[::]:0")
    with serving(tmp_path / "data", "--insecure", listen=listen) as server:
        ws = server.urls[1].replace("[::]", "[::1]")
        await page.open(link(site, ws, new_token(server.urls[0], "a"), "a"))
        await page.until("document.getElementById('state').innerText.includes('4403')")
        assert "--allow-origin" in await page.text("#notice")


async def test_the_page_comes_back_after_the_server_was_killed(
    page: Page, site: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as server:
        tcp, ws = server.urls
        await page.open(link(site, ws, new_token(tcp, "a"), "a"))
        await page.until(CONNECTED)
        server.stop(9)
        await page.until("document.getElementById('state').dataset.state === 'reconnecting'")
    with serving(tmp_path / "data", listen=("--listen", tcp, "--listen", ws)):
        await page.until(CONNECTED)
        async with connect(tcp) as client:
            await client.publish(["a"], "back again")
        await page.until("document.querySelectorAll('#messages li').length === 1")
