"""The dashboard's plots of what the server has recorded."""

from collections.abc import AsyncIterator

import pytest

from mist.server import Server
from tests.chromium import Page
from tests.static.dashboard.looking import (
    FAKE,
    RECORDED,
    RESTARTED,
    Open,
    key,
    lowest,
    pieces,
    tile,
)


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
