"""What the documentation shows of clients, run against a server as it stands there."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.config import Listen
from mist.server import Server
from tests.chromium import Page, chromium, open_page
from tests.endpoints import LISTEN
from tests.servers import port_of, running
from tests.transports.lines import talk

ROOT = Path(__file__).parent.parent
VENDOR = ROOT / "tests" / "http" / "bus" / "vendor"
OTHERS = (ROOT / "docs" / "other-clients.md").read_text()
RECOVERY = (ROOT / "docs" / "recovery.md").read_text()


def shown(start: str, page: str = OTHERS) -> list[str]:
    """A command of a page and what stands below it."""
    block = page.split(f"    $ {start}", 1)[1].split("\n\n")[0]
    return [line.strip() for line in (start + block).splitlines()]


async def run(command: list[str] | str) -> str:
    result = await trio.run_process(
        command, shell=isinstance(command, str), capture_stdout=True, capture_stderr=True
    )
    return result.stdout.decode()


@pytest.fixture
def endpoints() -> object:
    return {"listen": LISTEN, "history": "memory://"}


async def test_json(tmp_path: Path, endpoints: dict[str, object]) -> None:
    _, subscribe, ask, answer = shown("nc 127.0.0.1 1445")
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        with trio.fail_after(10):
            await peer.send(f"{subscribe}\n{ask}\n".encode())
            assert json.loads(await peer.line()) == json.loads(answer)


async def test_a_resume_by_hand(tmp_path: Path, endpoints: dict[str, object]) -> None:
    _, *lines = shown("nc 127.0.0.1 1445", RECOVERY)
    [theirs] = set(re.findall("[0-9a-f]{16}", "\n".join(lines)))
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        await peer.ask(b"publish order,eu 16\npublish eu,order 17\npublish order,eu 18\n")
        await peer.ask(b"publish order,us 19\n")
        await peer.send(b"last\n")
        _, epoch, _ = (await peer.line()).split()
        with trio.fail_after(10):
            for line in lines:
                expected = line.replace(theirs, epoch.decode()).encode() + b"\n"
                if re.match(r"message |last \w", line):
                    assert await peer.line() == expected
                else:
                    await peer.send(expected)


async def curl(server: Server, command: str) -> str:
    address = f"http://127.0.0.1:{port_of(server.urls[2])}"
    assert "http://127.0.0.1:8080" in command
    return await run(command.replace("http://127.0.0.1:8080", address) + " --silent --max-time 20")


async def test_guble_and_message_bus(tmp_path: Path, endpoints: dict[str, object]) -> None:
    publish, published = shown("curl -X POST 'http://127.0.0.1:8080/api")
    poll, polled = shown("curl -X POST 'http://127.0.0.1:8080/message-bus")
    async with running(tmp_path, **endpoints) as server:
        assert await curl(server, publish) == published
        assert json.loads(await curl(server, poll)) == json.loads(polled)


@asynccontextmanager
async def open_process(command: list[str], **options: Any) -> AsyncIterator[trio.Process]:
    """A process, killed at the end of the block."""
    process = await trio.lowlevel.open_process(command, **options)
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def serve_snippet(html: str, *, task_status: trio.TaskStatus[str]) -> None:
    """A site whose page is `html`, with the scripts beside it that it names."""
    scripts = {
        "/jquery.js": VENDOR / "jquery" / "jquery.min.js",
        "/message-bus.js": VENDOR / "message-bus-client" / "message-bus.js",
    }

    async def answer(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            data = await stream.receive_some()
            if not data:
                return
            request += data
        path = request.split(b" ")[1].decode()
        if path == "/":
            status, kind, body = b"200 OK", b"text/html", html.encode()
        elif path in scripts:
            status, kind, body = b"200 OK", b"text/javascript", scripts[path].read_bytes()
        else:
            status, kind, body = b"404 Not Found", b"text/plain", b""
        await stream.send_all(
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (status, kind, len(body), body)
        )
        await stream.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/")
    await trio.serve_listeners(answer, listeners)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@asynccontextmanager
async def page_of(
    browser: str, nursery: trio.Nursery, server: Server, html: str
) -> AsyncIterator[Page]:
    """A page with a snippet in it, for this server. What it logs is in `got`."""
    for port, url in {1445: 0, 8888: 1, 8080: 2}.items():
        html = html.replace(f"127.0.0.1:{port}", f"127.0.0.1:{port_of(server.urls[url])}")
    start = "<!doctype html><meta charset=utf-8><link rel=icon href=data:,>"
    site = await nursery.start(serve_snippet, f"{start}\n{html}")
    async with open_page(browser) as page:
        watch = "window.got = []; console.log = (...all) => window.got.push(...all);"
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=watch)
        await page.open(site)
        yield page
        assert page.errors == []


def snippet_of(page: str, kind: str, heading: str = "") -> str:
    """The only code of one language on a page, or below one of its headings."""
    text = (ROOT / page).read_text()
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [found] = re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(found)


async def test_message_bus_in_a_page(
    tmp_path: Path, endpoints: dict[str, object], nursery: trio.Nursery, browser: str
) -> None:
    snippet = snippet_of("docs/other-clients.md", "html")
    assert "message-bus.js" in snippet
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        await peer.ask(b"register /rooms page-token\npublish /rooms/1 hello\n")
        html = snippet.replace("TOKEN", "page-token")
        async with page_of(browser, nursery, server, html) as page:
            await page.until("window.got.length === 1")
            assert await page.evaluate("window.got") == ["hello"]


async def test_a_websocket_in_a_page(
    tmp_path: Path, endpoints: dict[str, object], nursery: trio.Nursery, browser: str
) -> None:
    snippet = snippet_of("docs/websocket-protocol.md", "js")
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        await peer.ask(b"register order:* page-token\n")
        html = f"<script>const TOKEN = 'page-token';\n{snippet}</script>"
        async with page_of(browser, nursery, server, html) as page:
            await page.until("window.got.length === 1")
            await peer.ask(b"publish order:17,eu paid\n")
            await page.until("window.got.length === 2")
            assert await page.evaluate("window.got") == [
                {"success": True, "command": "subscribe"},
                {"keys": ["eu", "order:17"], "data": "paid", "id": 1},
            ]


async def test_a_first_message_in_a_page(
    tmp_path: Path, endpoints: dict[str, object], nursery: trio.Nursery, browser: str
) -> None:
    snippet = snippet_of("README.md", "js")
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        await peer.ask(b"register order:* page-token\n")
        names = "const token = 'page-token', show = console.log;"
        html = f"<script type=module>{snippet.replace(';', f';{names}', 1)}</script>"
        async with page_of(browser, nursery, server, html) as page:
            with trio.fail_after(10):
                while not await page.evaluate("window.got.length"):
                    await peer.ask(b"publish order:17,eu paid\n")
            assert (await page.evaluate("window.got"))[0] == "paid"


async def test_mist_js_in_a_page(
    tmp_path: Path, endpoints: dict[str, object], nursery: trio.Nursery, browser: str
) -> None:
    snippet = snippet_of("docs/http.md", "js")
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        await peer.ask(b"register order page-token\npublish eu,order before\n")
        names = "const token = 'page-token', show = console.log, reload = () => {};"
        html = f"<script type=module>{snippet.replace(';', f';{names}', 1)}</script>"
        async with page_of(browser, nursery, server, html) as page:
            await page.until("window.got.length === 1")
            await peer.ask(b"publish eu,order,paid after\n")
            await page.until("window.got.length === 2")
            assert await page.evaluate("window.got") == ["before", "after"]


@asynccontextmanager
async def page_with_a_client(
    browser: str, nursery: trio.Nursery, server: Server, script: str
) -> AsyncIterator[Page]:
    """A page with a script behind the one that makes a `client` of the token `page-token`."""
    html = f"""<script type=module>
      import {{connect}} from "http://127.0.0.1:8080/mist.js";
      const client = connect("http://127.0.0.1:8080", {{token: "page-token"}});
      {script}
    </script>"""
    async with page_of(browser, nursery, server, html) as page:
        yield page


BOTH = ("mist/static/README.md", "Latest values and presence")


@pytest.mark.parametrize(("file", "heading"), [("docs/browser.md", "Latest values"), BOTH])
async def test_latest_values_in_a_page(
    tmp_path: Path,
    endpoints: dict[str, object],
    nursery: trio.Nursery,
    browser: str,
    file: str,
    heading: str,
) -> None:
    kept = {"latest": ("order:*",), "presence": ("room:*",)}
    async with running(tmp_path, **endpoints, **kept) as server, talk(server) as peer:
        await peer.ask(b"register order,room:7,@room:7 page-token\n")
        await peer.ask(b"publish order,order:1 new\npublish order,order:2 new as well\n")
        await peer.ask(b"publish order,order:1 paid\n")
        script = "const show = console.log, draw = () => {};" + snippet_of(file, "js", heading)
        async with page_with_a_client(browser, nursery, server, script) as page:
            await page.until("window.got.length === 2")
            await peer.ask(b"publish order,order:1 sent\n")
            await page.until("window.got.length === 3")
            assert await page.evaluate("window.got") == ["new as well", "paid", "sent"]


@pytest.mark.parametrize(("file", "heading"), [("docs/browser.md", "Presence"), BOTH])
async def test_presence_in_a_page(
    tmp_path: Path,
    endpoints: dict[str, object],
    nursery: trio.Nursery,
    browser: str,
    file: str,
    heading: str,
) -> None:
    kept = {"latest": ("order:*",), "presence": ("room:*",)}
    async with running(tmp_path, **endpoints, **kept) as server, talk(server) as peer:
        await peer.ask(b"register order,room:7,@room:7 page-token\nset-attr page-token user=7\n")
        names = "const show = () => {}, draw = (all) => console.log(all.map(({user}) => user));"
        script = names + snippet_of(file, "js", heading) + 'client.subscribe(["room:7"], () => {});'
        async with page_with_a_client(browser, nursery, server, script) as page:
            await page.until("window.got.at(-1)?.length === 1")
            assert await page.evaluate("window.got.at(-1)") == ["7"]


MOVED = [
    ("Pusher, Ably and Centrifugo", 'publish shop:7,order,paid {"order":17}\n', {"order": 17}),
    ("Mercure", 'publish book,book:1 {"status":"lent"}\n', {"status": "lent"}),
]


@pytest.mark.parametrize(("heading", "message", "data"), MOVED, ids=["pusher", "mercure"])
async def test_a_page_that_has_moved(
    tmp_path: Path,
    endpoints: dict[str, object],
    nursery: trio.Nursery,
    browser: str,
    heading: str,
    message: str,
    data: object,
) -> None:
    snippet = snippet_of("docs/migrating.md", "js", heading)
    names = "const TOKEN = 'page-token', show = console.log;"
    # The site's own endpoint, which makes tokens for its users.
    names += "fetch = new Proxy(fetch, {apply: (it, self, [url, options]) => "
    names += "url === '/mist-token' ? new Response(TOKEN) : it(url, options)});"
    async with running(tmp_path, **endpoints) as server, talk(server) as peer:
        await peer.ask(b"register shop:7,book page-token\n")
        html = f"<script>{names}</script><script type=module>{snippet}</script>"
        async with page_of(browser, nursery, server, html) as page:
            with trio.fail_after(20):
                while not await page.evaluate("window.got.length"):
                    await peer.ask(message.encode())
                    await trio.sleep(0.05)
            assert (await page.evaluate("window.got"))[0] == data


async def test_a_nats_client_that_has_moved(tmp_path: Path, endpoints: dict[str, object]) -> None:
    snippet = snippet_of("docs/migrating.md", "python", "NATS pub/sub")
    async with running(tmp_path, **endpoints) as server:
        source = snippet.replace("nats://127.0.0.1:4222", server.urls[3])
        assert await run([sys.executable, "-c", source]) == "order.eu.paid\n"


@pytest.mark.parametrize("where", ["README.md", "docs/python.md", "deploy/client/README.md"])
async def test_from_python(tmp_path: Path, endpoints: dict[str, object], where: str) -> None:
    snippet = snippet_of(where, "python")
    async with running(tmp_path, **endpoints) as server:
        source = snippet.replace("tcp://127.0.0.1:1445", server.urls[0])
        command = [sys.executable, "-u", "-c", source]
        async with open_process(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            printed = b""
            with trio.fail_after(20):
                while b"\n" not in printed and (more := await process.stdout.receive_some()):
                    printed += more
            assert printed == b"['eu', 'order', 'paid'] 17\n"


async def test_nats(tmp_path: Path, endpoints: dict[str, object]) -> None:
    async with running(tmp_path, **endpoints) as server:
        command = [sys.executable, str(ROOT / "examples/nats_client.py")]
        output = await run([*command, "--url", f"nats://127.0.0.1:{port_of(server.urls[3])}"])
    lines = output.splitlines()
    assert [line.split(" billed ")[1] for line in lines] == [f"order.eu: {n}" for n in range(4)]
    assert {re.sub(r" billed.*", "", line) for line in lines} <= {"worker 1", "worker 2"}


def test_the_listeners_are_some_that_the_program_knows() -> None:
    (options,) = re.findall(r"mist serve( --listen .*)", OTHERS)
    found = [Listen.parse(url) for url in options.split()[1::2]]
    assert [(each.protocol, each.port) for each in found] == [
        ("tcp", 1445),
        ("http", 8080),
        ("nats", 4222),
    ]
