"""Pages of reports: nothing in data is markup, figures are right, and a browser shows them."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.pipeline.html import (
    Bars,
    Column,
    Heat,
    Page,
    Section,
    Series,
    Table,
    Tile,
    TimePlot,
    render,
)
from mist.pipeline.html.markup import h, visible
from mist.pipeline.html.plots import WIDE
from mist.pipeline.html.scales import (
    HOUR,
    Scale,
    bucket,
    count,
    number_ticks,
    power_ticks,
    share,
    short,
    size,
    size_ticks,
    span,
    time_ticks,
)
from tests.axe import violations
from tests.chromium import chromium, open_page

BEGIN = 1_795_219_200  # 2026-11-21 00:00 UTC
EVIL = "</title></style><script>document.title = 'owned'</script><img src=x onerror=alert(1)>\"'`&"


def full_page(name: str = EVIL) -> str:
    """A page with everything that there is, and this name in every place that has one."""
    other = f"{name} too"  # no name is another one
    hours = [(BEGIN + n * HOUR, float(n % 24)) for n in range(72)]
    series = [Series(name, hours), Series(other, hours[:9])]
    return render(
        Page(
            title=name,
            says=name,
            tiles=[Tile(name, name, name), Tile("alarm", "1", alarm=True)],
            sections=[
                Section(name, [TimePlot(name, series, unit=name)], name),
                Section("one", [TimePlot("one", series[:1])]),
                Section("bars", [Bars(name, name, name, [(name, 3), (other, 0)], whole=3)]),
                Section(
                    "heat", [Heat(f"{name} heat", [name, other], {(name, other): 1}, note=name)]
                ),
                Section(
                    "table",
                    [Table(f"{name} table", [Column(name, None), Column("n")], [(name, 1)])],
                ),
            ],
            selected=[(name, name)],
            made=BEGIN,
            omits=[name],
            by=name,
        )
    )


class Reader(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_text_is_escaped_wherever_it_goes() -> None:
    evil, tame = Reader(full_page()), Reader(full_page("tame"))
    assert evil.tags == tame.tags
    assert [key for key, _ in evil.attributes] == [key for key, _ in tame.attributes]
    assert evil.text.count(EVIL) > 10


@given(st.text(min_size=1))
def test_any_name_leaves_the_page_as_it_is(name: str) -> None:
    page = full_page(name)
    page.encode()  # halves of surrogate pairs too
    assert Reader(page).tags == Reader(full_page("tame")).tags


def test_only_elements_are_markup() -> None:
    assert (
        h("p", "<b>", h("b", "&"), None, title='"') == '<p title="&quot;">&lt;b&gt;<b>&amp;</b></p>'
    )


def test_what_hides_or_turns_text_around_is_spelled_out() -> None:
    assert visible("a\u202eb\0\n\u200b") == "a\\u202eb\\u0000\\u000a\\u200b"
    assert visible("שלום déjà 日本") == "שלום déjà 日本"


def test_a_page_needs_nothing_else_and_runs_nothing() -> None:
    reader = Reader(full_page("tame"))
    assert not {key for key, _ in reader.attributes} & {"src", "href", "srcset", "onclick"}
    assert not reader.tags.keys() & {"script", "link", "img", "iframe", "object", "form"}
    assert "url(" not in full_page("tame")
    assert "@import" not in full_page("tame")


def test_ids_are_unique_and_all_that_is_referred_to_is_there() -> None:
    attributes = Reader(full_page()).attributes
    ids = [value for key, value in attributes if key == "id"]
    assert len(ids) == len(set(ids))
    referred = [value for key, value in attributes if key == "aria-labelledby"]
    assert {each for value in referred for each in (value or "").split()} <= set(ids)


def test_each_plot_says_in_words_what_it_shows() -> None:
    plot = TimePlot("Messages", [Series("all", [(BEGIN, 2), (BEGIN + 2 * HOUR, 40)])])
    page = plot.render("p")
    assert "From 2026-11-21 00:00:00 UTC to 2026-11-21 03:00:00 UTC, messages in each hour." in page
    assert "all: 42 in all, at most 40 at 2026-11-21 02:00:00 UTC." in page


@given(
    st.lists(
        st.tuples(st.integers(0, 400 * 24), st.integers(0, 10**9)),
        min_size=1,
        unique_by=lambda p: p[0],
    )
)
def test_a_plot_adds_up_and_leaves_nothing_out(hours: list[tuple[int, int]]) -> None:
    points = [(BEGIN + hour * HOUR, float(value)) for hour, value in hours]
    plot = TimePlot("Messages", [Series("all", points)]).render("p")
    assert f"all: {sum(value for _, value in hours):,} in all" in plot


@given(st.floats(1e-6, 1e15))
def test_ticks_are_few_and_reach_the_largest(largest: float) -> None:
    ticks = number_ticks(largest)
    assert ticks[0] == 0
    assert ticks[-1] >= largest * (1 - 1e-9)
    assert 2 <= len(ticks) <= 7
    steps = {round(b - a, 9) for a, b in pairwise(ticks)}
    assert math.isclose(max(steps), min(steps), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("largest", "shown"),
    [
        (150_000, ["0 B", "50 KiB", "100 KiB", "150 KiB"]),
        (1000, ["0 B", "250 B", "500 B", "750 B", "1000 B"]),
        (3 << 30, ["0 B", "1 GiB", "2 GiB", "3 GiB"]),
    ],
)
def test_ticks_of_bytes_are_round_in_their_unit(largest: int, shown: list[str]) -> None:
    texts = [size(tick).replace("\N{NO-BREAK SPACE}", " ") for tick in size_ticks(largest, 4)]
    assert texts == shown


@given(st.integers(0, 2**31), st.integers(60, 10 * 365 * 86400), st.integers(3, 12))
def test_ticks_of_time_are_within_and_few(first: int, length: int, most: int) -> None:
    ticks = [at for at, _ in time_ticks(first, first + length, most)]
    assert len(ticks) <= most
    assert all(first <= at <= first + length for at in ticks)
    assert ticks == sorted(set(ticks))


@given(st.lists(st.integers(0, 365 * 24), min_size=1), st.integers(1, 400))
def test_steps_are_no_more_than_fit(hours: list[int], most: int) -> None:
    step = bucket([hour * HOUR for hour in hours], HOUR, most)
    if step < 364 * 86400:
        assert (max(hours) - min(hours)) * HOUR / step < most
    assert step >= HOUR


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(1234567), "1,234,567"),
        (count(0.12345), "0.123"),
        (count(1234.5), "1,234"),
        (short(0), "0"),
        (short(950), "950"),
        (short(999.9), "1 k"),
        (short(1234), "1.23 k"),
        (short(12_300_000), "12.3 M"),
        (size(0), "0 B"),
        (size(1536), "1.5 KiB"),
        (size(1 << 30), "1 GiB"),
        (share(1, 0), "\N{EN DASH}"),
        (share(1, 3), "33.3 %"),
        (share(1, 10**9), "< 0.01 %"),
        (share(10**9 - 1, 10**9), "> 99.99 %"),
        (span(HOUR), "1 hour"),
        (span(6 * HOUR), "6 hours"),
        (span(0), "less than a second"),
    ],
)
def test_numbers_as_people_write_them(text: str, expected: str) -> None:
    assert text.replace("\N{NO-BREAK SPACE}", " ") == expected


def test_long_tables_are_cut_and_say_so() -> None:
    rows = [(str(n), n) for n in range(500)]
    table = Table("Rows", [Column("name", None), Column("n")], rows, whole=9000).render("t")
    assert "Rows (the first 200 of 9,000)" in table
    assert table.count("<tr>") == 201


def test_a_table_names_its_rows_and_columns() -> None:
    table = Table("Rows", [Column("name", None), Column("n")], [("a", 1)]).render("t")
    assert '<th scope="col">name</th>' in table
    assert re.search(r'<th scope="row"><bdi class="name">a</bdi></th>', table)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as url:
        yield url


async def test_a_browser_shows_it_on_any_screen(browser: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(full_page(EVIL + "long" * 60), "utf-8")
    async with open_page(browser) as page:
        for width, shown, hidden in ((1100, "broad", "slim"), (360, "slim", "broad")):
            await page.look(width, 800)
            await page.open(path.as_uri())
            assert "owned" not in (await page.evaluate("document.title"))[:20]
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            height = "document.querySelector('svg.%s').getBoundingClientRect().height"
            assert await page.evaluate(height % shown) > 100
            assert await page.evaluate(height % hidden) == 0
        assert await page.evaluate("performance.getEntriesByType('resource').length") == 0
        assert page.errors == []


async def test_all_columns_of_a_heat_map_are_seen(browser: str, tmp_path: Path) -> None:
    names = [f"service:recommendations-{n:02}" for n in range(20)]
    values = {(one, other): 0.5 for one in names for other in names}
    page = Page("T", "Says.", [], [Section("S", [Heat("Heat", names, values)])], [], BEGIN, [], "x")
    path = tmp_path / "page.html"
    path.write_text(render(page), "utf-8")
    async with open_page(browser) as tab:
        await tab.look(1100, 800)
        await tab.open(path.as_uri())
        hidden = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('.wide'))"
        assert await tab.evaluate(hidden) == 0
        cut = "Math.max(...[...document.querySelectorAll('.heat .up span')].map(e => Math.max("
        cut += "e.scrollHeight - e.clientHeight, e.scrollWidth - e.clientWidth)))"
        assert await tab.evaluate(cut) == 0


async def test_letters_can_be_read_on_what_they_stand_on(browser: str, tmp_path: Path) -> None:
    # WCAG AA: 4.5 : 1. The deepest cell of the heat map is the worst of them.
    path = tmp_path / "page.html"
    path.write_text(full_page("tame"), "utf-8")
    async with open_page(browser) as page:
        for dark in (False, True):
            await page.look(1100, 800, dark=dark)
            await page.open(path.as_uri())
            ratio = await page.evaluate(CONTRAST)
            assert ratio >= 4.5, f"dark: {dark}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing(browser: str, tmp_path: Path, dark: bool) -> None:
    path = tmp_path / "page.html"
    path.write_text(full_page(), "utf-8")
    async with open_page(browser) as page:
        for width in (1100, 360):
            await page.look(width, 800, dark=dark)
            await page.open(path.as_uri())
            assert await violations(page) == []


CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map((it) => it / 255).map((it) => it <= .03928 ? it / 12.92 : ((it + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const cell = getComputedStyle(document.querySelector(".heat td[style]"));
  const pair = [light(cell.color), light(cell.backgroundColor)];
  return (Math.max(...pair) + .05) / (Math.min(...pair) + .05);
})()
"""


