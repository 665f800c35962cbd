"""The dashboard's subscriptions, by subscribers and by deliveries."""

import trio

from mist.server import Server
from tests.axe import violations
from tests.chromium import Page
from tests.static.dashboard.looking import FAULTS, LISTENING, key

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
    assert await violations(faked) == []


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
