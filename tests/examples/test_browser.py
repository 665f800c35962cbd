"""The example page in a real browser, against a real server, used as a person would."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mist.client import connect
from tests.axe import violations
from tests.chromium import Page, chromium, open_page
from tests.processes import Process, environment, mist, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser"

CONNECTED = "document.getElementById('state').dataset.state === 'connected'"
RECONNECTING = "document.getElementById('state').dataset.state === 'reconnecting'"
STOPPED = "document.getElementById('state').dataset.state === 'stopped'"

# Before the page's own script: every WebSocket that it makes, in the order made.
WATCH_SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) { super(...given); window.sockets.push(this); }
};
"""
# Before the page's own script: a timer's time comes when a test says so, and not before.
HOLD_TIMERS = """
window.timers = new Map();
let made = 0;
window.setInterval = (each) => { window.timers.set(++made, each); return made; };
window.setTimeout = (once) => {
  const number = window.setInterval(() => { window.timers.delete(number); once(); });
  return number;
};
window.clearTimeout = window.clearInterval = (number) => window.timers.delete(number);
window.tick = () => [...window.timers.values()].forEach((each) => each());
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The page, served by the example's own script."""
    with subprocess.Popen(
        [sys.executable, EXAMPLE / "serve.py", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.kill()


@pytest.fixture
async def page(browser: str, site: str) -> AsyncIterator[Page]:
    """The page, loaded. What goes wrong in it without being asked about fails the test."""
    async with loaded(browser, site, WATCH_SOCKETS) as page:
        yield page


@pytest.fixture
async def held_page(browser: str, site: str) -> AsyncIterator[Page]:
    """The same, its timers held."""
    async with loaded(browser, site, WATCH_SOCKETS + HOLD_TIMERS) as page:
        yield page


@asynccontextmanager
async def loaded(browser: str, url: str, first: str) -> AsyncIterator[Page]:
    """A page before whose own script `first` has run, and that made no error at the end."""
    async with open_page(browser) as page:
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=first)
        await page.open(url)
        yield page
        await page.evaluate("0")  # errors come in order, so this brings the last of them
        assert page.errors == []


async def fill_in(page: Page, server: str, token: str, tags: str) -> None:
    """Fill the form by mouse and keyboard, and connect."""
    for field, text in {"#url": server, "#token": token, "#tags": tags}.items():
        await page.click(field)
        await page.evaluate("document.activeElement.select()")
        await page.type(text)
    await page.press("Enter")


def new_token(url: str, tags: str) -> str:
    done = mist("token", "new", tags, "--host", url)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def publish(tcp: str, *messages: tuple[list[str], str | bytes]) -> None:
    async with connect(tcp) as client:
        for tags, data in messages:
            await client.publish(tags, data)


def rows(number: int) -> str:
    return f"document.querySelectorAll('#messages > .message').length === {number}"


async def attempts(page: Page) -> int:
    return int(await page.evaluate("window.sockets.length"))


# What comes


async def test_messages_appear_live_newest_first(page: Page, process: Process) -> None:
    tcp, ws = process.urls
    await fill_in(page, ws, new_token(tcp, "order"), "order, eu")
    await page.until(CONNECTED)
    await publish(
        tcp,
        (["order"], "not for this page"),
        (["order", "eu", "paid"], "17"),
        (["order", "eu"], "18"),
    )
    await page.until(rows(2))
    assert await violations(page) == []
    assert await page.texts("#messages .data") == ["18", "17"]
    assert await page.texts("#messages li:last-child .tags li") == ["eu", "order", "paid"]
    assert await page.texts("#messages li:last-child .mine") == ["eu", "order"]
    assert await page.text("#count") == "2 messages"
    await page.click("#clear")
    assert await page.text("#messages") == ""
    assert await page.text("#count") == "none yet"


async def test_what_is_published_never_becomes_markup(page: Page, process: Process) -> None:
    hostile = [
        "<script>document.title = 'attacked'</script>",
        "<img src=x onerror=\"document.title = 'attacked'\">",
        "</pre></li></ol><h1>attacked</h1>",
        "`code` &amp; \u202ereversed \x00 \x1b[31m \u2028 end",
    ]
    tag = "<b>bold</b>&lt;"
    tcp, ws = process.urls
    await fill_in(page, ws, new_token(tcp, "a"), "a")
    await page.until(CONNECTED)
    await publish(tcp, *((["a", tag], each) for each in hostile))
    await page.until(rows(len(hostile)))
    content = "[...document.querySelectorAll('#messages .data')].map((it) => it.textContent)"
    assert await page.evaluate(content) == hostile[::-1]
    assert await page.texts("#messages li:first-child .tags li") == [tag, "a"]
    inside = "[...document.querySelectorAll('#messages *')].map((it) => it.localName)"
    assert set(await page.evaluate(inside)) == {"li", "time", "ul", "pre"}
    assert await page.text("h1") == "mist live messages"
    assert await page.evaluate("document.title") == "mist · live messages"


async def test_data_that_is_no_text_or_too_long_is_shown_as_far_as_it_can_be(
    page: Page, process: Process
) -> None:
    tcp, ws = process.urls
    await fill_in(page, ws, new_token(tcp, "a"), "a")
    await page.until(CONNECTED)
    await publish(tcp, (["a"], ""), (["a"], b"\xff\xfe"), (["a"], "x" * 1_000_000))
    await page.until(rows(3))
    long, binary, empty = await page.texts("#messages .data")
    assert long == "x" * 10_000 + "… 990000 characters more"
    assert binary == "//4= (not UTF-8: base64)"
    assert empty == ""


async def test_a_burst_leaves_the_newest_rows_and_the_full_count(
    page: Page, process: Process
) -> None:
    tcp, ws = process.urls
    await fill_in(page, ws, new_token(tcp, "a"), "a")
    await page.until(CONNECTED)
    await publish(tcp, *((["a"], str(number)) for number in range(1000)))
    await page.until("document.getElementById('count').innerText.startsWith('1000 ')")
    assert await page.text("#count") == "1000 messages, the newest 200 shown"
    assert await page.texts("#messages .data") == [str(n) for n in range(999, 799, -1)]


# Why it ends


async def test_a_revoked_token_is_told_in_words_and_not_tried_again(
    held_page: Page, process: Process
) -> None:
    page = held_page
    tcp, ws = process.urls
    token = new_token(tcp, "a")
    await fill_in(page, ws, token, "a")
    await page.until(CONNECTED)
    mist("token", "unregister", token, "--host", tcp)
    await page.until(STOPPED)
    notice = await page.text("#notice")
    assert "revoked" in notice
    assert "mist token create" in notice
    assert "4401" in notice
    # Nothing is left that could try again.
    assert await page.evaluate("window.timers.size") == 0
    assert await attempts(page) == 1


async def test_nothing_is_drawn_after_a_revocation_and_little_for_what_came_before(
    page: Page, process: Process
) -> None:
    """The page hears of it behind all that it was sent before, so it has to get there soon."""
    tcp, ws = process.urls
    await fill_in(page, ws, new_token(tcp, "a"), "a")
    await page.until(CONNECTED)
    burst = """(async () => {
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      const [socket] = window.sockets;
      const {createElement} = document;
      window.made = 0;
      document.createElement = (...given) => {
        window.made += 1;
        return createElement.call(document, ...given);
      };
      const some = (number) => {
        for (let n = 0; n < number; n += 1) {
          socket.onmessage({data: JSON.stringify({keys: ["a"], data: `${n}`})});
        }
      };
      some(5000);
      const atOnce = window.made;
      await frame();
      await frame();
      const drawn = document.querySelectorAll("#messages > .message").length;
      document.getElementById("clear").click();
      some(50);
      socket.onclose({code: 4401});
      await frame();
      await frame();
      return [atOnce, drawn, document.getElementById("messages").innerText];
    })()"""
    assert await page.evaluate(burst) == [0, 200, ""]
    assert await page.evaluate(STOPPED)
    # A row has five elements, of which one is for its tag.
    assert await page.evaluate("window.made") < 200 * 5 + 20


async def test_a_subscription_no_longer_allowed_ends_with_words(
    page: Page, process: Process
) -> None:
    tcp, ws = process.urls
    token = new_token(tcp, "a,b")
    await fill_in(page, ws, token, "a")
    await page.until(CONNECTED)
    mist("token", "unset", "a", token, "--host", tcp)
    await page.until(STOPPED)
    assert "no longer allows a" in await page.text("#notice")
    assert "mist token grant a TOKEN" in await page.text("#notice")


async def test_a_wrong_token_and_a_tag_not_granted_are_explained(
    page: Page, process: Process
) -> None:
    tcp, ws = process.urls
    await fill_in(page, ws, "nobody's ✓", "a")
    await page.until(STOPPED)
    assert "The token is not valid" in await page.text("#notice")
    assert await attempts(page) == 1
    await fill_in(page, ws, new_token(tcp, "a"), "b")
    await page.until("document.getElementById('notice').innerText.includes('not granted')")
    assert await attempts(page) == 2


async def test_a_page_from_elsewhere_is_refused_and_told_what_to_do(
    page: Page, site: str, tmp_path: Path
) -> None:
    # Listening beyond loopback, the server knows no origin by itself.
    listen = ("--listen", "tcp://127.0.0.1:0", "--listen", "ws://0.0.0.0:0")
    with serving(tmp_path / "data", "--insecure", listen=listen) as process:
        tcp, ws = process.urls[0], process.urls[1].replace("0.0.0.0", "127.0.0.1")
        await fill_in(page, ws, new_token(tcp, "a"), "a")
        await page.until(STOPPED)
        assert f"--allow-origin {site.rstrip('/')}" in await page.text("#notice")
        assert await attempts(page) == 1


async def test_opened_as_a_file_it_says_how_to_serve_it(browser: str, process: Process) -> None:
    tcp, ws = process.urls
    async with loaded(browser, (EXAMPLE / "index.html").as_uri(), WATCH_SOCKETS) as page:
        assert "examples/browser/serve.py" in await page.text("#notice")
        await fill_in(page, ws, new_token(tcp, "a"), "a")
        await page.until(STOPPED)
        assert "examples/browser/serve.py" in await page.text("#notice")
        assert await attempts(page) == 1


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8888", "http://127.0.0.1:8888", "ws://", "ws://127.0.0.1:99999"]
)
async def test_an_address_that_cannot_be_one_is_told_at_once(page: Page, address: str) -> None:
    await fill_in(page, address, "token", "a")
    await page.until(STOPPED)
    assert "This address can't be used." in await page.text("#notice")
    assert await attempts(page) == 0


