"""Bar charts: a table whose rows show each figure relative to the largest."""

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from mist.pipeline.html.markup import Html, h, join, name
from mist.pipeline.html.scales import count, share

__all__ = ["Bars"]

MOST: Final = 30  # bars; more of them nobody compares


@attrs.frozen
class Bars:
    """How much of each, the most first unless the names have an order of their own.

    Attributes:
        heading: what the names are.
        measure: what the figures are, with their unit.
        rows: (name, figure), already in order.
        whole: the sum that shares are of; None shows none.
        names: whether the names come out of data.
        rest: how many more there are than rows.
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
        shown = self.rows[:MOST]
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
    # An SVG rather than a coloured box: browsers leave out backgrounds when they print.
    bar = h("rect", width=f"{max(portion, 0.4):.1f}%", height="100%", rx="2", class_="column hue0")
    return h("svg", bar if portion else None, width="100%", height="14")
