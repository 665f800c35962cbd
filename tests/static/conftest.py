"""One browser for all tests of mist.js, and for each test a page of its own."""

from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from tests.chromium import chromium
from tests.static.pages import ClientPage, client_page, serve_site


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
async def page(browser: str, nursery: trio.Nursery) -> AsyncIterator[ClientPage]:
    site = await nursery.start(serve_site)
    async with client_page(browser, site) as page:
        yield page
