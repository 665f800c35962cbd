"""Tables of figures: plain, with bars, and as heat maps.

    Table   rows of values under headings
    Bars    a bar chart: one figure for each name, relative to the largest
    Heat    a heat map: a figure for each pair of names

All are HTML tables, so a screen reader can read every figure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from mist.pipeline.html.markup import Html, h, join, name
from mist.pipeline.html.scales import NOTHING, count, is_uneven, share, short

__all__ = ["MAX_BARS", "Bars", "Column", "Heat", "Table"]

MAX_ROWS: Final = 200  # of a table on a page; Parquet has all of them
_FAINTEST: Final = 0.06  # depth of colour of the smallest figure, where colours are logarithmic
MAX_BARS: Final = 30  # more can't be compared at a glance


@attrs.frozen
class Column:
    """A column.

    Attributes:
        heading: with the unit, if any.
        show: formats a value; None for names from data. `str` is for words and days, any other
            function for numbers.
    """

    heading: str
    show: Callable[[Any], str] | None = count

    @property
    def alignment(self) -> str | None:
        """The CSS class of its cells."""
        return None if self.show in (None, str) else "number"

    def cell(self, value: object) -> Html:
        """The value as an element; None is a dash."""
        if value is None:
            return h("td", NOTHING, class_=self.alignment)
        if self.show is None:
            return h("td", name(str(value)))
        return h("td", self.show(value), class_=self.alignment)


@attrs.frozen
class Table:
    """Rows of values under headings. The first column names the row.

    Attributes:
        title: what the rows are; the caption.
        whole: total number of rows, if `rows` are only the first of them.
        folded: whether it is collapsed on screen; in print it is open.
        empty: text for a table without rows.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    whole: int | None = None
    folded: bool = False
    empty: str = "None."

    def render(self, identity: str) -> Html:
        """As HTML. `identity`: unique on the page."""
        del identity
        whole = len(self.rows) if self.whole is None else self.whole
        shown = self.rows[:MAX_ROWS]
        caption = self.title
        if len(shown) < whole:
            caption += f" (the first {len(shown):,} of {whole:,})"
        if not shown:
            return h("div", h("h3", self.title), h("p", self.empty, class_="soft"), class_="part")
        body = h(
            "div",
            h(
                "table",
                h("caption", caption, class_="unseen" if self.folded else None),
                h("thead", h("tr", *(_heading(column) for column in self.columns))),
                h("tbody", *(self._row(row) for row in shown)),
            ),
            class_="wide",
            role="region",
            aria_label=caption,
            tabindex="0",  # for scrolling by keyboard
        )
        if self.folded:
            return h("details", h("summary", caption), body)
        return h("div", body, class_="part")

    def _row(self, row: Sequence[object]) -> Html:
        first, *others = (
            column.cell(value) for column, value in zip(self.columns, row, strict=True)
        )
        header = Html(first.replace("<td", '<th scope="row"', 1)[: -len("</td>")] + "</th>")
        return h("tr", header, *others)


def _heading(column: Column) -> Html:
    return h("th", column.heading, scope="col", class_=column.alignment)


