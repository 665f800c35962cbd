"""Pages of the dashboard, in a real browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mist.server import Server
from tests.chromium import Page, open_page
from tests.servers import running
from tests.static.dashboard.looking import FAKE, LIVE, SETTINGS, WATCH, Open, url_of


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return SETTINGS


@pytest.fixture
def opened(browser: str) -> Open:
    """Opens the page of a server, and sees to it that nothing was wrong with it at the end."""

    @asynccontextmanager
    async def opened(server: Server, first: str = "", *, width: int = 1200) -> AsyncIterator[Page]:
        async with open_page(browser) as page:
            await page.look(width, 900)
            await page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH + first)
            await page.open(url_of(server))
            yield page
            said = await page.evaluate("window.said")
            assert said == []
            assert page.errors == []
            places = await page.evaluate(
                "performance.getEntriesByType('resource').map((each) => each.name)"
            )
            assert places
            assert [each for each in places if not each.startswith(url_of(server))] == []

    return opened


@pytest.fixture
async def live(opened: Open, server: Server) -> AsyncIterator[Page]:
    """The page of a server that has neither secret nor messages, and looks at it."""
    async with opened(server) as page:
        await page.until(LIVE)
        yield page


@pytest.fixture
async def faked(opened: Open, server: Server) -> AsyncIterator[Page]:
    """The page with a clock and figures of the test's own, one look old."""
    async with opened(server, FAKE) as page:
        await page.until("window.looks === 1")
        await page.evaluate("advance(0)")
        yield page


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", **SETTINGS | {"secret": "geheim-ä"}) as server:
        yield server
