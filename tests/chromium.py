"""A real headless Chromium, driven over its DevTools protocol.

One browser serves many tests: `chromium` starts it, and `open_page` opens a tab that shares
nothing (cookies, storage) with any other. Nothing here sleeps: the browser says on stderr
where it listens, loading a page is an event, and a condition is waited for inside the page.
"""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

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

# Resolves once `condition` holds. Looked at after each change of the document, and once a
# frame for what no observer sees, such as an input's value.
_UNTIL = """
new Promise((resolve) => {
  const holds = () => { try { return !!(%s); } catch { return false; } };
  const look = () => {
    if (!holds()) return false;
    observer.disconnect();
    resolve(true);
    return true;
  };
  const observer = new MutationObserver(look);
  observer.observe(document, {subtree: true, childList: true, attributes: true,
                              characterData: true});
  const each = () => look() || requestAnimationFrame(each);
  each();
})
"""

# Where to point at an element. Whether the click that follows has struck it is in `__struck`; one
# that has not goes no further.
_AIM = """
(() => {
  const it = document.querySelector(%s);
  window.__aim?.abort();
  window.__aim = new AbortController();
  window.__struck = false;
  document.addEventListener("click", (event) => {
    window.__struck = event.composedPath().includes(it);
    if (!window.__struck) { event.preventDefault(); event.stopImmediatePropagation(); }
  }, {capture: true, once: true, signal: window.__aim.signal});
  it.scrollIntoView({block: "center", behavior: "instant"});
  const box = it.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()
"""


def find_chromium() -> str:
    """Its path. Skips the test where there is none, but never in CI."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    if os.environ.get("CI") == "true":
        pytest.fail("no Chromium, and in CI there has to be one")
    pytest.skip("no Chromium; Debian: apt-get install chromium")


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """A browser with an empty profile in `folder`; yields the URL to drive it by."""
    with subprocess.Popen(
        [find_chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                break
        else:
            raise AssertionError(f"Chromium did not start: {''.join(said)}")
        # It goes on to talk, and would stop at a full pipe.
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            yield found[1]
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join()


class Page:
    """One tab. For one task at a time.

    Attributes:
        errors: exceptions that scripts did not catch, and violations of the page's policy.
    """

    def __init__(self, socket: WebSocketConnection) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._session: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._events: deque[dict[str, Any]] = deque(maxlen=1000)

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One DevTools command and its result."""
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": parameters, **self._session}
        await self._socket.send_message(json.dumps(request))
        while (answer := await self._read()).get("id") != number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    async def attach(self, target: str) -> None:
        """From here on, speak to the tab `target` instead of the browser."""
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)

    async def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self._events.clear()
        result = await self.call("Page.navigate", url=url)
        assert "errorText" not in result, result
        if "loaderId" in result:  # else only the part behind # is another one
            # Of this very document: word of the one before may still be on its way.
            await self._loaded(lambda loader: loader == result["loaderId"])

    async def reload(self) -> None:
        """Have the page loaded anew, and wait until it is."""
        before = (await self.call("Page.getFrameTree"))["frameTree"]["frame"]["loaderId"]
        self._events.clear()
        await self.call("Page.reload")
        await self._loaded(lambda loader: loader != before)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, condition: str, seconds: float = 20) -> None:
        """Wait until an expression is true; says what the page shows where it never is."""
        with trio.move_on_after(seconds) as scope:
            await self.evaluate(_UNTIL % condition)
        if scope.cancelled_caught:
            raise AssertionError(f"never: {condition}\n{await self.text('body')}")

    async def text(self, selector: str) -> str:
        """What a person reads in the first such element."""
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def texts(self, selector: str) -> list[str]:
        """The same of all such elements."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].map((it) => it.innerText)"
        return list(await self.evaluate(found))

    async def click(self, selector: str) -> None:
        """Click on an element, as a person would: it has to be where the pointer goes.

        Once more where it moved away under the pointer, as in a page that lives it may.
        """
        for _ in range(20):
            x, y = await self.evaluate(_AIM % json.dumps(selector))
            for kind in ("mousePressed", "mouseReleased"):
                await self.call(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
                )
            if await self.evaluate("window.__struck"):
                return
        raise AssertionError(f"can't be clicked: {selector}\n{await self.text('body')}")

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press `Enter`, `Tab` or `Escape`."""
        code, sent = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}[key]
        await self.call(
            "Input.dispatchKeyEvent",
            type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text=sent,
        )  # fmt: skip
        await self.call(
            "Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code
        )

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be a screen of so many pixels; below 600 it is a phone's."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path) -> None:
        """What is to be seen, as a PNG."""
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    async def error(self) -> str:
        """The next of `errors`, which is in there no more; waits for it."""
        while not self.errors:
            await self._read()
        return self.errors.pop(0)

    async def _loaded(self, is_it: Callable[[str], bool]) -> None:
        while True:
            while self._events:
                event = self._events.popleft()
                if event["method"] != "Page.lifecycleEvent" or event["params"]["name"] != "load":
                    continue
                if is_it(event["params"]["loaderId"]):
                    return
            await self._read()

    async def _read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._socket.get_message())
        match message:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.errors.append(json.dumps(details))
            case {"method": "Log.entryAdded", "params": {"entry": entry}}:
                # A server that can't be reached is logged too, and is no mistake of the page.
                if entry["source"] == "security":
                    self.errors.append(entry["text"])
            case {"method": _}:
                self._events.append(message)
        return message


@asynccontextmanager
async def open_page(browser: str) -> AsyncIterator[Page]:
    """A tab of its own for the length of the block, in a browser that `chromium` started."""
    async with open_websocket_url(browser, max_message_size=1 << 26) as socket:
        page = Page(socket)
        with trio.fail_after(60):
            context = await page.call("Target.createBrowserContext", disposeOnDetach=True)
            target = await page.call(
                "Target.createTarget",
                url="about:blank",
                browserContextId=context["browserContextId"],
            )
            await page.attach(target["targetId"])
            yield page
