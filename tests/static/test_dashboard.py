"""The dashboard in a real browser: against a real server, and against figures made up."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.config import Listen
from mist.server import Server
from tests.chromium import Page, open_page
from tests.http.client import http_address
from tests.servers import listeners, running

# Before the page's own scripts: what it says to the console, and what its policy forbids.
WATCH = """
window.said = [];
for (const kind of ["error", "warn"]) console[kind] = (...all) => window.said.push(all.join(" "));
addEventListener("securitypolicyviolation", (event) => window.said.push(event.blockedURI), true);
performance.setResourceTimingBufferSize(5000);
"""
# A clock that a test turns, and a server whose figures it makes. `advance` lets seconds pass,
# `sleep` lets them pass unseen.
FAKE = """
(() => {
  const begun = 1_900_000_000_000;
  let now = begun;
  let made = 0;
  const timers = new Map();
  Date.now = () => now;
  performance.now = () => now - begun;
  const add = (act, wait = 0, every = 0) => {
    timers.set(++made, {act, due: now + wait, every});
    return made;
  };
  window.setTimeout = (act, wait) => add(act, wait);
  window.setInterval = (act, wait) => add(act, wait, wait);
  window.clearTimeout = window.clearInterval = (timer) => timers.delete(timer);
  const settle = async () => { for (let turn = 0; turn < 12; turn += 1) await null; };
  window.advance = async (seconds) => {
    for (let quarter = 0; quarter < 4 * seconds; quarter += 1) {
      now += 250;
      for (const [timer, {act, due, every}] of [...timers]) {
        if (due > now || !timers.has(timer)) continue;
        if (every) timers.set(timer, {act, due: due + every, every});
        else timers.delete(timer);
        act();
      }
      await settle();
    }
    const drawn = () => new Promise((resolve) => requestAnimationFrame(resolve));
    await drawn();
    await drawn();
  };
  window.sleep = (seconds) => { now += 1000 * seconds; };
  window.looks = 0;
  window.born = -100;  // the server's start, seconds of the page's clock
  window.up = () => performance.now() / 1000 - window.born;
  window.more = {};
  window.recorded = null;  // makes the answer of /v1/stats/history
  window.stats = () => ({
    time: Date.now() / 1000, started: begun / 1000 + born, uptime: up(), version: "1.2.3",
    published: Math.round(100 * up()), delivered: Math.round(500 * up()),
    delivered_bytes: Math.round(50_000 * up()), rejected: 0, unmatched: 0, dropped: {},
    connections: {tcp: 5}, lifetime: 9, tag_sets: 3, auth_failures: {}, loop_lag: 0.002,
    cpu_seconds: 0.25 * up(), resident_bytes: 50e6, history: null, slowest: [], top_tags: [],
    ...window.more,
  });
  window.fails = null;
  window.fetch = async (path) => {
    const headers = new Headers();
    if (path === "./v1/nodes" && window.nodes) {
      return {ok: true, status: 200, headers, json: async () => window.nodes};
    }
    if (path === "./v1/stats/history" && window.recorded) {
      const recorded = window.recorded();
      return {ok: true, status: 200, headers, json: async () => recorded};
    }
    const list = window.lists?.[path.split("?")[0]];
    if (list) return {ok: true, status: 200, headers, json: async () => list};
    if (path !== "./v1/stats") return {ok: false, status: 404, headers, json: async () => ({})};
    window.looks += 1;
    if (window.fails) throw new TypeError(window.fails);
    return {ok: true, status: 200, headers, json: async () => window.stats()};
  };
})();
"""
# What that server has recorded: of each two seconds but those that it slept, seconds of its uptime.
RECORDED = """
(() => {
  window.slept = [-1, -1];
  window.bounds = [0.001, 0.01, 0.1];
  // Each second ten messages were written in 1 to 10 ms, until `quiet`, and one in 10 to 100 ms.
  window.quiet = Infinity;
  window.counts = (uptime) => {
    const seconds = Math.floor(Math.min(uptime, window.quiet));
    return [0, 10 * seconds, seconds, 0];
  };
  window.recorded = () => {
    const all = [];
    for (let at = Math.max(0, up() - 600); at <= up(); at += 2) {
      if (at < slept[0] || at > slept[1]) all.push(at);
    }
    const every = all.filter((_, index) => index % 5 === 0);
    const column = (of) => all.map(of);
    const histogram = {bounds, counts: every.map(window.counts)};
    return {
      started: 1_900_000_000 + born, step: 2, uptime: all,
      published: column((each) => Math.round(100 * each)),
      delivered: column((each) => Math.round(500 * each)),
      delivered_bytes: column((each) => Math.round(50_000 * each)),
      rejected: column(() => 0), unmatched: column(() => 0), dropped: column(() => 0),
      connections: column(() => 5), loop_lag: column(() => 0.002),
      cpu_seconds: column((each) => 0.25 * each),
      latency: {uptime: every, publish_to_write: histogram, commit: histogram, append: null},
    };
  };
  const stats = window.stats;
  window.stats = () => {
    const histogram = {bounds, counts: window.counts(up())};
    return {...stats(), latency: {publish_to_write: histogram, commit: histogram, append: null}};
  };
  window.born = -1000;
})();
"""
# Looked at and drawn: nothing is about to move away from under a click.
LIVE = (
    "document.getElementById('state').dataset.state === 'live'"
    " && document.getElementById('uptime').textContent !== '\N{EN DASH}'"
)
RESTARTED = "document.querySelector('.plot .restarted').textContent"
LISTENING = "document.querySelector('#subscribe-state').textContent.startsWith('listening')"
MARKUP = "<img src=x onerror=hacked=1><script>hacked=1</script>\"'&amp;${hacked=1}"
SETTINGS: dict[str, Any] = {"listen": listeners("tcp", "http"), "history": "memory://"}


def url_of(server: Server) -> str:
    host, port = http_address(server)
    return f"http://{host}:{port}/"


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return SETTINGS


Open = Callable[..., AbstractAsyncContextManager[Page]]


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


async def tile(page: Page, name: str) -> str:
    """What a person reads in a tile."""
    found = await page.texts(".tile")
    [text] = [each for each in found if each.split("\n")[0] == name]
    return text.partition("\n")[2].replace("\n", " ")


def tile_is(name: str, condition: str) -> str:
    """That the number in a tile, as `it`, fulfils a condition."""
    return (
        "[...document.querySelectorAll('.tile')].some((tile) =>"
        f" tile.querySelector('dt').textContent === '{name}'"
        f" && ((it) => {condition})(tile.querySelector('.number').textContent))"
    )


async def fill(page: Page, field: str, text: str) -> None:
    await page.click(field)
    await page.evaluate("document.activeElement.select()")
    await page.type(text)


async def key(page: Page, name: str) -> None:
    codes = {"ArrowLeft": 37, "ArrowRight": 39}
    code = {"windowsVirtualKeyCode": codes[name]} if name in codes else {}
    for kind in ("keyDown", "keyUp"):
        await page.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, **code)


# What is shown of a real server


async def test_it_says_what_it_looks_at(live: Page, server: Server) -> None:
    assert await live.text("h1") == "mist"
    assert await live.text("#host") == url_of(server).split("/")[2]
    assert await live.text("#state") == "live"
    assert await live.evaluate("document.title") == "mist · live"


async def test_numbers_change_as_messages_flow(live: Page, server: Server) -> None:
    assert "mist publish demo hello" in await live.text("#notice")

    async def publish() -> None:
        while True:
            server.hub.publish(frozenset({"order", "eu"}), b"17")
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        await live.until(tile_is("Published", "parseFloat(it) > 5"))
        await live.until("document.getElementById('notice').hidden")
        await live.until("document.querySelectorAll('#tags tbody tr:not([hidden])').length === 2")
        await live.until(
            "document.querySelector('.plot .line.published').getAttribute('d').length > 20"
        )
        await live.until("document.querySelector('#losses').innerText.includes('No subscription')")
        nursery.cancel_scope.cancel()
    await live.until(tile_is("Published", "it === '0'"))
    assert "in all" in await tile(live, "Published")


async def test_what_is_published_here_arrives_here(live: Page) -> None:
    await fill(live, "#subscribe-tags", "order")
    await live.press("Enter")
    await live.until(
        "document.querySelector('#subscribe-state').textContent === 'listening to order'"
    )
    await fill(live, "#publish-tags", " order , eu,")
    await fill(live, "#publish-data", "seventeen")
    await live.click("#publish button")
    await live.until("document.querySelectorAll('#messages .message').length === 1")
    await live.until("document.querySelector('#publish-said').textContent !== ''")
    assert await live.text("#publish-said") == "Stored with id 1."
    assert await live.text("#messages pre") == "seventeen"
    assert await live.texts("#messages .tag") == ["eu", "order"]
    assert await live.text("#messages .id") == "#1"
    await live.until("document.querySelector('#history').innerText.includes('1 \u2013 1')")
    await live.until("document.querySelector('#transports').innerText.includes('SSE')")


async def test_the_list_of_messages_does_not_grow_without_end(live: Page) -> None:
    await live.click("#subscribe-button")
    await live.until(LISTENING)
    await live.evaluate("document.querySelector('#publish-times').value = '1000'")
    await live.click("#publish button")
    await live.until("document.querySelector('#subscribe-clear').textContent === 'Clear 1,000'")
    assert await live.evaluate("document.querySelectorAll('#messages li').length") == 100
    assert await live.text("#messages .id") == "#1000"
    await live.until("document.querySelector('#publish-said').textContent !== ''")
    assert await live.text("#publish-said") == "Stored 1,000 messages: ids 1 to 1,000."
    await live.click("#subscribe-clear")
    assert await live.evaluate("document.querySelector('#messages').hidden")


async def test_it_begins_in_the_history_where_asked(live: Page, server: Server) -> None:
    for number in range(20):
        await server.hub.store(frozenset({"demo"}), b"%d" % number)
    await live.evaluate("document.querySelector('#subscribe-since').value = '-10'")
    await live.click("#subscribe-button")
    await live.until("document.querySelectorAll('#messages .message').length === 10")
    assert await live.texts("#messages pre") == [str(each) for each in range(19, 9, -1)]
    await live.click("#subscribe-button")
    assert await live.text("#subscribe-button") == "Subscribe"


async def test_a_refusal_is_told_in_words(live: Page) -> None:
    await fill(live, "#publish-tags", "with space,,")
    await live.click("#publish button")
    await live.until("document.querySelector('#publish-said').classList.contains('bad')")
    assert "Refused" in await live.text("#publish-said")


async def test_without_history_it_says_so(opened: Open, tmp_path: Path) -> None:
    async with running(tmp_path / "data", **SETTINGS | {"history": "none"}) as server:
        async with opened(server) as page:
            await page.until(LIVE)
            assert await page.text("#history-state") == "off"
            assert "--history none" in await page.text("#history-empty")
            assert await page.evaluate("document.querySelector('#subscribe-since').disabled")
            await page.click("#publish button")
            await page.until("document.querySelector('#publish-said').textContent !== ''")
            assert (
                await page.text("#publish-said")
                == "Published 1 message. No id: the history is off."
            )


async def test_markup_from_elsewhere_is_text(live: Page, server: Server) -> None:
    tag = MARKUP.replace(" ", "/").replace(",", "")
    await fill(live, "#subscribe-tags", tag)
    await live.press("Enter")
    await live.until(LISTENING)
    for _ in range(5):
        server.hub.publish(frozenset({tag}), MARKUP.encode())
    await live.until("document.querySelectorAll('#messages .message').length === 5")
    await live.until(f"document.querySelector('#tags .tag').textContent === {json.dumps(tag)}")
    assert await live.text("#messages pre") == MARKUP
    assert await live.text("#messages .tag") == tag
    assert await live.evaluate("document.querySelectorAll('#board img, #board script').length") == 0
    assert await live.evaluate("typeof hacked") == "undefined"


# The secret


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", **SETTINGS | {"secret": "geheim-ä"}) as server:
        yield server


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
        # The next server at this place may have one, or tell all.
        await page.evaluate("window.fetch = async () => new Response('{}', {status: 401})")
        await page.until("!document.getElementById('gate').hidden")
        assert await page.evaluate("document.getElementById('closed').hidden")
        await page.open(loopback)
        await page.until(LIVE)
        assert await page.evaluate("document.getElementById('closed').hidden")


# Losing the server


async def test_it_comes_back_to_a_server_that_was_restarted(
    opened: Open, tmp_path: Path, nursery: trio.Nursery
) -> None:
    stop = trio.Event()

    async def live_once(*, task_status: trio.TaskStatus[Server]) -> None:
        async with running(tmp_path / "one", **SETTINGS) as server:
            task_status.started(server)
            await stop.wait()
        ended.set()

    ended = trio.Event()
    first = await nursery.start(live_once)
    _, port = http_address(first)
    async with opened(first) as page:
        await page.until(LIVE)
        await page.click("#subscribe-button")
        await page.until(LISTENING)
        for _ in range(50):
            first.hub.publish(frozenset({"demo"}), b"x")
        await page.until("document.querySelectorAll('#messages .message').length === 50")
        stop.set()
        await ended.wait()
        await page.until("document.getElementById('state').dataset.state === 'reconnecting'")
        assert "does not respond" in await page.text("#notice")
        listen = (Listen("tcp", "127.0.0.1", 0), Listen("http", "127.0.0.1", port))
        async with running(tmp_path / "two", **SETTINGS | {"listen": listen}) as second:
            await page.until(LIVE)
            await page.until(f"{RESTARTED} !== ''")
            await page.until(tile_is("Published", "it === '0'"))
            await page.until("document.querySelector('#messages .gap') !== null")
            second.hub.publish(frozenset({"demo"}), b"after")
            await page.until("document.querySelector('#messages pre').textContent === 'after'")


async def test_a_server_that_goes_is_said_to_go(opened: Open, server: Server) -> None:
    async with opened(server) as page:
        await page.until(LIVE)
        await page.click("#subscribe-button")
        await page.until(LISTENING)
        server.drain()
        await page.until("document.getElementById('state').dataset.state === 'draining'")
        assert "shutting down" in await page.text("#notice")


async def test_a_restart_is_a_gap_and_never_a_negative_rate(faked: Page) -> None:
    await faked.evaluate("advance(20)")
    assert (await tile(faked, "Published")).startswith("100/s")
    await faked.evaluate("window.born = performance.now() / 1000 - 1; advance(1)")
    assert (await tile(faked, "Published")).startswith("\N{EN DASH}")
    await faked.evaluate("advance(10)")
    assert (await tile(faked, "Published")).startswith("100/s")
    assert await faked.evaluate(RESTARTED) == "server restarted"
    assert await pieces(faked, ".plot .line.published") == 2
    assert await lowest(faked, ".plot .line.published") <= 112


async def test_a_restart_is_seen_though_the_new_server_is_older_by_now(faked: Page) -> None:
    await faked.evaluate("advance(10)")
    await faked.evaluate("window.fails = 'gone'; advance(2)")
    await faked.evaluate("window.born = performance.now() / 1000; advance(150)")
    await faked.evaluate("window.fails = null; advance(10)")
    assert await faked.evaluate("up() > 150")  # it was 110 when last seen
    assert await faked.evaluate(RESTARTED) == "server restarted"


async def test_a_counter_that_goes_back_is_a_restart(faked: Page) -> None:
    await faked.evaluate("advance(10)")
    await faked.evaluate("window.more = {delivered: 3}; advance(5)")
    assert await faked.evaluate(RESTARTED) == "server restarted"
    assert (await tile(faked, "Delivered")).startswith("0/s")


async def test_a_page_that_slept_shows_a_gap_and_goes_on(faked: Page) -> None:
    await faked.evaluate("advance(20)")
    assert await pieces(faked, ".plot .line.lag") == 1
    await faked.evaluate("sleep(60); advance(20)")
    assert await pieces(faked, ".plot .line.lag") == 2
    assert (await tile(faked, "Published")).startswith("100/s")
    assert await faked.evaluate(RESTARTED) == ""


async def test_a_page_that_nobody_sees_does_not_look(faked: Page) -> None:
    await faked.evaluate("advance(5)")
    hide = (
        "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    await faked.evaluate(hide % "true" + "advance(2)")
    before = await faked.evaluate("window.looks")
    await faked.evaluate("advance(30)")
    assert await faked.evaluate("window.looks") == before
    await faked.evaluate(hide % "false" + "advance(5)")
    assert await faked.evaluate("window.looks") >= before + 5
    assert await pieces(faked, ".plot .line.lag") == 2


async def test_it_looks_once_a_second_and_less_often_when_nobody_answers(faked: Page) -> None:
    before = await faked.evaluate("window.looks")
    await faked.evaluate("advance(20)")
    assert await faked.evaluate("window.looks") - before in (19, 20, 21)
    await faked.evaluate("window.fails = 'gone'; advance(2)")
    assert await faked.text("#state") == "reconnecting…"
    before = await faked.evaluate("window.looks")
    await faked.evaluate("advance(30)")
    assert 4 <= await faked.evaluate("window.looks") - before <= 16
    await faked.evaluate("window.fails = null; advance(8)")
    assert await faked.text("#state") == "live"


async def test_a_clock_that_is_set_back_does_no_harm(faked: Page) -> None:
    await faked.evaluate("advance(10); 0")
    await faked.evaluate("sleep(-3600); advance(3700)")
    assert (await tile(faked, "Published")).startswith("100/s")


async def test_what_is_kept_has_bounds(faked: Page) -> None:
    nodes = "document.getElementsByTagName('*').length"
    long = "document.querySelector('.plot .line.published').getAttribute('d').length"
    await faked.evaluate("advance(700)")
    before = await faked.evaluate(f"[{nodes}, {long}]")
    await faked.evaluate("advance(1200)")
    after = await faked.evaluate(f"[{nodes}, {long}]")
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 100


async def pieces(page: Page, line: str) -> int:
    """Of how many parts a line consists."""
    return int(
        await page.evaluate(
            f"document.querySelector({line!r}).getAttribute('d').split('M').length - 1"
        )
    )


async def lowest(page: Page, line: str) -> float:
    """Where a line is lowest; screens count downwards."""
    return float(
        await page.evaluate(
            f"Math.max(...[...document.querySelector({line!r}).getAttribute('d')"
            ".matchAll(/ ([-0-9.]+)/g)].map((each) => Number(each[1])))"
        )
    )


# What the server has recorded


@pytest.fixture
async def recorded(opened: Open, server: Server) -> AsyncIterator[Page]:
    """The page of a server that has been up for long, opened just now."""
    async with opened(server, FAKE + RECORDED) as page:
        await page.until("window.looks === 1")
        await page.evaluate("advance(0)")
        yield page


async def left(page: Page, line: str) -> float:
    """Where a line begins."""
    path = await page.evaluate(f"document.querySelector({line!r}).getAttribute('d')")
    return float(path[1:].split(" ")[0])


async def plots(page: Page) -> dict[str, str]:
    """What a person reads above each plot, by its title."""
    return {
        title: " ".join(rest).removeprefix("milliseconds ")
        for title, *rest in await page.evaluate(
            "[...document.querySelectorAll('.plot')].map((plot) =>"
            " ['figcaption', '.keys'].flatMap((each) =>"
            " plot.querySelector(each).innerText.split(/\\n+/)))"
        )
    }


async def test_plots_are_full_when_the_page_is_opened(recorded: Page) -> None:
    for line in ("published", "delivered", "connections", "lag"):
        assert await pieces(recorded, f".plot .line.{line}") == 1
        assert await left(recorded, f".plot .line.{line}") < 5
    assert (await tile(recorded, "Published")).startswith("100/s")
    assert "\N{MINUS SIGN}10 min" in await recorded.evaluate(
        "document.querySelector('.plot svg').textContent"
    )
    await recorded.evaluate("advance(30)")
    assert await pieces(recorded, ".plot .line.published") == 1
    assert (await tile(recorded, "Published")).startswith("100/s")


async def test_a_server_that_slept_shows_a_gap(opened: Open, server: Server) -> None:
    async with opened(server, FAKE + RECORDED + "window.slept = [700, 800];") as page:
        await page.until("window.looks === 1")
        await page.evaluate("advance(2)")
        for line in ("published", "lag"):
            assert await pieces(page, f".plot .line.{line}") == 2
        assert await lowest(page, ".plot .line.published") <= 112


async def test_what_another_process_recorded_is_not_shown(opened: Open, server: Server) -> None:
    other = (
        "const of = recorded; window.recorded = () => ({...of(), started: 1.8e9, uptime: [1, 3]});"
    )
    async with opened(server, FAKE + RECORDED + other) as page:
        await page.until("window.looks === 1")
        await page.evaluate("advance(20)")
        assert (await tile(page, "Published")).startswith("100/s")
        assert await pieces(page, ".plot .line.published") == 1
        assert await page.evaluate(RESTARTED) == ""


async def test_a_page_that_slept_is_told_what_it_missed(recorded: Page) -> None:
    await recorded.evaluate("advance(20); 0")
    await recorded.evaluate("sleep(60); advance(20)")
    assert await pieces(recorded, ".plot .line.lag") == 1
    assert await left(recorded, ".plot .line.published") < 5


async def test_a_server_that_restarted_unseen_shows_both_and_what_lay_between(
    recorded: Page,
) -> None:
    await recorded.evaluate("advance(200); 0")
    await recorded.evaluate("sleep(60); window.born = performance.now() / 1000 - 30; advance(5)")
    assert await recorded.evaluate(RESTARTED) == "server restarted"
    assert await pieces(recorded, ".plot .line.published") == 2
    assert await lowest(recorded, ".plot .line.published") <= 112
    assert (await tile(recorded, "Published")).startswith("100/s")
    # The mark is where the server began, which was 35 s ago by now.
    place = await recorded.evaluate(
        "(([mark, svg]) => Number(mark.getAttribute('d').slice(1).split(' ')[0])"
        " / svg.viewBox.baseVal.width)(['.plot .restart[d^=M]', '.plot svg']"
        ".map((each) => document.querySelector(each)))"
    )
    assert place == pytest.approx(1 - 35 / 600, abs=0.01)


async def test_latencies_are_of_all_that_is_shown_and_of_each_moment(recorded: Page) -> None:
    # p50: rank 5.5 of 10 in 1 to 10 ms; p99: rank 10.89 of 11, 0.89 of the one in 10 to 100 ms.
    found = await plots(recorded)
    assert found["Publish to write"] == "over 10 min p50 6.0 p99 90"
    assert found["Commit"] == "over 10 min p50 6.0 p99 90"
    for line in ("median", "high"):
        assert await pieces(recorded, f".plot .line.{line}") == 1
    # From here on nothing is observed: the lines end, and what is shown of before stays.
    await recorded.evaluate("window.quiet = up(); advance(60)")
    assert (await plots(recorded))["Commit"] == "over 10 min p50 6.0 p99 90"
    await recorded.evaluate("document.querySelectorAll('.plot .field')[4].focus()")
    await key(recorded, "ArrowLeft")
    assert "p50 \N{EN DASH} p99 \N{EN DASH}" in (await plots(recorded))["Commit"]
    for _ in range(10):
        await key(recorded, "PageDown")
    assert "p50 6.0 p99 90" in (await plots(recorded))["Commit"]
    await recorded.evaluate("advance(600)")
    await key(recorded, "Escape")
    assert "p50 \N{EN DASH} p99 \N{EN DASH}" in (await plots(recorded))["Commit"]


async def test_without_a_history_there_is_no_plot_of_commits(recorded: Page) -> None:
    assert "Commit" in await plots(recorded)
    await recorded.evaluate("window.more.latency = {}; advance(0)")
    await recorded.evaluate(
        "const of = stats; window.stats = () => ({...of(), latency: {commit: null}}); advance(2)"
    )
    shown = "[...document.querySelectorAll('.plot')].filter((each) => each.checkVisibility())"
    assert await recorded.evaluate(f"{shown}.length") == 5


QUANTILES = [
    ("[1, 2, 4], [0, 0, 0, 0], 0.5", None),
    ("[1, 2, 4], [4, 0, 0, 0], 0.5", 0.5),
    ("[1, 2, 4], [0, 4, 0, 0], 0.5", 1.5),
    ("[1, 2, 4], [1, 1, 1, 0], 1", 4),
    ("[1, 2, 4], [2, 0, 2, 0], 0.5", 1),
    ("[1, 2, 4], [2, 0, 2, 0], 0.75", 3),
    ("[1, 2, 4], [0, 0, 0, 3], 0.5", 4),  # beyond the highest bound nothing is known
    ("[1, 2, 4], [1, 0, 0, 99], 0.99", 4),
]


async def test_quantiles_are_interpolated_in_their_bucket(live: Page) -> None:
    await live.evaluate("import('/static/dashboard/latency.js').then((it) => { latency = it; })")
    found = [(it, await live.evaluate(f"latency.quantile({it})")) for it, _ in QUANTILES]
    assert found == QUANTILES


# What it is made of

WIRE = (
    ": comment\n\nevent: ready\ndata: {}\n\nid: e:1\ndata: one\ndata:two\n\n"
    "event: gap\r\ndata: \u00e4\u2028\r\rdata\n\nid: e:2\nevent: no data\n\ndata: last\n\nid: never"
)
EVENTS = [
    {"event": "ready", "data": "{}", "id": ""},
    {"event": "message", "data": "one\ntwo", "id": "e:1"},
    {"event": "gap", "data": "\u00e4\u2028", "id": "e:1"},
    {"event": "message", "data": "", "id": "e:1"},
    {"event": "message", "data": "last", "id": "e:2"},
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_read_however_they_are_cut(live: Page, size: int) -> None:
    found = await live.evaluate(
        "import('/static/dashboard/events.js').then(({EventReader}) => {"
        f"const text = {json.dumps(WIRE)}; const reader = new EventReader(); const found = [];"
        f"for (let at = 0; at < text.length; at += {size})"
        f"  found.push(...reader.feed(text.slice(at, at + {size})));"
        "return found; })"
    )
    assert found == EVENTS


NUMBERS = [
    ("compact(0)", "0"),
    ("compact(0.04)", "0.0"),
    ("compact(9.94)", "9.9"),
    ("compact(9.96)", "10"),
    ("compact(999)", "999"),
    ("compact(999.6)", "1.00k"),
    ("compact(12345)", "12.3k"),
    ("compact(999960)", "1.00M"),
    ("compact(4e12)", "4.00T"),
    ("compact(NaN)", "\N{EN DASH}"),
    ("compact(undefined)", "\N{EN DASH}"),
    ("count(1234567)", "1,234,567"),
    ("count(null)", "\N{EN DASH}"),
    ("brief(99999)", "99,999"),
    ("brief(100000)", "100k"),
    ("bytes(0)", "0 B"),
    ("bytes(1500)", "1.50 kB"),
    ("bytes(null)", "\N{EN DASH}"),
    ("milliseconds(0.01)", "0"),
    ("milliseconds(1.23)", "1.2"),
    ("milliseconds(1234)", "1,234"),
    ("duration(0.4)", "0 s"),
    ("duration(59)", "59 s"),
    ("duration(3600)", "1 h"),
    ("duration(90061)", "1 d 1 h"),
    ("several(1, 'message')", "1 message"),
    ("several(2000, 'message')", "2,000 messages"),
]


async def test_numbers_are_written_for_people(live: Page) -> None:
    await live.evaluate("import('/static/dashboard/format.js').then((it) => { formats = it; })")
    found = [(call, await live.evaluate(f"formats.{call}")) for call, _ in NUMBERS]
    assert found == NUMBERS


# How it is read


async def test_a_moment_is_read_off_by_keyboard(faked: Page) -> None:
    await faked.evaluate("advance(30)")
    await faked.evaluate("document.querySelector('.plot .field').focus()")
    for _ in range(5):
        await key(faked, "ArrowLeft")
    spoken = "document.activeElement.getAttribute('aria-valuetext')"
    assert await faked.evaluate(spoken) == (
        "5 s ago: published 100, unmatched 0 messages per second"
    )
    assert await faked.evaluate("document.activeElement.getAttribute('aria-valuenow')") == "-5"
    whens = await faked.texts(".plot .when")
    assert [each.split(" · ")[0] for each in whens] == ["5 s ago"] * len(whens)
    await key(faked, "Home")
    assert "nothing known" in await faked.evaluate(spoken)
    await key(faked, "Escape")
    assert set(await faked.texts(".plot .when")) <= {"", "over 30 s"}


async def test_a_moment_is_read_off_by_pointer(faked: Page) -> None:
    await faked.evaluate("advance(30)")
    box = await faked.evaluate(
        "(() => { const it = document.querySelector('.plot .field').getBoundingClientRect();"
        "return [it.x + it.width * 0.75, it.y + 40]; })()"
    )
    await faked.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    await faked.until("document.querySelector('.plot .when').textContent.startsWith('15 s ago')")
    await faked.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    await faked.until("document.querySelector('.plot .when').textContent === ''")


# A node; `more` says what is different about it.
NODES = """
window.node = (name, more = {}) => ({
  id: name, name, here: false, status: "ready", reason: null, age: 0.1, version: "1.2.3",
  advertise: null, uptime: 90061, lag: 0, offset: 12, newest: 1234567, registry: 0, sessions: 2,
  lifetime: 9, tag_sets: 3, connections: {tcp: 2}, ...more});
