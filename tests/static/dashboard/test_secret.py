"""The dashboard asks for the secret, and keeps it to itself."""

from pathlib import Path

from mist.config import Listen
from mist.server import Server
from tests.axe import violations
from tests.chromium import Page, open_page
from tests.servers import running
from tests.static.dashboard.looking import FAULTS, LIVE, Open, fill, tile_is


async def test_it_asks_for_the_secret_and_keeps_it_to_itself(opened: Open, guarded: Server) -> None:
    async with opened(guarded) as page:
        await page.until("!document.getElementById('gate').hidden")
        assert await page.evaluate("document.getElementById('board').hidden")
        assert await page.evaluate("document.activeElement.id") == "secret"
        await page.type("wrong")
        await page.press("Enter")
        await page.until("document.getElementById('gate-said').textContent !== ''")
        assert await page.text("#gate-said") == "That is not the secret."
        await fill(page, "#secret", "geheim-ä")
        await page.press("Enter")
        await page.until(LIVE)
        await page.until(tile_is("Published", "it === '0'"))  # a second look, by the poller
        await page.click("#publish button")
        await page.until("document.querySelector('#publish-said').textContent.startsWith('Stored')")
        kept = (
            "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href,"
            "history.state, document.documentElement.outerHTML, window.name,"
            "[...document.querySelectorAll('input')].map((each) => each.value)])"
        )
        assert "geheim" not in await page.evaluate(kept)
        assert await page.evaluate("localStorage.length + sessionStorage.length") == 0
        assert await page.evaluate("indexedDB.databases().then((all) => all.length)") == 0
        await page.click("#forget")
        await page.until("!document.getElementById('gate').hidden")
        assert await page.evaluate("document.getElementById('forget').hidden")
        await page.reload()
        await page.until("!document.getElementById('gate').hidden")


async def test_a_server_without_a_secret_is_not_asked_for_one(live: Page) -> None:
    assert await live.evaluate("document.getElementById('gate').hidden")
    assert await live.evaluate("document.getElementById('forget').hidden")


async def test_beyond_loopback_a_server_without_a_secret_is_not_asked_for_one_either(
    browser: str, tmp_path: Path
) -> None:
    listen = (Listen("http", "0.0.0.0", 0), Listen("http", "127.0.0.1", 0))
    async with (
        running(tmp_path / "data", listen=listen, insecure=True) as server,
        open_page(browser) as page,
    ):
        beyond, loopback = (f"http://127.0.0.1:{url.rpartition(':')[2]}/" for url in server.urls)
        await page.open(beyond)
        await page.until("!document.getElementById('closed').hidden")
        assert await page.evaluate("document.getElementById('gate').hidden")
        assert await page.evaluate("document.getElementById('board').hidden")
        assert await page.text("#closed-title") == "This server has no secret"
        assert "loopback" in await page.text("#closed")
        assert await page.text("#state") == "no secret"
        assert await page.evaluate(FAULTS) == []
        assert await violations(page) == []
        # The next server at this place may have one, or tell all.
        await page.evaluate("window.fetch = async () => new Response('{}', {status: 401})")
        await page.until("!document.getElementById('gate').hidden")
        assert await page.evaluate("document.getElementById('closed').hidden")
        await page.open(loopback)
        await page.until(LIVE)
        assert await page.evaluate("document.getElementById('closed').hidden")
