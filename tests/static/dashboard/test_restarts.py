"""The dashboard while its server is gone, and after it was restarted."""

from pathlib import Path

import trio

from mist.config import Listen
from mist.server import Server
from tests.chromium import Page
from tests.http.client import http_address
from tests.servers import running
from tests.static.dashboard.looking import (
    LISTENING,
    LIVE,
    RESTARTED,
    SETTINGS,
    Open,
    lowest,
    pieces,
    tile,
    tile_is,
)


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
