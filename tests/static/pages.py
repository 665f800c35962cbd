"""What the tests of mist.js are made of: a site that serves it, a proxy, and a page with a client.

The page keeps what it is given in `got`, and the client's events in `told`, as JSON.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.chromium import Page, open_page

STATIC = Path(__file__).parents[2] / "mist" / "static"

_PAGE = b"<!doctype html><meta charset=utf-8><title>mist</title><body>"

_HARNESS = """
(async () => {
  const mist = await import("/mist.js");
  window.got = [];
  window.told = [];
  const shown = (event) => JSON.parse(JSON.stringify(event, (key, value) => {
    if (value instanceof Error) return {code: value.code, closeCode: value.closeCode ?? null};
    if (key === "subscriptions") return value.map((it) => it.tags.join(","));
    return key === "subscription" ? value?.tags.join(",") : value;
  }));
  window.start = (url, options) => {
    const backoff = {baseSeconds: 0.02, capSeconds: 0.2};
    window.client = mist.connect(url, {backoff, timeoutSeconds: 5, ...options});
    for (const event of ["state", "gap", "revoked", "error"]) {
      client.on(event, (detail) => told.push([event, shown(detail)]));
    }
  };
  // Under `name`, by default the tags, what comes for them.
  window.listen = (tags, options, name = tags.join(",")) => client.subscribe(tags, (it) => {
    got.push([name, it.data ?? [...it.bytes], it.id ?? null]);
  }, options);
  window.events = (kind) => told.filter(([event]) => event === kind).map(([, it]) => it);
})()
"""

# Time passes when a test says so, with `pass`; with `sleep`, without any timer coming. Only those
# of less than a second come by themselves, such as between attempts.
_CLOCK = """
(() => {
  // Whole seconds, so that sums of times are exact.
  const whole = (ms) => 1000 * Math.ceil(ms / 1000);
  const [date, point] = [whole(Date.now()), whole(performance.now())];
  const [real, unset] = [setTimeout, clearTimeout];
  const held = new Map();
  let [passed, made] = [0, 0];
  Date.now = () => date + passed;
  performance.now = () => point + passed;
  const hold = (act, ms, every) => {
    held.set((made -= 1), {act, due: passed + ms, every});
    return made;
  };
  window.setTimeout = (act, ms = 0) => (ms < 1000 ? real(act, ms) : hold(act, ms, null));
  window.setInterval = (act, ms) => hold(act, ms, ms);
  window.clearTimeout = window.clearInterval = (timer) => held.delete(timer) || unset(timer);
  window.sleep = (seconds) => { passed += 1000 * seconds; };
  window.pass = (seconds) => {
    const end = passed + 1000 * seconds;
    for (;;) {
      const [next] = [...held].sort((one, other) => one[1].due - other[1].due);
      if (!next || next[1].due > end) break;
      const [timer, {act, due, every}] = next;
      passed = Math.max(passed, due);
      if (every) held.set(timer, {act, due: passed + every, every});
      else held.delete(timer);
      act();
    }
    passed = end;
  };
})()
"""


async def serve_site(*, task_status: trio.TaskStatus[str]) -> None:
    """An empty page, and mist.js beside it. Started with its URL."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
    await trio.serve_listeners(_answer, listeners)


async def _answer(stream: trio.SocketStream) -> None:
    request = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while b"\r\n\r\n" not in request:
            data = await stream.receive_some(65_536)
            if not data:
                return
            request += data
        script = request.startswith(b"GET /mist.js")
        body = (STATIC / "mist.js").read_bytes() if script else _PAGE
        kind = b"text/javascript" if script else b"text/html"
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (kind, len(body), body)
        )
        await stream.aclose()