window.show = (...nodes) => {
  window.more.nodes = nodes.length;
  window.nodes = {engine: true, nodes};
  return advance(1.25);
};
"""
BUSY = (
    NODES
    + """
window.nodes = {engine: true, nodes: [
  node("a-very-long-name-of-a-node-".repeat(3), {here: true, uptime: 1e8, newest: 9e15,
    advertise: `https://${"very-long-".repeat(20)}.example`, sessions: 2e9, tag_sets: 2e9}),
  node("behind", {status: "not_ready", reason: "catching_up", lag: 86400}),
  node("dead", {status: "silent", age: 9.5}),
]};
window.more = {
  nodes: 3,
  connections: {tcp: 9000, ws: 1000}, dropped: {full: 12, unframable: 3, "something-new": 1},
  rejected: 4, unmatched: 5, published: 3e9, delivered: 4e12, delivered_bytes: 5e14,
  history: {epoch: "0123456789abcdef", first: 123456789012, newest: 223456789012,
            messages: 1e11, bytes: 1e13, failing: true},
  slowest: Array.from({length: 20}, (_, each) => ({
    name: `tcp-${each}00000`, transport: "tcp", peer: "2001:db8:1234:5678:9abc:def0:1234:5678",
    token: null, subscriptions: 3, queued: 99999, queued_bytes: 8e6 - each * 4e5, sent: 1e9,
    sent_bytes: 1e12, dropped: 1234567, behind: true})),
  top_tags: Array.from({length: 20}, (_, each) => ({
    tag: `${"a-very-long-tag:".repeat(8)}${each}`, published_rate: 12345.6})),
};
advance(5)
"""
)


ROWS = "#nodes tbody tr:not([hidden])"


async def rows(page: Page) -> list[list[str]]:
    """What a person reads in the table of nodes, by cells."""
    cells = (
        f"[...document.querySelectorAll('{ROWS}')].filter((row) => row.checkVisibility())"
        ".map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return list(await page.evaluate(cells))


async def test_a_server_without_an_engine_shows_no_nodes(faked: Page) -> None:
    assert not await faked.evaluate("document.getElementById('nodes-card').checkVisibility()")


async def test_nodes_are_listed_and_what_is_wrong_with_them(faked: Page) -> None:
    await faked.evaluate(NODES)
    await faked.evaluate("show(node('n1', {here: true, advertise: 'https://n1.example'}))")
    assert await faked.text("#nodes-count") == "one node"
    (only,) = await rows(faked)
    assert only[0].split("\n") == ["n1", "this one · https://n1.example"]
    assert only[1:] == ["ready", "0.0 s", "1,234,567", "2", "3", "1 d 1 h", "1.2.3"]
    await faked.evaluate(
        "show(node('n1', {here: true}),"
        " node('n2', {status: 'not_ready', reason: 'catching_up', lag: 12.4}),"
        " node('n3', {status: 'silent', age: 4.2}))"
    )
    assert await faked.text("#nodes-count") == "3 nodes, 2 not ready"
    found = await rows(faked)
    assert [each[0] for each in found] == ["n1\nthis one", "n2", "n3"]
    assert [each[1] for each in found] == ["ready", "catching up", "silent for 4 s"]
    assert [each[2] for each in found] == ["0.0 s", "12 s", "0.0 s"]
    states = await faked.evaluate(
        f"[...document.querySelectorAll('{ROWS} .badge')].map((each) => each.dataset.state)"
    )
    assert states == ["good", "warn", "bad"]
    await faked.evaluate("show(node('n1', {here: true}))")
    assert len(await rows(faked)) == 1


async def test_an_engine_that_does_not_answer_is_told(faked: Page) -> None:
    await faked.evaluate(NODES)
    await faked.evaluate("show(node('n1'), node('n2'))")
    await faked.evaluate("window.nodes = null; advance(2)")
    assert "does not answer" in await faked.text("#nodes-empty")
    assert await rows(faked) == []
    await faked.evaluate("show(node('n1'))")
    assert len(await rows(faked)) == 1
    assert not await faked.evaluate("document.getElementById('nodes-empty').checkVisibility()")


async def test_a_node_s_markup_is_text(faked: Page) -> None:
    await faked.evaluate(NODES)
    await faked.evaluate(f"show(node({json.dumps(MARKUP)}, {{advertise: {json.dumps(MARKUP)}}}))")
    assert (await rows(faked))[0][0] == f"{MARKUP}\n{MARKUP}"
    assert (
        await faked.evaluate("document.querySelectorAll('#board img, #board script').length") == 0
    )


async def test_real_nodes_are_listed(opened: Open, tmp_path: Path) -> None:
    settings = SETTINGS | {"engine": "memory://dashboard"}
    async with (
        running(tmp_path / "1", **settings, node="n1") as one,
        running(tmp_path / "2", **settings, node="n2"),
        opened(one) as page,
    ):
        await page.until(f"document.querySelectorAll('{ROWS}').length === 2")
        assert [each[:2] for each in await rows(page)] == [
            ["n1\nthis one", "ready"],
            ["n2", "ready"],
        ]


@pytest.mark.parametrize("width", [360, 320])
async def test_a_phone_need_not_scroll_sideways(opened: Open, server: Server, width: int) -> None:
    async with opened(server, FAKE, width=width) as page:
        await page.until("window.looks === 1")
        await page.evaluate(BUSY)
        assert await page.evaluate("document.documentElement.scrollWidth") == width
        wide = await page.evaluate(
            "[...document.querySelectorAll('#board *')].filter((each) =>"
            " !each.closest('.unseen, svg')"
            " && each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML)"
        )
        assert wide == []


async def test_a_bar_shows_how_full_an_outbox_is(faked: Page) -> None:
    await faked.evaluate(BUSY)
    await faked.evaluate("window.more.outbox_limit = 16e6; advance(1)")
    bars = "[...document.querySelectorAll('#connections .fill')]"
    parts = await faked.evaluate(f"{bars}.map((each) => each.style.transform)")
    assert parts[:2] == ["scaleX(0.5)", "scaleX(0.475)"]
    assert not await faked.evaluate(f"{bars}.some((each) => each.classList.contains('high'))")
    await faked.evaluate("window.more.outbox_limit = 8e6; advance(1)")
    assert await faked.evaluate(f"{bars}[0].classList.contains('high')")


async def test_losses_are_explained(faked: Page) -> None:
    await faked.evaluate(BUSY)
    text = await faked.text("#losses")
    assert "--outbox-bytes" in text
    assert "escape on" in text
    assert "something-new" in text  # a reason that the page doesn't know is shown by its name
    assert await faked.text("#history-state") == "can't be written"


LISTS = """
window.lists = {
  "./v1/subscriptions": {count: 70, next: null, subscriptions: [
    {tags: ["a", "b"], subscribers: 9}, {tags: ["c"], subscribers: 9}]},
  "./v1/stats/subscriptions": {seconds: 30, subscriptions: [
    {tags: ["c"], subscribers: 9, delivered_rate: 1234.5},
    {tags: ["a", "b"], subscribers: 9, delivered_rate: 617.25}]},
};
window.more.tag_sets = 70;
advance(6)
"""


async def table(page: Page, name: str) -> list[list[str]]:
    """What a person reads in a table, by cells; a bar is its width."""
    return list(
        await page.evaluate(
            f"[...document.querySelectorAll('#{name} tr')].filter((row) => row.checkVisibility())"
            ".map((row) => [...row.cells].filter((cell) => cell.checkVisibility()).map((cell) =>"
            " cell.querySelector('.fill')?.style.transform ?? cell.innerText.replace(/\\n/g, ' ')))"
        )
    )


async def test_subscriptions_are_shown_by_subscribers_or_by_deliveries(faked: Page) -> None:
    await faked.evaluate(LISTS)
    head = ["All of these tags", "Subscribers"]
    assert await table(faked, "subscriptions") == [head, ["a b", "9"], ["c", "9"]]
    await faked.evaluate("document.querySelector('#subscriptions-order input').focus()")
    await key(faked, "ArrowRight")
    await faked.evaluate("advance(1)")
    assert await table(faked, "subscriptions") == [
        ["All of these tags", "", "Deliveries/s", "Subscribers"],
        ["c", "scaleX(1)", "1.23k", "9"],
        ["a b", "scaleX(0.5)", "617", "9"],
    ]
    assert "stimated" in await faked.text("#subscriptions-caption")
    assert await faked.text("#subscriptions-count") == "70 tag sets"
    await key(faked, "ArrowLeft")
    await faked.evaluate("advance(1)")
    assert (await table(faked, "subscriptions"))[0] == head
    assert await faked.evaluate(FAULTS) == []


async def test_rates_of_subscriptions_are_not_asked_for_unless_they_are_shown(faked: Page) -> None:
    await faked.evaluate(
        "window.asked = []; const of = fetch;"
        "window.fetch = (path) => { asked.push(path); return of(path); }; advance(12)"
    )
    assert "./v1/stats/subscriptions" not in await faked.evaluate("asked")
    await faked.evaluate("document.querySelector('#subscriptions-order [value=rate]').click()")
    await faked.evaluate("advance(12)")
    assert 6 <= (await faked.evaluate("asked")).count("./v1/stats/subscriptions") <= 8


async def test_what_is_being_measured_is_said_to_be(faked: Page) -> None:
    await faked.evaluate(LISTS)
    rates = (
        "window.lists['./v1/stats/subscriptions'] = {seconds: %s, subscriptions: []}; advance(3)"
    )
    await faked.evaluate("document.querySelector('#subscriptions-order [value=rate]').click()")
    await faked.evaluate(rates % 0)
    assert await faked.text("#subscriptions-idle") == "Measuring from now on…"
    await faked.evaluate(rates % 30)
    assert await faked.text("#subscriptions-idle") == "No deliveries now."
    assert await table(faked, "subscriptions") == []


async def test_bars_are_shown_only_where_they_differ(faked: Page) -> None:
    tags = "window.more.top_tags = [{tag: 'a', published_rate: 5}, %s]; advance(1)"
    await faked.evaluate(tags % "{tag: 'b', published_rate: 5}")
    assert await table(faked, "tags") == [["Tag", "Messages/s"], ["a", "5"], ["b", "5"]]
    await faked.evaluate(tags % "{tag: 'b', published_rate: 4}")
    assert (await table(faked, "tags"))[1:] == [
        ["a", "scaleX(1)", "5"],
        ["b", "scaleX(0.8)", "4"],
    ]
    await faked.evaluate("window.more.top_tags = [{tag: 'a', published_rate: 5}]; advance(1)")
    assert (await table(faked, "tags"))[1:] == [["a", "5"]]


async def test_real_deliveries_are_shown_by_subscription(live: Page, server: Server) -> None:
    await live.click("#subscribe-button")
    await live.until(LISTENING)
    await live.evaluate("document.querySelector('#subscriptions-order [value=rate]').click()")
    async with trio.open_nursery() as nursery:

        async def publish() -> None:
            while True:
                await server.hub.store(frozenset({"demo"}), b"17")
                await trio.sleep(0.01)

        nursery.start_soon(publish)
        await live.until(
            "document.querySelector('#subscriptions-idle').checkVisibility() === false"
        )
        await live.until(
            "document.querySelector('#subscriptions tbody th').innerText === 'demo'"
            " && parseFloat(document.querySelector('#subscriptions tbody .number').innerText) > 1"
        )
        nursery.cancel_scope.cancel()


# Each with what is wrong about it; what a person would look for with a screen reader.
FAULTS = """
(() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const named = (it) => it.getAttribute("aria-label")
    || (it.getAttribute("aria-labelledby") ?? "").split(" ")
      .map((id) => document.getElementById(id)?.textContent ?? "").join("").trim()
    || [...(it.labels ?? [])].map((each) => each.textContent).join("").trim()
    || (it.matches("button, a, summary") && it.textContent.trim());
  const kinds = "button, a, input, select, textarea, [role=slider], form, section, [tabindex]";
  for (const it of all(kinds)) {
    if (it.matches("section#notice")) continue;
    if (!named(it)) faults.push(`no name: ${it.outerHTML.slice(0, 99)}`);
  }
  if (all("h1").length !== 1) faults.push("not one h1");
  let level = 0;
  for (const it of all("h1, h2, h3, h4")) {
    const here = Number(it.tagName[1]);
    if (here > level + 1) faults.push(`skips a level: ${it.textContent}`);
    level = here;
  }
  if (document.documentElement.lang !== "en") faults.push("no language");
  if (!document.title) faults.push("no title");
  if (all("main:not([hidden])").length !== 1) faults.push("not one main");
  for (const it of all("table")) {
    if (!it.caption) faults.push(`no caption: ${it.id}`);
    if (it.querySelector("thead th:not([scope=col])")) faults.push(`no scope: ${it.id}`);
  }
  for (const it of all("img:not([alt])")) faults.push(`no alt: ${it.src}`);
  for (const it of all("svg:not([aria-hidden=true])")) faults.push("a drawing that is read");
  const ids = all("[id]").map((it) => it.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  if (!all("[role=status]").some((it) => it.id === "state")) faults.push("a state nobody hears");
  for (const it of all("[aria-labelledby], [aria-describedby], label[for]")) {
    for (const name of ["aria-labelledby", "aria-describedby", "for"]) {
      const id = it.getAttribute(name);
      if (id && !document.getElementById(id)) faults.push(`nothing is ${id}`);
    }
  }
  return faults;
})()
"""
# Contrast of every text that is to be seen, as of WCAG 2.1, 1.4.3.
FAINT = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((total, each, index) => total + each * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (it) => {
    for (let each = it; each; each = each.parentElement) {
      const colour = rgba(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  let looked = 0;
  for (const it of document.querySelectorAll("body *")) {
    const own = [...it.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    if (!own || it.closest("script, noscript, option") || !it.checkVisibility()) continue;
    const style = getComputedStyle(it);
    const [one, other] = [rgba(it instanceof SVGElement ? style.fill : style.color), behind(it)]
      .map(light);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    looked += 1;
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${it.textContent.slice(0, 40)}`);
  }
  return looked > 100 ? faint : ["looked at too little"];
})()
"""


