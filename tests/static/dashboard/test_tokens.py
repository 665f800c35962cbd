"""The dashboard's tokens: listed, searched, created, changed and revoked."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from mist.attributes import Attributes
from mist.auth import Remove
from mist.auth.record import Record
from mist.commands import AddTags, Register, SetAttributes
from mist.server import Server
from mist.terms import Terms
from tests.axe import violations
from tests.chromium import Page
from tests.http.test_stats import dial
from tests.static.dashboard.looking import (
    FAINT,
    FAULTS,
    HELD,
    LIVE,
    MARKUP,
    Open,
    fill,
    sign_in,
    wide,
)

ROWS = "#tokens tbody tr:not([hidden])"


NAMES = f"[...document.querySelectorAll('{ROWS} .link')].map((each) => each.textContent)"


async def make(
    server: Server,
    text: str,
    tags: str = "a",
    attributes: dict[str, Any] | None = None,
    **terms: Any,
) -> Record:
    registry = server.hub.registry
    await registry.execute([Register(text, frozenset(tags.split(",")), terms=Terms(**terms))])
    if attributes:
        await registry.execute([SetAttributes(text, Attributes.of_json(attributes))])
    record = registry.known(text)
    assert record is not None
    return record


async def rows(page: Page, count: int) -> None:
    await page.until(f"document.querySelectorAll('{ROWS}').length === {count}")


async def said(page: Page, where: str, text: str) -> None:
    await page.until(f"document.getElementById('{where}').textContent === {json.dumps(text)}")


async def test_tokens_are_listed_with_what_is_known_of_them(opened: Open, server: Server) -> None:
    limits = {"rate": "10", "connections": "2", "user": "u7"}
    record = await make(server, "t1", "a,b", limits, name="job", expires=time.time() + 3600)
    await make(server, "t2", ",".join(f"t{each}" for each in range(9)))
    async with opened(server) as page:
        await rows(page, 2)
        found = {each.split("\n")[0]: each for each in await page.texts(ROWS)}
        job = found["job"]
        assert record.id in job
        for text in ("rate 10/s, connections 2 at once", "u7", "a\nb"):
            assert text in job.replace("\t", "\n").replace("\n\n", "\n"), job
        assert (
            await page.evaluate(f"document.querySelector('{ROWS} .badge').dataset.state") == "warn"
        )
        [other] = [text for name, text in found.items() if name != "job"]
        assert "and 3 more" in other
        assert "never" in other
        assert await page.text("#tokens-count") == "2"
        assert await page.evaluate("document.getElementById('tokens-pages').hidden")


async def test_tokens_are_searched_and_come_by_pages(opened: Open, server: Server) -> None:
    for number in range(25):
        await make(server, f"t{number}", name=f"job {number:02}")
    async with opened(server) as page:
        await rows(page, 20)
        first = await page.evaluate(NAMES)
        await page.click("#tokens-on")
        await rows(page, 5)
        assert len({*first, *(await page.evaluate(NAMES))}) == 25
        await fill(page, "#tokens-search", "JOB 07")
        await rows(page, 1)
        assert await page.evaluate(NAMES) == ["job 07"]
        await fill(page, "#tokens-search", "t7")  # never by its text
        await said(page, "tokens-said", "No token has this in its name, id or user.")


async def test_a_page_whose_tokens_are_all_gone_is_left(opened: Open, server: Server) -> None:
    for number in range(45):
        await make(server, f"t{number}")
    ids = sorted(record.id for record in server.hub.registry.records())
    async with opened(server) as page:
        await rows(page, 20)
        await page.click("#tokens-on")
        await said(page, "tokens-count", "21 \N{EN DASH} 40 of 45")
        await page.click("#tokens-on")
        await rows(page, 5)
        # Of those before, so that the last are others than the 41st to 45th.
        await server.hub.registry.execute([Remove(each) for each in ids[:10]])
        await said(page, "tokens-count", "31 \N{EN DASH} 35 of 35")
        await server.hub.registry.execute([Remove(each) for each in ids[40:]])
        await said(page, "tokens-count", "11 \N{EN DASH} 30 of 30")
        await rows(page, 20)
        assert await page.evaluate("document.getElementById('tokens-said').hidden")
        await server.hub.registry.execute([Remove(each) for each in ids[10:]])
        await said(page, "tokens-said", "No tokens yet. A browser needs one to subscribe.")


async def test_a_token_is_created_and_shown_once(live: Page, server: Server) -> None:
    await said(live, "tokens-said", "No tokens yet. A browser needs one to subscribe.")
    await live.click("#tokens-create")
    assert await live.evaluate("document.activeElement.id") == "create-tags"
    await live.type(" room:* , >room:* ")
    await fill(live, "#create-name", "pages")
    await fill(live, "#create-rate", "5")
    await live.click("#create-form button.main")
    await live.until("!document.getElementById('create-made').hidden")
    text = await live.evaluate("document.getElementById('create-text').value")
    record = server.hub.registry.lookup(text)
    assert record is not None
    assert (record.tags, record.name) == (frozenset({"room:*", ">room:*"}), "pages")
    assert dict(record.attributes.others) == {"rate": "5"}
    assert record.expires is not None
    assert abs(record.expires - time.time() - 30 * 86_400) < 60
    assert await live.text("#create-id") == record.id
    await live.evaluate(
        "(() => { const write = navigator.clipboard.writeText.bind(navigator.clipboard);"
        " navigator.clipboard.writeText = (it) => { window.copied = it; return write(it); }; })()"
    )
    await live.click("#create-copy")
    await said(live, "create-copied", "Copied.")
    assert await live.evaluate("window.copied") == text
    await live.click("#create-close")
    everything = (
        "document.documentElement.outerHTML"
        " + [...document.querySelectorAll('input')].map((each) => each.value).join()"
    )
    await live.until(f"!({everything}).includes({json.dumps(text)})")  # once "close" has come
    await rows(live, 1)
    assert await live.evaluate(NAMES) == ["pages"]
    await live.click("#tokens-create")
    assert await live.evaluate("document.getElementById('create-tags').value") == ""
    assert await live.evaluate("document.getElementById('create-made').hidden")


# Answers to `PUT` wait until `window.go()`.
HELD_PUT = """
const plain = window.fetch;
const gone = new Promise((resolve) => (window.go = resolve));
window.puts = 0;
window.fetch = async (path, request) => {
  if (request?.method !== "PUT") return plain(path, request);
  window.puts += 1;
  const answer = await plain(path, request);
  await gone;
  return answer;
};
"""


async def test_a_token_is_created_once_where_the_button_is_pressed_twice(
    opened: Open, server: Server
) -> None:
    async with opened(server, HELD_PUT) as page:
        await page.until(LIVE)
        await page.click("#tokens-create")
        await page.type("a")
        await page.press("Enter")
        await page.press("Enter")
        await page.evaluate("document.querySelector('#create-form button').click()")
        await page.until("window.puts > 0")
        await page.evaluate("window.go()")
        await page.until("!document.getElementById('create-made').hidden")
        await rows(page, 1)
        assert await page.evaluate("window.puts") == 1
        await page.click("#create-close")
        await page.click("#tokens-create")
        await page.type("b")
        await page.press("Enter")
        await rows(page, 2)


async def test_a_token_that_is_created_as_its_dialog_closes_is_not_kept_in_the_page(
    opened: Open, server: Server
) -> None:
    async with opened(server, HELD_PUT) as page:
        await page.until(LIVE)
        await page.click("#tokens-create")
        await page.type("a")
        await page.press("Enter")
        await page.until("window.puts === 1")
        await page.press("Escape")
        await page.until("!document.getElementById('create').open")
        await page.click("#tokens-create")
        await page.type("b")
        await page.evaluate("window.go()")
        await rows(page, 1)
        assert await page.evaluate("document.getElementById('create-text').value") == ""
        assert await page.evaluate("document.getElementById('create-made').hidden")
        await page.press("Enter")
        await page.until("!document.getElementById('create-made').hidden")
        await rows(page, 2)


@pytest.mark.parametrize("days", [-10, 10])
async def test_times_are_those_of_the_server_though_the_clock_of_the_page_is_wrong(
    opened: Open, server: Server, days: int
) -> None:
    wrong = f"const right = Date.now; Date.now = () => right() + {days} * 86_400_000;"
    async with opened(server, wrong) as page:
        await page.until(LIVE)
        await page.click("#tokens-create")
        await page.type("a")
        await page.evaluate("document.getElementById('create-expires').value = '1'")
        await page.press("Enter")
        await page.until("!document.getElementById('create-made').hidden")
        text = await page.evaluate("document.getElementById('create-text').value")
        record = server.hub.registry.lookup(text)
        assert record is not None
        assert record.expires is not None
        assert abs(record.expires - time.time() - 86_400) < 60
        await rows(page, 1)
        assert await page.text(f"{ROWS} .badge") != "expired"
        await page.click("#create-close")
        stream = await dial(server, b"subscribe a\n")
        await page.until("document.querySelector('#sessions tbody tr:not([hidden])') !== null")
        since = "#sessions tbody tr:not([hidden]) .number.spare"
        age = await page.evaluate(f"document.querySelector('{since}').textContent")
        assert re.fullmatch(r"\d+ s", age)
        await stream.aclose()


async def test_where_there_is_no_clipboard_it_is_copied_all_the_same(live: Page) -> None:
    await live.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "document.execCommand = (what) => { window.copied = [what, getSelection().toString()];"
        " return false; }"
    )
    await live.click("#tokens-create")
    await live.type("a")
    await live.press("Enter")
    await live.until("!document.getElementById('create-made').hidden")
    await live.click("#create-copy")
    await said(live, "create-copied", "Not copied: select it, and copy it yourself.")
    assert (await live.evaluate("window.copied"))[0] == "copy"


async def test_what_cannot_be_created_is_told(live: Page) -> None:
    await live.click("#tokens-create")
    await live.type("with space")
    await fill(live, "#create-rate", "many")
    await live.press("Enter")
    await live.until("document.getElementById('create-said').textContent !== ''")
    assert "Refused" in await live.text("#create-said")
    assert await live.evaluate("document.getElementById('create-tags').value") == "with space"


async def test_a_server_that_does_not_respond_has_refused_nothing(
    opened: Open, server: Server
) -> None:
    await make(server, "t1", "a", name="job")
    async with opened(server) as page:
        await rows(page, 1)
        await page.evaluate("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
        await page.click("#tokens-create")
        await page.type("a")
        await page.press("Enter")
        await said(page, "create-said", "The server does not respond.")
        await page.click("#create-close")
        await page.click(f"{ROWS} .link")
        await page.click("#token-revoke")
        await page.click("#confirm-do")
        await said(page, "token-said", "The server does not respond.")


async def test_tags_are_granted_and_taken_away(opened: Open, server: Server) -> None:
    record = await make(server, "t1", "a,b", name="job")

    def tags() -> set[str]:
        found = server.hub.registry.find(record.id)
        assert found is not None
        return set(found.tags)

    async with opened(server) as page:
        await rows(page, 1)
        await page.click(f"{ROWS} .link")
        assert await page.texts("#token-granted li") == ["a", "b"]
        await fill(page, "#token-tags", "c, d:*")
        await page.press("Enter")
        await said(page, "token-said", "Granted.")
        assert tags() == {"a", "b", "c", "d:*"}
        assert await page.texts("#token-granted li") == ["a", "b", "c", "d:*"]
        await page.click("#token-ungrant")
        await said(page, "token-said", "Which tags? Type them first.")
        await fill(page, "#token-tags", "a,c")
        await page.click("#token-ungrant")
        assert "a, c" in await page.text("#confirm-text")
        await page.click("#confirm-do")
        await said(page, "token-said", "Taken away.")
        assert tags() == {"b", "d:*"}
        await page.click("#token-close")
        await page.until(f"document.querySelectorAll('{ROWS} .tag').length === 2")


async def test_a_token_is_revoked(opened: Open, server: Server) -> None:
    record = await make(server, "t1", name="job")
    async with opened(server) as page:
        await rows(page, 1)
        await page.click(f"{ROWS} .link")
        await page.click("#token-revoke")
        await page.press("Escape")
        assert server.hub.registry.find(record.id) is not None
        await page.click("#token-revoke")
        assert await page.text("#confirm-title") == "Revoke job?"
        await page.click("#confirm-do")
        await said(page, "token-said", "Revoked.")
        assert server.hub.registry.find(record.id) is None
        assert await page.evaluate("document.getElementById('token-grant').disabled")
        await page.press("Escape")
        await said(page, "tokens-said", "No tokens yet. A browser needs one to subscribe.")


async def test_one_that_is_revoked_meanwhile_is_said_to_be(opened: Open, server: Server) -> None:
    record = await make(server, "t1")
    async with opened(server) as page:
        await rows(page, 1)
        await page.click(f"{ROWS} .link")
        await server.hub.registry.execute([Remove(record.id)])
        await fill(page, "#token-tags", "b")
        await page.press("Enter")
        await said(page, "token-said", "This token has been revoked.")


async def test_what_others_change_meanwhile_is_shown(opened: Open, server: Server) -> None:
    record = await make(server, "t1", "a")
    async with opened(server) as page:
        await rows(page, 1)
        await page.click(f"{ROWS} .link")
        await server.hub.registry.execute([AddTags("t1", frozenset("b"))])
        await page.until("document.querySelectorAll('#token-granted li').length === 2")
        assert await page.texts("#token-granted li") == ["a", "b"]
        await server.hub.registry.execute([Remove(record.id)])
        await said(page, "token-said", "This token has been revoked.")
        assert await page.evaluate("document.getElementById('token-grant').disabled")


async def test_an_answer_that_comes_late_is_not_shown_of_another(
    opened: Open, server: Server
) -> None:
    for number in range(2):
        await make(server, f"t{number}", name=f"job {number}")
    async with opened(server, HELD) as page:
        await rows(page, 2)
        kept = (await page.evaluate(NAMES))[1]
        await page.click(f"{ROWS} .link")
        await page.click("#token-revoke")
        await page.click("#confirm-do")
        await page.until("window.arrived")
        await page.click("#token-close")
        await page.click(f"{ROWS}:nth-child(2) .link")
        await page.evaluate("window.answer()")
        await rows(page, 1)
        assert await page.text("#token-title") == kept
        assert await page.text("#token-said") == ""
        assert not await page.evaluate("document.getElementById('token-revoke').disabled")


async def test_the_secret_is_asked_for_before_anything_changes(
    opened: Open, guarded: Server
) -> None:
    await make(guarded, "t1", name="job")
    async with opened(guarded) as page:
        await sign_in(page, "geheim-ä")
        await rows(page, 1)
        await page.click("#tokens-create")
        await page.type("a")
        await page.press("Enter")
        await page.until("document.getElementById('confirm').open")
        assert not await page.evaluate("document.getElementById('confirm-asked').hidden")
        await page.type("wrong")
        await page.press("Enter")
        await said(page, "confirm-said", "That is not the secret.")
        assert len(guarded.hub.registry.records()) == 1
        await fill(page, "#confirm-secret", "geheim-ä")
        await page.press("Enter")
        await page.until("!document.getElementById('create-made').hidden")
        assert len(guarded.hub.registry.records()) == 2
        await page.click("#create-close")
        # To grant loses nothing, so with the secret given a moment ago it is not asked about.
        await fill(page, "#tokens-search", "job")
        await rows(page, 1)
        await page.click(f"{ROWS} .link")
        await fill(page, "#token-tags", "b")
        await page.press("Enter")
        await said(page, "token-said", "Granted.")
        await page.click("#token-close")
        # Who signs in again is asked again.
        await page.click("#forget")
        await sign_in(page, "geheim-ä")
        await page.click(f"{ROWS} .link")
        await page.click("#token-revoke")
        assert not await page.evaluate("document.getElementById('confirm-asked').hidden")


async def test_what_others_choose_is_text(opened: Open, server: Server) -> None:
    tag = MARKUP.replace(" ", "/").replace(",", "")
    await make(server, "t1", tag, {"user": MARKUP, "plan": MARKUP}, name=MARKUP)
    async with opened(server) as page:
        await rows(page, 1)
        assert await page.evaluate(NAMES) == [MARKUP]
        assert await page.text(f"{ROWS} .tag") == tag
        await page.click(f"{ROWS} .link")
        assert await page.text("#token-title") == MARKUP
        assert (await page.text("#token-pairs")).count(MARKUP) == 2
        await page.click("#token-revoke")
        assert MARKUP in await page.text("#confirm-title")
        found = (
            "document.querySelectorAll('main img, main script, dialog img, dialog script').length"
        )
        assert await page.evaluate(found) == 0
        assert await page.evaluate("typeof hacked") == "undefined"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_dialogs_are_legible_and_named(opened: Open, server: Server, dark: bool) -> None:
    await make(server, "t1", "a,b", {"rate": "5"}, name="job", expires=time.time() + 60)
    async with opened(server) as page:
        await page.look(1200, 900, dark=dark)
        await rows(page, 1)
        await page.click("#tokens-create")
        assert await page.evaluate(FAULTS) == []
        assert await page.evaluate(FAINT) == []
        assert await violations(page) == []
        await page.press("Escape")
        await page.click(f"{ROWS} .link")
        await page.click("#token-revoke")
        assert await page.evaluate(FAULTS) == []
        assert await page.evaluate(FAINT) == []
        assert await violations(page) == []


async def test_all_of_it_fits_a_phone(opened: Open, tmp_path: Path, server: Server) -> None:
    tag = "a-very-long-tag:" * 8
    await make(
        server, "t1", f"{tag},a,b,c", {"user": "u" * 90, "rate": "5"}, name="job " + "n" * 90
    )
    async with opened(server, width=360) as page:
        await page.until(LIVE)
        await rows(page, 1)
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await page.click("#tokens-create")
        assert await page.evaluate(wide("#create *, #tokens *")) == []
        await page.press("Escape")
        await page.click(f"{ROWS} .link")
        await page.click("#token-revoke")
        assert await page.evaluate(wide("#token *, #confirm *")) == []