class Proxy:
    """Stands between a page and a server, and spoils what passes through.

    Attributes:
        target: the port of the server.
        port: its own.
        moved: ports that the server speaks of, and those that the page hears of instead.
        refused: requests that hold one of these are cut off.
        stalled: the answers to those are held back.
        deaf: takes what the page sends, and passes nothing on in either direction.
        connections: made so far.
        sent: what pages have sent, of each connection the beginning.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.moved: dict[int, int] = {}
        self.refused: set[bytes] = set()
        self.stalled: set[bytes] = set()
        self.deaf = False
        self.sent: list[bytes] = []
        self._more = trio.Event()
        self._streams: list[trio.SocketStream] = []

    @property
    def connections(self) -> int:
        return len(self.sent)

    async def asked(self, what: bytes) -> None:
        """Wait until a page has sent this, now or before."""
        while not any(what in each for each in self.sent):
            await self._more.wait()

    async def run(self, *, task_status: trio.TaskStatus["Proxy"]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started(self)
        await trio.serve_listeners(self._serve, listeners)

    async def cut(self) -> None:
        """End every connection that there is."""
        streams, self._streams = self._streams, []
        for stream in streams:
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        number = len(self.sent)
        self.sent.append(b"")
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            onward = await trio.open_tcp_stream("127.0.0.1", self.target)
            self._streams += [stream, onward]
            async with onward, trio.open_nursery() as nursery:
                nursery.start_soon(self._ask, stream, onward, number)
                nursery.start_soon(self._reply, onward, stream, number)

    async def _ask(self, page: trio.SocketStream, server: trio.SocketStream, number: int) -> None:
        try:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in page:
                    self.sent[number] = (self.sent[number] + data)[:100_000]
                    self._more.set()
                    self._more = trio.Event()
                    if any(each in data for each in self.refused):
                        break
                    if not self.deaf:
                        await server.send_all(data)
        finally:
            # However it ended: a page whose server has reset the connection shall know.
            await trio.aclose_forcefully(page)
            await trio.aclose_forcefully(server)

    async def _reply(self, server: trio.SocketStream, page: trio.SocketStream, number: int) -> None:
        try:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in server:
                    if self.deaf or any(each in self.sent[number] for each in self.stalled):
                        continue
                    for port, other in self.moved.items():
                        # As long as before, so that no Content-Length is wrong.
                        data = data.replace(b":%d/" % port, b":%05d/" % other)
                    await page.send_all(data)
        finally:
            await trio.aclose_forcefully(page)


class ClientPage:
    """A tab in which a client of mist.js runs."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.evaluate = page.evaluate
        self.until = page.until

    async def hold_time(self) -> None:
        """From here on, time passes in the page by `pass_time` only."""
        await self.evaluate(_CLOCK)

    async def pass_time(self, seconds: float) -> None:
        await self.evaluate(f"pass({seconds})")

    async def start(self, url: str, *, then: str = "", **options: object) -> None:
        """Make the client. Text that begins with `=>` is an expression, not a value.

        What the page should do before the client can have heard anything goes into `then`: a
        second `evaluate` may come after the server's answer.
        """
        texts = [
            f"{name}: {value[2:] if _is_script(value) else json.dumps(value)}"
            for name, value in options.items()
            for value in [value]
        ]
        await self.evaluate(f"void start({json.dumps(url)}, {{{', '.join(texts)}}}); {then}")

    async def listen(self, *tags: str, since: object = None, name: str | None = None) -> None:
        """Subscribe, and wait until the subscription holds."""
        more = json.dumps({"since": since})
        last = "" if name is None else f", {json.dumps(name)}"
        await self.evaluate(f"listen({json.dumps(tags)}, {more}{last}).ready")

    async def got(self, number: int) -> list[str]:
        """What came, once it is so many messages: `a: text` for those under the name `a`."""
        await self.until(f"got.length >= {number}")
        return [f"{name}: {data}" for name, data, _ in await self.evaluate("got")]

    async def is_state(self, state: str) -> None:
        await self.until(f"client.state === {json.dumps(state)}")

    async def events(self, kind: str) -> list[dict]:  # type: ignore[type-arg]
        return list(await self.evaluate(f"events({json.dumps(kind)})"))


def _is_script(value: object) -> bool:
    return isinstance(value, str) and value.startswith("=>")


@asynccontextmanager
async def client_page(browser: str, site: str) -> AsyncIterator[ClientPage]:
    """A tab with mist.js loaded; what goes wrong in it and is not caught fails the test."""
    async with open_page(browser) as page:
        await page.open(site)
        await page.evaluate(_HARNESS)
        yield ClientPage(page)
        await page.evaluate("window.client?.close()")
        assert page.errors == []