async def test_everything_has_a_name_and_its_place(faked: Page) -> None:
    assert await faked.evaluate(FAULTS) == []
    await faked.evaluate(BUSY)
    assert await faked.evaluate(FAULTS) == []


async def test_the_secret_is_asked_for_accessibly(opened: Open, guarded: Server) -> None:
    async with opened(guarded) as page:
        await page.until("!document.getElementById('gate').hidden")
        assert await page.evaluate(FAULTS) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_text_is_legible(faked: Page, dark: bool) -> None:
    await faked.look(1200, 900, dark=dark)
    await faked.evaluate(BUSY)
    paper = await faked.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) is dark
    assert await faked.evaluate(FAINT) == []


async def test_what_has_the_focus_is_seen(live: Page) -> None:
    stops = []
    for _ in range(40):
        await live.press("Tab")
        stops.append(
            await live.evaluate(
                "[document.activeElement.id || document.activeElement.className"
                " || document.activeElement.tagName,"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    assert stops[0][0] == "skip"
    seen = {name for name, _ in stops}
    assert seen >= {"field", "sessions-search", "tokens-create", "publish-tags", "subscribe-button"}
    # Behind the last comes the browser itself.
    assert {style for name, style in stops if name != "BODY"} == {"solid"}


# How it runs

FRAMES = """
new Promise((resolve) => {
  const long = [];
  new PerformanceObserver((list) => long.push(...list.getEntries().map((each) => each.duration)))
    .observe({type: "longtask"});
  const gaps = [];
  let last = performance.now();
  const goal = window.looks + 8;
  const frame = (now) => {
    gaps.push(now - last);
    last = now;
    if (window.looks < goal) requestAnimationFrame(frame);
    else resolve({gaps: gaps.slice(1), long});
  };
  requestAnimationFrame(frame);
})
"""
# Real time, and what a server with ten thousand connections says, different with each look.
THRONG = """
(() => {
  const any = (most) => Math.floor(Math.random() * most);
  const begun = performance.now();
  let published = 0;
  let delivered = 0;
  const real = window.fetch;
  window.looks = 0;
  window.fetch = async (path, request) => {
    if (path !== "./v1/stats") return real(path, request);
    window.looks += 1;
    published += any(20_000);
    delivered += any(10_000_000);
    return new Response(JSON.stringify({
      time: Date.now() / 1000, uptime: 100 + (performance.now() - begun) / 1000, version: "1",
      published, delivered, delivered_bytes: 200 * delivered, rejected: any(5), unmatched: any(5),
      dropped: {full: 100 * window.looks}, connections: {tcp: 2000, ws: 8000}, lifetime: 10_000,
      tag_sets: 5000, auth_failures: {}, loop_lag: Math.random() / 50, cpu_seconds: 1,
      resident_bytes: 5e8 + any(1e6), history: null,
      slowest: Array.from({length: 20}, () => ({
        name: `ws-${any(10_000)}`, transport: "ws", peer: `10.0.0.${any(255)}`, token: "t",
        subscriptions: 3, queued: any(1000), queued_bytes: any(8e6), sent: any(1e6),
        sent_bytes: any(1e9), dropped: any(2) * any(1000), behind: any(2) > 0})),
      top_tags: Array.from({length: 20}, () => (
        {tag: `tag:${any(1000)}`, published_rate: any(9000)})),
    }));
  };
})();
"""


async def test_it_runs_smoothly_beside_ten_thousand_connections(
    opened: Open, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(server, THRONG) as page:
        await page.until(LIVE)
        await page.call("Performance.enable", timeDomain="threadTicks")
        before = await measures(page)
        measured = await page.evaluate(FRAMES)
        after = await measures(page)
        gaps = sorted(measured["gaps"])
        assert await page.text("#transports") == "2,000 TCP\n8,000 WebSocket"
    looks = int(after["looks"] - before["looks"])
    middle, high = gaps[len(gaps) // 2], gaps[int(len(gaps) * 0.99)]
    a_look = 1000 * (after["TaskDuration"] - before["TaskDuration"]) / looks
    with capsys.disabled():
        print(
            f"\nframes in {looks} looks: {len(gaps)}; between two, ms: median {middle:.1f}, "
            f"p99 {high:.1f}, longest {gaps[-1]:.1f}; "
            f"tasks over 50 ms: {[round(each) for each in measured['long']]}; "
            f"work for a look: {a_look:.0f} ms"
        )
    # Speed is printed. This is about a page that would stand still on whatever machine: of the
    # processor's time, so that nothing else that runs there counts.
    assert a_look < 500


async def measures(page: Page) -> dict[str, float]:
    """What Chromium counts of a page, seconds of its thread; and how often it has looked."""
    found = (await page.call("Performance.getMetrics"))["metrics"]
    looks = float(await page.evaluate("window.looks"))
    return {"looks": looks, **{each["name"]: each["value"] for each in found}}