# What a reader takes from a picture


def drawn(plot: TimePlot) -> str:
    return str(plot.render("p1"))


HOURS = [(HOUR * n, value) for n, value in enumerate((3, 5))]


def test_a_line_is_level_within_an_hour_and_has_no_slope_between_two() -> None:
    text = drawn(TimePlot("Plot", [Series("a", HOURS), Series("b", HOURS[:1])]))
    lines = re.findall(r'<path d="([^"]+)" class="line hue\d dash\d"', text)
    shapes = [line for line in lines if line != "M0 5H26"]  # without the samples of the key
    assert len(shapes) == 4  # two lines, on a wide and on a narrow screen
    for shape in shapes:
        assert re.fullmatch(r"M[\d.]+ [\d.]+(V[\d.]+)?H[\d.]+(V[\d.]+)?H[\d.]+", shape)


def test_a_series_that_would_flatten_another_makes_the_axis_logarithmic() -> None:
    large = [(at, 1000 * value) for at, value in HOURS]
    alike = drawn(TimePlot("Plot", [Series("a", HOURS), Series("b", HOURS)]))
    uneven = drawn(TimePlot("Plot", [Series("a", HOURS), Series("b", large)]))
    assert "logarithmic" not in alike
    assert "messages in each hour, on a logarithmic scale" in uneven
    scale = Scale(power_ticks(5000)[-1], logarithmic=True)
    assert scale.place(0) == 0
    assert 0.1 < scale.place(5) < scale.place(5000) < 1
    assert scale.place(10_000) == 1