@attrs.frozen
class Bars:
    """A bar chart, by descending figure unless the names have an order of their own.

    Attributes:
        heading: of the names.
        measure: of the figures, with their unit.
        rows: (name, figure), in order.
        whole: the total for shares; None shows no shares.
        names: whether the names come from data.
        rest: number of rows left out.
    """

    title: str
    heading: str
    measure: str
    rows: Sequence[tuple[str, float]]
    whole: float | None = None
    names: bool = True
    rest: int = 0
    show: Callable[[float], str] = count
    empty: str = "None."

    def render(self, identity: str) -> Html:
        """As HTML. `identity`: unique on the page."""
        del identity
        shown = self.rows[:MAX_BARS]
        rest = self.rest + len(self.rows) - len(shown)
        if not shown:
            return h("div", h("h3", self.title), h("p", self.empty, class_="soft"), class_="part")
        largest = max(value for _, value in shown) or 1
        headings = [
            h("th", self.heading, scope="col"),
            h("th", self.measure, scope="col", class_="number", colspan="2"),
        ]
        if self.whole is not None:
            headings.append(h("th", "share", scope="col", class_="number"))
        return h(
            "div",
            h(
                "table",
                h("caption", self.title),
                h("thead", h("tr", *headings)),
                h("tbody", *(self._row(text, value, largest) for text, value in shown)),
                class_="bars",
            ),
            h("p", f"And {rest:,} more.", class_="soft") if rest > 0 else None,
            class_="part",
        )

    def _row(self, text: str, value: float, largest: float) -> Html:
        portion = 100 * value / largest
        cells = [
            h("th", name(text) if self.names else text, scope="row"),
            h("td", _bar(portion), class_="bar", aria_hidden="true"),
            h("td", self.show(value), class_="number"),
        ]
        if self.whole is not None:
            cells.append(h("td", share(value, self.whole), class_="number soft"))
        return h("tr", join(*cells))


def _bar(portion: float) -> Html:
    # An SVG rather than a coloured box: browsers don't print backgrounds.
    bar = h("rect", width=f"{max(portion, 0.4):.1f}%", height="100%", rx="2", class_="column hue0")
    return h("svg", bar if portion else None, width="100%", height="14")


@attrs.frozen
class Heat:
    """A heat map: each cell is as dark as its figure is large.

    Where the largest figure would leave the others without colour, colours go by the logarithm.

    Attributes:
        names: of the rows and of the columns, in order.
        values: by (row, column); a missing one is 0. A symmetric table has both orders. The
            diagonal isn't shown.
        scale: value of the deepest colour; None is the largest value.
        show: formats a value, in about four characters.
        note: the meaning of a figure, in a sentence.
    """

    title: str
    names: Sequence[str]
    values: Mapping[tuple[str, str], float]
    scale: float | None = None
    show: Callable[[float], str] = short
    note: str = ""
    empty: str = "None."

    def render(self, identity: str) -> Html:
        """As HTML. `identity`: unique on the page."""
        del identity
        if len(self.names) < 2:
            return h("div", h("h3", self.title), h("p", self.empty, class_="soft"), class_="part")
        scale = self._scale()
        head = (h("th", h("span", name(tag)), scope="col", class_="up") for tag in self.names)
        rows = (self._row(tag, scale) for tag in self.names)
        table = h(
            "table",
            h("caption", self.title),
            h("thead", h("tr", h("td"), *head)),
            h("tbody", *rows),
            class_="heat",
        )
        return h(
            "div",
            h("div", table, class_="wide", role="region", aria_label=self.title, tabindex="0"),
            h("p", self.note, class_="soft") if self.note else None,
            class_="part",
        )

    def _scale(self) -> Callable[[float], float]:
        """From a value to the depth of its colour, 0 to 1."""
        known = [value for value in self.values.values() if value > 0]
        largest = self.scale or max(known, default=1)
        if not is_uneven([*known, largest]):
            return lambda value: min(value / largest, 1)
        least = min(known)
        length = math.log(largest / least)
        return lambda value: min(_FAINTEST + (1 - _FAINTEST) * math.log(value / least) / length, 1)

    def _row(self, row: str, scale: Callable[[float], float]) -> Html:
        cells = (self._cell(row, column, scale) for column in self.names)
        return h("tr", h("th", name(row), scope="row"), *cells)

    def _cell(self, row: str, column: str, scale: Callable[[float], float]) -> Html:
        if row == column:
            return h("td", class_="same")
        value = self.values.get((row, column), 0)
        if not value:
            return h("td", h("span", "0", class_="unseen"))
        return h("td", self.show(value), style=f"--heat:{scale(value):.3f}")
