"""The page of results, and the estimate of how long a run takes."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from mist.bench.cell import KINDS, Cell
from mist.bench.duration import Estimate, busy_share, spoken
from mist.bench.page import Circumstances, bench_page
from mist.bench.report import Row
from mist.bench.site import Site
from tests.axe import violations
from tests.chromium import chromium, open_page

ABOUT = Circumstances(
    1_700_000_000.0, 12.4, [("processors", "2")], busy="", complete=True, by="mist bench"
)
FANOUT = {
    "transport": "tcp",
    "publishers": 1,
    "subscribers": 10,
    "tag_lists": 1,
    "messages": 1000,
    "window_messages": 500,
    "deliveries": 10_000,
    "lost": 0,
    "repeated": 0,
    "reordered": 0,
    "deliveries_per_second": 123_456.0,
    "messages_per_second": 12_345.6,
    "server_cpu_seconds_per_million_deliveries": None,
}


class Text(HTMLParser):
    """The text of a page, and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.loads.append(tag)
        self.loads += [name for name, _ in attributes if name in ("src", "href")]


def words(results: dict[str, list[Row]], about: Circumstances = ABOUT) -> str:
    text = Text(bench_page(results, about))
    assert text.loads == []
    return "\n".join(text.words)


def test_figures_are_there_as_bars_and_in_a_table() -> None:
    text = words({"fanout": [FANOUT, {**FANOUT, "transport": "ws", "window_messages": 0}]})
    assert "tcp, 1 to 10" in text
    assert "ws, 1 to 10, without a window" in text
    assert text.count("123,456") >= 3
    assert "took\n12 s" in text
    assert "busy" not in text


def test_what_makes_figures_unreliable_is_said() -> None:
    unreliable = Circumstances(
        0.0, 1.0, [], busy="80 % of its processors at work", complete=False, by="mist bench"
    )
    text = words({"fanout": [FANOUT]}, unreliable)
    assert "80 % of its processors at work" in text
    assert "What was still to be measured when it ended." in text


def test_a_run_without_results_is_a_page() -> None:
    assert "Benchmark" in words({"fanout": []})


async def test_axe_finds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    idle = {"transport": "tcp", "connections": 100, "bytes_per_connection": 10_000.0}
    path.write_text(bench_page({"fanout": [FANOUT], "idle": [idle]}, ABOUT), "utf-8")
    with chromium(tmp_path / "profile") as browser:
        async with open_page(browser) as page:
            await page.open(path.as_uri())
            await page.evaluate("document.querySelectorAll('details').forEach((it) => it.open = 1)")
            assert await violations(page) == []


# Time


def cell(kind: str, share: float = 1.0) -> Cell:
    def measure(_: Site) -> list[object]:
        raise NotImplementedError

    return Cell(kind, kind, None, measure, share=share)  # type: ignore[arg-type]


@pytest.mark.parametrize("quick", [False, True])
def test_every_kind_has_an_estimate(quick: bool) -> None:
    for kind in KINDS:
        assert Estimate([cell(kind)], quick).seconds > 0


def test_what_is_left_becomes_less_and_follows_the_machine() -> None:
    cells = [cell("latency") for _ in range(10)]
    usual, slow = Estimate(cells, quick=False), Estimate(cells, quick=False)
    before = usual.seconds
    for each in cells[:5]:
        usual.done(each, before / 10)
        slow.done(each, before / 10 * 3)
    assert usual.seconds == pytest.approx(before / 2)
    assert before / 2 * 1.5 < slow.seconds < before / 2 * 3
    for each in cells[5:]:
        usual.done(each, before / 10)
    assert usual.seconds == 0.0


def test_a_glance_takes_its_share() -> None:
    assert (
        Estimate([cell("idle", 0.5)], False).seconds == Estimate([cell("idle")], False).seconds / 2
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "about 1 s"), (7.4, "about 7 s"), (63.0, "about 65 s"), (200.0, "about 3 min")],
)
def test_a_time_is_no_more_exact_than_it_is_known(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


def test_what_else_a_machine_does_is_seen(tmp_path: Path) -> None:
    share = busy_share(0.02)
    assert share is None or 0.0 <= share <= 1.0
    assert busy_share(0.0, tmp_path / "none") is None
    (tmp_path / "stat").write_text("cpu  1 0 1 8 0 0 0 0 0 0\n")
    assert busy_share(0.0, tmp_path / "stat") is None  # no time has passed
