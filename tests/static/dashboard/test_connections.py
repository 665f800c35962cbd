"""The dashboard's connections: searched, sorted, by pages; one opened, and its session ended."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.auth.record import Record
from mist.commands import Register
from mist.protocols.line.forms import PLAIN
from mist.server import Server
from mist.sessions.session import Session
from mist.terms import Terms
from tests.axe import violations
from tests.chromium import Page
from tests.http.test_stats import dial
from tests.servers import running
from tests.static.dashboard.looking import (
    FAINT,
    FAKE,
    FAULTS,
    HELD,
    LIVE,
    MARKUP,
    SETTINGS,
    Open,
    fill,
    sign_in,
    wide,
)
from tests.waiting import until

ROWS = "#sessions tbody tr:not([hidden])"


NAMES = f"[...document.querySelectorAll('{ROWS} .link')].map((each) => each.textContent)"


SETTLED = f"document.querySelectorAll('{ROWS}').length > 0"


@pytest.fixture
async def streams(server: Server) -> AsyncIterator[list[trio.SocketStream]]:
    """Connections of services: the first with 1 subscription, the next with 2, and so on to 25."""
    made = [
        await dial(server, b"".join([b"subscribe t,%d\n" % each for each in range(number)]))
        for number in range(1, 26)
    ]
    yield made
    for each in made:
        await each.aclose()


@pytest.fixture
async def live(opened: Open, server: Server, streams: Any) -> AsyncIterator[Page]:
    async with opened(server) as page:
        await page.until(LIVE)
        await page.until(SETTLED)
        yield page


async def sort(page: Page, order: str) -> None:
    await page.evaluate(
        f"(() => {{ const it = document.getElementById('sessions-sort'); it.value = '{order}';"
        "it.dispatchEvent(new Event('change')); })()"
    )


def names(server: Server) -> list[str]:
    return [each.name for each in server.hub.sessions]


async def test_all_are_listed_a_page_at_a_time(live: Page, server: Server) -> None:
    await sort(live, "subscriptions")
    most = [
        each.name for each in sorted(server.hub.sessions, key=lambda it: -len(it.subscriptions))
    ]
    await live.until(
        f"JSON.stringify({NAMES}) === {json.dumps(json.dumps(most[:20], separators=(',', ':')))}"
    )
    assert await live.text("#sessions-count") == "1 \N{EN DASH} 20 of 25"
    assert await live.evaluate("document.getElementById('sessions-back').ariaDisabled") == "true"
    await live.click("#sessions-on")
    await live.until(f"document.querySelectorAll('{ROWS}').length === 5")
    assert await live.evaluate(NAMES) == most[20:]
    assert await live.text("#sessions-count") == "21 \N{EN DASH} 25 of 25"
    await live.click("#sessions-on")  # there is no more
    assert await live.evaluate("document.activeElement.id") == "sessions-on"
    await live.click("#sessions-back")
    await live.until(f"document.querySelectorAll('{ROWS}').length === 20")
    assert await live.evaluate(NAMES) == most[:20]


async def test_a_button_pressed_twice_turns_one_page(live: Page, server: Server) -> None:
    """Before the first answer has come: where the next page begins is not known until then."""
    all_of_them = names(server)
    twice = (
        "(() => { const it = document.getElementById('sessions-on'); it.click(); it.click(); })()"
    )
    assert await live.evaluate(NAMES) == all_of_them[:20]
    await live.evaluate(twice)
    await live.until(f"document.querySelectorAll('{ROWS}').length === 5")
    assert await live.evaluate(NAMES) == all_of_them[20:]
    await live.click("#sessions-back")
    await live.until(f"document.querySelectorAll('{ROWS}').length === 20")
    assert await live.text("#sessions-count") == "1 \N{EN DASH} 20 of 25"
    assert await live.evaluate(NAMES) == all_of_them[:20]


async def test_they_are_searched(live: Page, server: Server) -> None:
    wanted = names(server)[10]
    await fill(live, "#sessions-search", wanted.upper())
    await live.until(f"document.querySelectorAll('{ROWS}').length === 1")
    assert await live.evaluate(NAMES) == [wanted]
    assert await live.text("#sessions-count") == "1 found"
    await fill(live, "#sessions-search", "nothing at all")
    await live.until("!document.getElementById('sessions-said').hidden")
    assert "No connection has this" in await live.text("#sessions-said")
    assert await live.evaluate("document.getElementById('sessions').hidden")
    await fill(live, "#sessions-search", "127.0.0.1")
    await live.until(f"document.querySelectorAll('{ROWS}').length === 20")


async def test_one_is_opened_and_its_session_ended(
    live: Page, server: Server, streams: list[trio.SocketStream]
) -> None:
    await sort(live, "oldest")
    victim = names(server)[2]
    await fill(live, "#sessions-search", victim)
    await live.until(f"JSON.stringify({NAMES}) === '[\"{victim}\"]'")
    await live.click(f"{ROWS} .link")
    await live.until("document.querySelectorAll('#connection-pairs div:not([hidden])').length > 5")
    assert await live.text("#connection-title") == victim
    pairs = dict(
        each.split("\n") for each in await live.texts("#connection-pairs > div:not([hidden])")
    )
    assert (pairs["Transport"], pairs["Address"]) == ("TCP", "127.0.0.1")
    assert (pairs["Token"], pairs["Behind"]) == ("none: a service", "no")
    assert await live.text("#connection-count") == "Subscribed to 3 tag sets"
    assert await live.texts("#connection-subscribed li:first-child .tag") == ["0", "t"]
    # Without a secret there is only a question, and to decline it is what Enter does.
    await live.click("#connection-end")
    assert await live.evaluate("document.getElementById('confirm').open")
    assert await live.evaluate("document.getElementById('confirm-asked').hidden")
    assert await live.evaluate("document.activeElement.id") == "confirm-cancel"
    assert await live.text("#confirm-text") == "service, 127.0.0.1. It may connect again at once."
    await live.press("Enter")
    assert not await live.evaluate("document.getElementById('confirm').open")
    assert await live.evaluate("document.activeElement.id") == "connection-end"
    assert victim in names(server)
    await live.click("#connection-end")
    await live.click("#confirm-do")
    await live.until("document.getElementById('connection-said').textContent === 'Ended.'")
    assert await live.evaluate("document.getElementById('connection-end').disabled")
    await until(lambda: victim not in names(server))
    assert server.hub.sessions.close_codes[4410] == 1
    with trio.fail_after(5):
        assert b"ended by an operator" in await streams[2].receive_some()
    await live.click("#connection-close")
    await live.until("!document.getElementById('sessions-said').hidden")


async def test_dialogs_that_are_opened_again_at_once_are_good(live: Page, server: Server) -> None:
    """Word that a dialog has closed comes later, when it may be open for something else."""
    before = len(names(server))
    await live.evaluate(
        "(() => { const press = (selector) => document.querySelector(selector).click();"
        f" const row = '{ROWS} .link'; press(row); press('#connection-close'); press(row);"
        " press('#connection-end'); press('#confirm-cancel'); press('#connection-end'); })()"
    )
    await live.evaluate("new Promise((resolve) => setTimeout(resolve))")
    await live.click("#confirm-do")
    await live.until("document.getElementById('connection-said').textContent === 'Ended.'")
    await until(lambda: len(names(server)) == before - 1)


async def test_an_end_that_is_answered_late_is_not_shown_of_another(
    live: Page, server: Server
) -> None:
    before = len(names(server))
    await live.evaluate(HELD)
    await live.click(f"{ROWS} .link")
    await live.click("#connection-end")
    await live.click("#confirm-do")
    await live.until("window.arrived")
    await live.click("#connection-close")
    await live.until(
        f"document.getElementById('sessions-count').textContent.endsWith('{before - 1}')"
    )
    await live.click(f"{ROWS}:nth-child(2) .link")
    await live.evaluate("window.answer()")
    await live.evaluate("new Promise((resolve) => setTimeout(resolve))")
    assert await live.text("#connection-said") == ""
    assert not await live.evaluate("document.getElementById('connection-end').disabled")


async def test_one_that_ends_while_it_is_looked_at_is_said_to_have(
    live: Page, streams: list[trio.SocketStream]
) -> None:
    await sort(live, "subscriptions")
    await live.click(f"{ROWS} .link")
    await live.until("document.querySelectorAll('#connection-pairs div').length > 5")
    for each in streams:
        await each.aclose()
    await live.until(
        "document.getElementById('connection-said').textContent === 'This connection has ended.'"
    )


async def test_many_subscriptions_are_shown_by_pages(opened: Open, server: Server) -> None:
    lines = b"".join([b"subscribe %03d\n" % number for number in range(120)])
    stream = await dial(server, lines)
    async with opened(server) as page:
        await page.until(SETTLED)
        await page.click(f"{ROWS} .link")
        items = "#connection-subscribed li:not([hidden])"
        for first, number in (("000", 50), ("050", 50), ("100", 20)):
            await page.until(f"document.querySelector('{items} .tag')?.textContent === '{first}'")
            assert len(await page.texts(items)) == number
            if number == 50:
                await page.click("#connection-more")
        assert await page.evaluate("document.getElementById('connection-more').hidden")
        await page.click("#connection-first")
        await page.until(f"document.querySelector('{items} .tag')?.textContent === '000'")
    await stream.aclose()


async def test_dialogs_are_used_by_keyboard(live: Page) -> None:
    await live.evaluate(f"document.querySelector('{ROWS} .link').focus()")
    await live.press("Enter")
    assert await live.evaluate("document.getElementById('connection').open")
    inside = "document.getElementById('connection').contains(document.activeElement)"
    for _ in range(12):  # the focus goes to the browser's own controls, and never behind the dialog
        assert await live.evaluate(f"{inside} || document.activeElement === document.body")
        await live.press("Tab")
    await live.evaluate("document.getElementById('connection-end').focus()")
    await live.press("Enter")
    assert await live.evaluate("document.getElementById('confirm').open")
    await live.press("Escape")
    assert not await live.evaluate("document.getElementById('confirm').open")
    assert await live.evaluate("document.activeElement.id") == "connection-end"
    await live.press("Escape")
    assert not await live.evaluate("document.getElementById('connection').open")
    assert await live.evaluate("document.activeElement.className") == "link mono"


# Names that others choose


@pytest.fixture
async def hostile(server: Server) -> AsyncIterator[Record]:
    """A session whose token, tags, address and attributes are markup."""
    tag = MARKUP.replace(" ", "/").replace(",", "")
    change = Register("t", frozenset({tag, "*"}), terms=Terms(name=MARKUP))
    [record] = await server.hub.registry.execute([change])
    session = Session(server.hub, PLAIN, lambda notice: b"", transport="ws", peer=MARKUP)
    session.adopt(record)
    session.subscribe(frozenset({tag}))
    yield record
    await session.aclose()


async def test_what_others_choose_is_text(opened: Open, server: Server, hostile: Record) -> None:
    tag = next(each for each in hostile.tags if each != "*")
    async with opened(server) as page:
        await page.until(SETTLED)
        assert MARKUP in await page.text(f"{ROWS} .peer")
        await page.click(f"{ROWS} .link")
        await page.until("document.querySelectorAll('#connection-subscribed .tag').length === 1")
        assert await page.text("#connection-subscribed .tag") == tag
        assert MARKUP in await page.text("#connection-pairs")
        await page.click("#connection-end")
        assert MARKUP in await page.text("#confirm-text")
        await page.press("Escape")
        await page.press("Escape")
        found = (
            "document.querySelectorAll('main img, main script, dialog img, dialog script').length"
        )
        assert await page.evaluate(found) == 0
        assert await page.evaluate("typeof hacked") == "undefined"


async def test_what_others_choose_is_shown_in_the_order_it_was_written(
    opened: Open, server: Server
) -> None:
    """A tag may hold characters by which what follows is shown from right to left."""
    change = Register("t", frozenset({"a\u202eb/gro.live", "\u05d0\u05d1"}))
    [record] = await server.hub.registry.execute([change])
    session = Session(server.hub, PLAIN, lambda notice: b"", transport="ws", peer="a\u2067b")
    session.adopt(record)
    session.subscribe(record.tags)
    try:
        async with opened(server) as page:
            await page.until(SETTLED)
            assert "a\\u2067b" in await page.text(f"{ROWS} .peer")
            await page.click(f"{ROWS} .link")
            tags = "[...document.querySelectorAll('#connection-subscribed .tag')]"
            await page.until(f"{tags}.length === 2")
            shown = await page.evaluate(f"{tags}.map((each) => each.textContent)")
            assert shown == ["a\\u202eb/gro.live", "\u05d0\u05d1"]
    finally:
        await session.aclose()


async def test_what_nobody_sees_in_a_tag_is_shown(opened: Open, server: Server) -> None:
    """Two tags that differ would look the same; what joins letters and emoji stays as it is."""
    joined = "\u0645\u200c\u06cc"
    change = Register("t", frozenset({"a\u200bb", "ab", "c\u2028d", "\ufeff", joined}))
    [record] = await server.hub.registry.execute([change])
    session = Session(server.hub, PLAIN, lambda notice: b"", transport="ws", peer="p")
    session.adopt(record)
    session.subscribe(record.tags)
    try:
        async with opened(server) as page:
            await page.until(SETTLED)
            await page.click(f"{ROWS} .link")
            tags = "[...document.querySelectorAll('#connection-subscribed .tag')]"
            await page.until(f"{tags}.length === 5")
            shown = await page.evaluate(f"{tags}.map((each) => each.textContent)")
            assert set(shown) == {"a\\u200bb", "ab", "c\\u2028d", "\\ufeff", joined}
    finally:
        await session.aclose()


# The secret


async def test_the_secret_is_asked_for_again(opened: Open, guarded: Server) -> None:
    streams = [await dial(guarded, "auth geheim-ä\n".encode()) for _ in range(3)]
    async with opened(guarded) as page:
        await sign_in(page, "geheim-ä")
        await page.until(SETTLED)
        await page.click(f"{ROWS} .link")
        await page.click("#connection-end")
        assert await page.evaluate("document.activeElement.id") == "confirm-secret"
        await page.press("Enter")  # nothing is no secret
        assert await page.evaluate("document.getElementById('confirm').open")
        await page.type("wrong")
        await page.press("Enter")
        await page.until("document.getElementById('confirm-said').textContent !== ''")
        assert await page.text("#confirm-said") == "That is not the secret."
        assert guarded.hub.sessions.close_codes[4410] == 0
        await fill(page, "#confirm-secret", "geheim-ä")
        await page.press("Enter")
        await page.until("document.getElementById('connection-said').textContent === 'Ended.'")
        await page.click("#connection-close")
        kept = "JSON.stringify([...document.querySelectorAll('input')].map((each) => each.value))"
        assert "geheim" not in await page.evaluate(kept)
        # For a while a question is enough.
        await page.until(f"document.querySelectorAll('{ROWS}').length === 2")
        await page.click(f"{ROWS} .link")
        await page.click("#connection-end")
        assert await page.evaluate("document.getElementById('confirm-asked').hidden")
        await page.click("#confirm-cancel")
        await page.evaluate("performance.now = () => 1e7")
        await page.click("#connection-end")
        assert not await page.evaluate("document.getElementById('confirm-asked').hidden")
        assert guarded.hub.sessions.close_codes[4410] == 1
    for each in streams:
        await each.aclose()


# Other nodes


async def test_a_session_of_another_node_is_ended(opened: Open, tmp_path: Path) -> None:
    settings = SETTINGS | {"engine": "memory://dashboard-connections"}
    async with (
        running(tmp_path / "1", **settings, node="n1") as one,
        running(tmp_path / "2", **settings, node="n2") as two,
        opened(one) as page,
    ):
        stream = await dial(two, b"subscribe a\n")
        await page.evaluate("document.getElementById('sessions-form').scrollIntoView()")
        await page.until(f"document.querySelector('{ROWS} .peer')?.textContent.includes('n2')", 30)
        await page.click(f"{ROWS} .link")
        await page.until("document.querySelectorAll('#connection-subscribed .tag').length === 1")
        assert await page.text("#connection-title") == f"{names(two)[0]} at n2"
        await page.click("#connection-end")
        await page.click("#confirm-do")
        await page.until("document.getElementById('connection-said').textContent === 'Ended.'")
        await until(lambda: not names(two))
        await stream.aclose()


async def test_a_node_that_does_not_answer_is_told(opened: Open, tmp_path: Path) -> None:
    """Of its connections as of a list that lacks them: what is shown is not of now."""
    settings = SETTINGS | {"engine": "memory://dashboard-silent"}
    answered = "new Response(%s, {status: %d, headers: {'Content-Type': 'application/json'}})"
    silent = answered % ("JSON.stringify({code: 'node_silent', detail: 'silent'})", 503)
    nobody = answered % (
        "JSON.stringify({count: 0, next: null, missing: ['n2'], connections: []})",
        200,
    )
    async with (
        running(tmp_path / "1", **settings, node="n1") as one,
        running(tmp_path / "2", **settings, node="n2") as two,
        opened(one) as page,
    ):
        stream = await dial(two, b"subscribe a\n")
        await page.evaluate("document.getElementById('sessions-form').scrollIntoView()")
        await page.until(f"document.querySelector('{ROWS} .peer')?.textContent.includes('n2')", 30)
        await page.click(f"{ROWS} .link")
        await page.until("document.querySelectorAll('#connection-subscribed .tag').length === 1")
        await page.evaluate(
            "(() => { window.answering = window.fetch; window.fetch = async (path, request) =>"
            f" path.startsWith('./v1/connections/') ? {silent}"
            f" : path.startsWith('./v1/connections?') ? {nobody} : window.answering(path, request);"
            " })()"
        )
        told = "document.getElementById('%s').textContent %s"
        await page.until(told % ("connection-said", "!== ''"))
        assert await page.text("#connection-said") == (
            "Its node does not answer. These are the last figures received."
        )
        await page.until(told % ("sessions-said", "!== ''"))
        assert await page.text("#sessions-said") == (
            "No connections at the nodes that answered. 1 node did not answer."
        )
        await page.evaluate("window.fetch = window.answering")
        await page.until(told % ("connection-said", "=== ''"))
        await stream.aclose()


# How it is read


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_dialogs_are_legible_and_named(live: Page, dark: bool) -> None:
    await live.look(1200, 900, dark=dark)
    assert await live.evaluate(FAULTS) == []
    assert await violations(live) == []
    await live.click(f"{ROWS} .link")
    await live.until("document.querySelectorAll('#connection-subscribed .tag').length > 0")
    assert await violations(live) == []
    await live.click("#connection-end")
    assert await live.evaluate(FAULTS) == []
    assert await live.evaluate(FAINT) == []
    assert await violations(live) == []


@pytest.mark.parametrize("width", [360, 320])
async def test_dialogs_fit_a_phone(
    opened: Open, server: Server, hostile: Record, width: int
) -> None:
    async with opened(server, width=width) as page:
        await page.until(SETTLED)
        assert await page.evaluate("document.documentElement.scrollWidth") == width
        await page.click(f"{ROWS} .link")
        await page.until("document.querySelectorAll('#connection-subscribed .tag').length === 1")
        await page.click("#connection-end")
        assert await page.evaluate(wide("#connection *, #confirm *, #sessions *")) == []


async def test_a_list_that_nobody_sees_is_not_requested_again(opened: Open, server: Server) -> None:
    async with opened(server, FAKE) as page:
        await page.until("window.looks === 1")
        await page.evaluate(
            "(() => { window.asked = 0; const fake = window.fetch;"
            " window.fetch = (path) => { window.asked += path.startsWith('./v1/connections?');"
            " return fake(path); }; })()"
        )
        await page.evaluate("scrollTo(0, 0); advance(20)")
        assert await page.evaluate("window.asked") == 0
        await page.evaluate("document.getElementById('sessions-form').scrollIntoView()")
        await page.until("window.asked === 1")  # at once: what it shows is old
        await page.evaluate("advance(11)")
        assert await page.evaluate("window.asked") >= 2
