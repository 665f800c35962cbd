"""One browser for the tests that need one, and a site with the client that it runs."""

import contextlib
from pathlib import Path

import pytest
import trio

from tests.chromium import chromium, open_page

VENDOR = Path(__file__).parent / "vendor"
SCRIPTS = {
    b"GET /jquery.js": VENDOR / "jquery" / "jquery.min.js",
    b"GET /message-bus.js": VENDOR / "message-bus-client" / "message-bus.js",
}
_PAGE = (
    b"<!doctype html><meta charset=utf-8><title>bus</title><link rel=icon href='data:,'>"
    b"<script src=/jquery.js></script><script src=/message-bus.js></script><body>"
)


async def _answer(stream):
    request = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while b"\r\n\r\n" not in request:
            data = await stream.receive_some(65_536)
            if not data:
                return
            request += data
        script = next((each for start, each in SCRIPTS.items() if request.startswith(start)), None)
        body = _PAGE if script is None else script.read_bytes()
        kind = b"text/html" if script is None else b"text/javascript"
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (kind, len(body), body)
        )
        await stream.aclose()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
async def site(nursery):
    """The origin of a page that runs the client: not the server's, as it mostly is."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, _answer, listeners)
    return f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"


@pytest.fixture
async def page(browser, site):
    async with open_page(browser) as page:
        await page.open(site)
        yield page