def heights(text: str) -> list[list[float]]:
    """How high each line of a wide plot is drawn in each of its steps, above the ground."""
    wide = text.partition('class="broad"')[2].partition("</svg>")[0]
    lines = re.findall(r'<path d="([^"]+)" class="line', wide)
    floor = WIDE.floor
    return [[floor - float(y) for y in re.findall(r"V([\d.]+)", line)] for line in lines]


def test_a_line_beside_one_that_is_a_thousand_times_as_large_can_be_told_from_nothing() -> None:
    tall = WIDE.floor - WIDE.top
    large = [(HOUR * n, 5000) for n in range(6)]
    small = [(HOUR * n, 5) for n in (0, 5)]  # and nothing in the hours between
    (dominant,), few = heights(drawn(TimePlot("Plot", [Series("a", large), Series("b", small)])))
    assert 0.8 * tall < dominant <= tall
    assert few[0] == few[2] > 0.1 * tall
    assert few[1] == 0


def test_columns_fill_their_hour() -> None:
    text = drawn(TimePlot("Plot", [Series("a", HOURS)]))
    (first, second) = re.findall(r"M([\d.]+) \d+V[\d.]+h([\d.]+)V", text)[:2]
    gap = float(second[0]) - float(first[0]) - float(first[1])
    assert 0 < gap <= 3.1
    assert float(first[1]) > 0.45 * (WIDE.width - WIDE.left - WIDE.right)


@pytest.mark.parametrize(
    ("largest", "ticks"), [(0, [0, 10]), (7, [0, 10]), (10, [0, 10]), (400, [0, 10, 100, 1000])]
)
def test_ticks_of_a_logarithmic_axis_are_powers_of_ten(largest: float, ticks: list[float]) -> None:
    assert power_ticks(largest) == ticks
    assert len(power_ticks(1e15)) <= 7


def test_ticks_of_time_are_no_closer_than_the_steps_that_are_drawn() -> None:
    assert [text for _, text in time_ticks(0, 2 * HOUR, 9, HOUR)] == ["1 Jan", "01:00", "02:00"]


def test_one_deep_field_of_a_heat_map_leaves_the_others_a_colour() -> None:
    values = {("a", "b"): 0.9, ("b", "a"): 0.9, ("a", "c"): 0.001, ("c", "a"): 0.01}
    text = str(Heat("Heat", ["a", "b", "c"], values).render("h1"))
    depths = sorted({float(each) for each in re.findall(r"--heat:([\d.]+)", text)})
    assert depths[-1] == 1
    assert all(depth >= 0.05 for depth in depths)
    assert depths[1] > 5 * 0.01 / 0.9  # by the logarithm
