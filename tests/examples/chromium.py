"""A real headless Chromium, driven over its DevTools protocol."""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def find_chromium() -> str:
    """Its path. Skips the test where there is none, but never in CI."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    if os.environ.get("CI") == "true":
        raise AssertionError("no Chromium, and in CI there has to be one")
    pytest.skip("no Chromium; Debian: apt-get install chromium")


class Page:
    """One tab."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def call(self, method: str, **parameters: object) -> dict[str, object]:
        """One DevTools command and its result."""
        number = next(self._numbers)
        await self._socket.send_message(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
        while True:
            answer = json.loads(await self._socket.get_message())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    async def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def evaluate(self, expression: str) -> object:
        """The value of an expression; a promise is waited for."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        value = result["result"]
        assert isinstance(value, dict)
        return value.get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        with trio.fail_after(20):
            while True:
                try:
                    if await self.evaluate(condition):
                        return
                except AssertionError:
                    pass  # between two pages there is nothing to ask
                await trio.sleep(0.02)  # the page has no way to call us

    async def text(self, selector: str) -> str:
        """What a person reads in an element."""
        found = await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        assert isinstance(found, str)
        return found


@asynccontextmanager
async def open_page(folder: Path) -> AsyncIterator[Page]:
    """A browser of its own, with one tab, for the length of the block."""
    with subprocess.Popen(
        [find_chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            port = await _port(folder)
            target = await _first_target(port)
            async with open_websocket_url(
                f"ws://127.0.0.1:{port}/devtools/page/{target}", max_message_size=1 << 26
            ) as socket:
                yield Page(socket)
        finally:
            process.kill()


async def _port(folder: Path) -> int:
    path = trio.Path(folder / "DevToolsActivePort")
    with trio.fail_after(30):
        while True:
            try:
                return int((await path.read_text()).split("\n")[0])
            except (FileNotFoundError, ValueError):
                await trio.sleep(0.02)  # another program's file


async def _first_target(port: int) -> str:
    """The id of the browser's tab, from its HTTP side."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(
            b"GET /json/list HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        answer = b""
        while b"]" not in answer and (data := await stream.receive_some()):
            answer += data
    targets = json.loads(answer.partition(b"\r\n\r\n")[2])
    return str(next(each["id"] for each in targets if each["type"] == "page"))
