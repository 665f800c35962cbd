"""How the dashboard is read: by keyboard, on a phone, by contrast, by names."""

import pytest

from mist.server import Server
from tests.axe import violations
from tests.chromium import Page
from tests.static.dashboard.looking import BUSY, FAINT, FAKE, FAULTS, Open, key


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


async def test_figures_of_losses_stand_below_each_other_on_a_phone(
    opened: Open, server: Server
) -> None:
    async with opened(server, FAKE, width=390) as page:
        await page.until("window.looks === 1")
        await page.evaluate(BUSY)
        for column in (2, 3):
            edges = await page.evaluate(
                f"[...document.querySelectorAll('#losses tr > :nth-child({column})')].map("
                "(each) => Math.round(each.getBoundingClientRect().right))"
            )
            assert len(edges) > 3
            assert len(set(edges)) == 1


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


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_everything_has_a_name_and_its_place(faked: Page, width: int, dark: bool) -> None:
    await faked.look(width, 900, dark=dark)
    assert await faked.evaluate(FAULTS) == []
    assert await violations(faked) == []
    await faked.evaluate(BUSY)
    assert await faked.evaluate(FAULTS) == []
    assert await violations(faked) == []


async def test_what_breaks_a_rule_is_found(faked: Page) -> None:
    await faked.evaluate("document.documentElement.removeAttribute('lang')")
    [found] = await violations(faked)
    assert found.startswith("html-has-lang: ")


async def test_the_secret_is_asked_for_accessibly(opened: Open, guarded: Server) -> None:
    async with opened(guarded) as page:
        await page.until("!document.getElementById('gate').hidden")
        assert await page.evaluate(FAULTS) == []
        assert await violations(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_text_is_legible(faked: Page, dark: bool) -> None:
    await faked.look(1200, 900, dark=dark)
    await faked.evaluate(BUSY)
    paper = await faked.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) is dark
    assert await faked.evaluate(FAINT) == []


async def test_what_is_chosen_is_seen_where_the_system_chooses_the_colours(faked: Page) -> None:
    forced = {"name": "forced-colors", "value": "active"}
    await faked.call("Emulation.setEmulatedMedia", features=[forced])
    found = await faked.evaluate(
        "[...document.querySelectorAll('.choice label')].map((each) =>"
        " [each.matches(':has(:checked)'), getComputedStyle(each).color])"
    )
    chosen = {colour for is_chosen, colour in found if is_chosen}
    others = {colour for is_chosen, colour in found if not is_chosen}
    assert chosen
    assert others
    assert not chosen & others


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
