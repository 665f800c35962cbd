"""The chat example: two real browsers, the example's own service, a real server."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.axe import violations
from tests.chromium import Page, chromium, open_page
from tests.processes import Process, environment, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat"
LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0",
          "--listen", "http://127.0.0.1:0")  # fmt: skip
OPEN = "document.getElementById('state').dataset.state === 'open'"


@pytest.fixture(scope="module")
def browsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two of them: nothing that one knows can reach the other but over the network."""
    with (
        chromium(tmp_path_factory.mktemp("one")) as one,
        chromium(tmp_path_factory.mktemp("two")) as two,
    ):
        yield [one, two]


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    return LISTEN


@pytest.fixture
def site(own_process: Process) -> Iterator[str]:
    tcp, _, http = own_process.urls
    with subprocess.Popen(
        [sys.executable, EXAMPLE / "serve.py", "--port", "0", "--tcp", tcp, "--http", http],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.kill()


@asynccontextmanager
async def visiting(browser: str, site: str) -> AsyncIterator[Page]:
    async with open_page(browser) as page:
        await page.open(site)
        yield page
        await page.evaluate("0")
        assert page.errors == []


def ask(http: str, method: str, path: str) -> dict[str, Any]:
    """What the server's own HTTP endpoint says."""
    with urllib.request.urlopen(urllib.request.Request(http + path, method=method)) as answer:
        return dict(json.loads(answer.read() or b"{}"))


async def join(page: Page, name: str, room: str = "lobby") -> None:
    for field, text in {"#name": name, "#room": room}.items():
        await page.click(field)
        await page.evaluate("document.activeElement.select()")
        await page.type(text)
    await page.press("Enter")
    await page.until(OPEN)


async def say(page: Page, text: str) -> None:
    await page.click("#text")
    await page.type(text)
    await page.press("Enter")
    await page.until("document.getElementById('text').value === ''")


async def heard(page: Page, number: int) -> list[str]:
    await page.until(f"document.querySelectorAll('#messages p').length >= {number}")
    return [each.replace("\n", ": ", 1) for each in await page.texts("#messages p")]


async def test_two_browsers_talk_and_who_comes_later_reads_what_was_said(
    browsers: list[str], site: str
) -> None:
    async with visiting(browsers[0], site) as ann, visiting(browsers[1], site) as bob:
        assert await violations(ann) == []
        await join(ann, "Ann")
        await say(ann, "anyone here?")
        assert await heard(ann, 1) == ["Ann: anyone here?"]
        await join(bob, "Bob")
        assert await heard(bob, 1) == ["Ann: anyone here?"]
        await say(bob, "<b>me</b> & you")
        everything = ["Ann: anyone here?", "Bob: <b>me</b> & you"]
        assert await heard(ann, 2) == await heard(bob, 2) == everything
        assert await ann.texts("#messages .mine") == ["Ann\nanyone here?"]
        assert await violations(ann) == []


async def test_another_room_hears_nothing_of_it(browsers: list[str], site: str) -> None:
    async with visiting(browsers[0], site) as ann, visiting(browsers[1], site) as eve:
        await join(ann, "Ann", "kitchen")
        await join(eve, "Eve", "cellar")
        await say(ann, "a secret")
        assert await heard(ann, 1) == ["Ann: a secret"]
        await say(eve, "hello?")
        assert await heard(eve, 1) == ["Eve: hello?"]


async def test_what_is_wrong_is_told_in_words(browsers: list[str], site: str) -> None:
    async with visiting(browsers[0], site) as page:
        await page.evaluate("document.getElementById('room').removeAttribute('pattern')")
        for field, text in {"#name": "Ann", "#room": "NO"}.items():
            await page.click(field)
            await page.evaluate("document.activeElement.select()")
            await page.type(text)
        await page.press("Enter")
        await page.until("!document.getElementById('error').hidden")
        assert "lowercase" in await page.text("#error")


async def test_a_token_taken_back_shows_one_out_and_leaving_takes_it_back(
    browsers: list[str], site: str, own_process: Process
) -> None:
    http = own_process.urls[2]
    async with visiting(browsers[0], site) as ann, visiting(browsers[1], site) as bob:
        await join(ann, "Ann")
        (token,) = ask(http, "GET", "/v1/tokens")["tokens"]
        await join(bob, "Bob")
        ask(http, "DELETE", f"/v1/tokens/{token['id']}")
        await ann.until("!document.getElementById('error').hidden")
        assert await ann.text("#error") == "Your token was revoked. Join again to return."
        await say(bob, "still here")
        assert await heard(bob, 1) == ["Bob: still here"]
        await bob.click("#leave")
        await bob.until("!document.getElementById('join').hidden")
        assert await bob.text("#state") == "not in a room"
        for _ in range(100):
            if not ask(http, "GET", "/v1/tokens")["tokens"]:
                break
            await trio.sleep(0.1)
        else:
            raise AssertionError("the token is still there")


async def test_a_server_that_comes_back_has_lost_nothing(
    browsers: list[str], tmp_path: Path
) -> None:
    with serving(tmp_path / "data", listen=LISTEN) as server:
        urls = server.urls
        again = [part for url in urls for part in ("--listen", url.partition("/sub")[0])]
        with subprocess.Popen(
            [sys.executable, EXAMPLE / "serve.py", "--port", "0", "--tcp", urls[0],
             "--http", urls[2]],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as service:  # fmt: skip
            assert service.stdout is not None
            site = service.stdout.readline().split()[1]
            try:
                async with visiting(browsers[0], site) as page:
                    await join(page, "Ann")
                    await say(page, "before")
                    await heard(page, 1)
                    server.stop(signal.SIGKILL)
                    await page.until("document.getElementById('state').dataset.state !== 'open'")
                    with serving(tmp_path / "data", listen=again):
                        # The longer that took, the longer the page would wait by itself.
                        await page.evaluate("dispatchEvent(new Event('online'))")
                        await page.until(OPEN)
                        await say(page, "after")
                        assert await heard(page, 2) == ["Ann: before", "Ann: after"]
            finally:
                service.kill()
