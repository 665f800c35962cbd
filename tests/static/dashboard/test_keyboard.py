"""The dashboard by keyboard alone: what has the focus keeps it, or hands it on."""

from mist.auth import Remove
from mist.server import Server
from tests.chromium import Page
from tests.http.test_stats import dial
from tests.static.dashboard.looking import LIVE, Open
from tests.static.dashboard.test_tokens import make
from tests.waiting import until

# Changes are answered as slowly as it takes the browser to draw a few times.
SLOW = """
const plain = window.fetch;
const drawn = () => new Promise((resolve) => requestAnimationFrame(resolve));
window.fetch = async (path, request) => {
  const answer = await plain(path, request);
  if (!["GET", undefined].includes(request?.method)) {
    for (let frame = 0; frame < 5; frame += 1) await drawn();
  }
  return answer;
};
"""


async def focus(page: Page, selector: str) -> None:
    await page.until(f"document.querySelector('{selector}').checkVisibility()")
    await page.evaluate(f"document.querySelector('{selector}').focus()")


async def has_focus(page: Page, id_: str) -> None:
    await page.until(f"document.activeElement.id === '{id_}'")


async def test_a_message_is_published_again_by_the_same_key(opened: Open, server: Server) -> None:
    async with opened(server, SLOW) as page:
        await page.until(LIVE)
        await focus(page, "#publish button")
        for number in (1, 2, 3):
            await page.press("Enter")
            said = f"Stored with id {number}."
            await page.until(f"document.getElementById('publish-said').textContent === '{said}'")
        assert await page.evaluate("document.activeElement.textContent") == "Publish"


async def test_who_clears_the_messages_goes_on_beside_them(live: Page) -> None:
    await live.evaluate("document.getElementById('subscribe-button').click()")
    await live.until("document.getElementById('subscribe-state').textContent.startsWith('listen')")
    await live.evaluate("document.querySelector('#publish button').click()")
    await focus(live, "#subscribe-clear")
    await live.press("Enter")
    await live.until("document.getElementById('subscribe-clear').hidden")
    await has_focus(live, "subscribe-button")


async def test_the_list_has_the_focus_where_what_was_opened_is_gone(
    opened: Open, server: Server
) -> None:
    await make(server, "t1", name="job")
    async with opened(server, SLOW) as page:
        await focus(page, "#tokens tbody .link")
        await page.press("Enter")
        await focus(page, "#token-revoke")
        await page.press("Enter")
        await focus(page, "#confirm-do")
        await page.press("Enter")
        await has_focus(page, "token-close")
        await page.until("document.getElementById('tokens').hidden")
        await page.press("Enter")
        await has_focus(page, "tokens-list")
        await page.press("Tab")
        await has_focus(page, "tokens-create")


async def test_a_button_that_is_of_no_use_any_more_hands_on_the_focus(
    opened: Open, server: Server
) -> None:
    record = await make(server, "t1", name="job")
    stream = await dial(server, b"subscribe a\n")
    async with opened(server) as page:
        await focus(page, "#sessions tbody .link")
        await page.press("Enter")
        await focus(page, "#connection-end")
        await stream.aclose()
        await until(lambda: server.hub.sessions.connected == 0)
        await page.until("document.getElementById('connection-end').disabled")
        await has_focus(page, "connection-close")
        await page.press("Escape")
        await focus(page, "#tokens tbody .link")
        await page.press("Enter")
        await focus(page, "#token-tags")
        await server.hub.registry.execute([Remove(record.id)])
        await page.until("document.getElementById('token-tags').disabled")
        await has_focus(page, "token-close")
