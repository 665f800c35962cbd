"""What the dashboard shows of a real server."""

import json
from pathlib import Path

import trio

from mist.server import Server
from tests.chromium import Page
from tests.servers import running
from tests.static.dashboard.looking import (
    LISTENING,
    LIVE,
    MARKUP,
    SETTINGS,
    Open,
    fill,
    tile,
    tile_is,
    url_of,
)


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


async def test_connections_are_called_the_same_everywhere(faked: Page) -> None:
    await faked.evaluate("window.more.connections = {nats: 2, bus: 1}; advance(1.25)")
    assert await faked.text("#transports") == "2 NATS\n1 MessageBus"


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
