"""The dashboard's nodes."""

import json
from pathlib import Path

from tests.chromium import Page
from tests.servers import running
from tests.static.dashboard.looking import MARKUP, NODES, SETTINGS, Open

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


async def test_of_more_nodes_than_are_shown_those_that_are_not_ready_are(faked: Page) -> None:
    await faked.evaluate(NODES)
    number = "String(each).padStart(3, '0')"
    status = "each % 100 === 99 ? {status: 'silent', age: 9} : {}"
    many = f"Array.from({{length: 300}}, (_, each) => node('n' + {number}, {status}))"
    await faked.evaluate(f"show(...{many})")
    said = "300 nodes, 3 not ready; 20 of them here, those first"
    assert await faked.text("#nodes-count") == said
    names = [each[0] for each in await rows(faked)]
    assert names[:4] == ["n099", "n199", "n299", "n000"]
    assert len(names) == 20
    await faked.evaluate(f"show(...{many}.filter((each) => each.status === 'ready'))")
    assert await faked.text("#nodes-count") == "297 nodes; 20 of them here"


async def test_an_engine_that_does_not_answer_is_told(faked: Page) -> None:
    await faked.evaluate(NODES)
    await faked.evaluate("show(node('n1'), node('n2'))")
    await faked.evaluate("window.nodes = null; advance(2)")
    assert "does not answer" in await faked.text("#nodes-empty")
    assert await rows(faked) == []
    await faked.evaluate("show(node('n1'))")
    assert len(await rows(faked)) == 1
    assert not await faked.evaluate("document.getElementById('nodes-empty').checkVisibility()")


async def test_where_the_log_is_the_engine_s_it_is_that_which_is_to_be_looked_at(
    faked: Page,
) -> None:
    await faked.evaluate(
        "window.more.history ="
        " {epoch: 'e', first: 1, newest: 2, messages: 2, bytes: 9, failing: true}; advance(1.25)"
    )
    assert await faked.text("#history-state") == "can't be written"
    assert "Check the disk. Nothing is published" in await faked.text("#history")
    await faked.evaluate("window.nodes = null; window.more.nodes = 1; advance(1.25)")
    assert "Check the engine. Nothing is published" in await faked.text("#history")


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