# Coming back


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_it_comes_back_after_the_server_ended_and_says_what_may_be_missing(
    page: Page, own_process: Process, tmp_path: Path, end: signal.Signals
) -> None:
    tcp, ws = own_process.urls
    await fill_in(page, ws, new_token(tcp, "a"), "a")
    await page.until(CONNECTED)
    await publish(tcp, (["a"], "before"))
    await page.until(rows(1))
    own_process.stop(end)
    await page.until(RECONNECTING)
    with serving(tmp_path / "data", listen=("--listen", tcp, "--listen", ws)):
        # The longer the server took to start, the longer the page would wait by itself.
        await page.evaluate("dispatchEvent(new Event('online'))")
        await page.until(CONNECTED)
        await publish(tcp, (["a"], "back again"))
        await page.until(rows(2))
        newest, gap, oldest = await page.texts("#messages > li")
        assert "back again" in newest
        assert gap.startswith("Reconnected. Messages published between ")
        assert gap.endswith(" may be missing.")
        assert "before" in oldest
        assert await page.evaluate("document.getElementById('notice').hidden")


async def test_a_connection_that_answers_no_ping_is_given_up(
    held_page: Page, process: Process
) -> None:
    page = held_page
    tcp, ws = process.urls
    await fill_in(page, ws, new_token(tcp, "a"), "a")
    await page.until(CONNECTED)
    # The subscription's reply was a sign of life, so the first tick only asks for another.
    await page.evaluate("alive = true; tick()")
    await page.until("alive")
    assert await page.evaluate("document.getElementById('state').dataset.state") == "connected"
    # As if the other end had vanished: what is sent is lost, and nothing comes.
    await page.evaluate("sockets[0].send = () => {}; tick()")
    await page.evaluate("tick()")
    assert await page.evaluate(RECONNECTING)
    assert "The connection was lost." in await page.text("#notice")
    await page.evaluate("tick()")
    await page.until(CONNECTED)
    assert await attempts(page) == 2
    # Rows come with the next frame.
    await page.until("document.querySelectorAll('#messages > .gap').length === 1")


async def test_disconnecting_stops_the_attempts_to_come_back(
    held_page: Page, own_process: Process
) -> None:
    page = held_page
    tcp, ws = own_process.urls
    token = new_token(tcp, "a")
    own_process.stop()
    await fill_in(page, ws, token, "a")
    await page.until("document.getElementById('notice').innerText.includes('reached')")
    assert await page.evaluate("window.timers.size") == 1
    await page.click("#disconnect")
    assert await page.text("#state") == "not connected"
    assert await page.evaluate("window.timers.size") == 0


# What it keeps to itself


async def test_the_token_is_in_no_url_and_no_storage(
    page: Page, site: str, process: Process
) -> None:
    tcp, ws = process.urls
    token = new_token(tcp, "a")
    await fill_in(page, ws, token, "a")
    await page.until(CONNECTED)
    assert await page.evaluate("location.href") == site
    assert await page.evaluate("window.sockets[0].url") == ws + "/subscribe/websocket"
    assert await page.evaluate("window.sockets[0].protocol") == "mist.v1"
    kept = "[localStorage.length, sessionStorage.length, document.cookie, history.state]"
    assert await page.evaluate(kept) == [0, 0, "", None]


async def test_its_policy_lets_nothing_run_that_does_not_stand_in_it(page: Page) -> None:
    await page.evaluate(
        "{const it = document.createElement('script');"
        " try { it.textContent = 'window.ran = true' } catch {}"
        " document.body.append(it)}"
    )
    assert await page.evaluate("window.ran") is None
    assert "TrustedScript" in await page.error()
    page.errors.clear()  # there may be one for the element, and one for its text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 390, 1280])
async def test_nothing_is_wider_than_the_screen(
    page: Page, process: Process, width: int, dark: bool
) -> None:
    tcp, ws = process.urls
    await page.look(width, 800, dark=dark)
    await fill_in(page, ws, new_token(tcp, "a"), "a," + "b" * 255)
    await page.until(CONNECTED)
    await publish(tcp, (["a", "b" * 255, "c" * 255], "wide" * 500))
    await page.until(rows(1))
    assert await page.evaluate("document.documentElement.scrollWidth") == width
