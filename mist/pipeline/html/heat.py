"""Heat maps: a table with two dimensions, each cell as dark as its figure is large."""

from collections.abc import Callable, Mapping, Sequence

import attrs

from mist.pipeline.html.markup import Html, h, name
from mist.pipeline.html.scales import short

__all__ = ["Heat"]


@attrs.frozen
class Heat:
    """How much there is of each pair of names.

    Attributes:
        names: of rows and columns alike, in order.
        values: by (row, column); a missing one is 0. The same in both orders is up to the
            caller. The diagonal isn't shown.
        scale: the value of the deepest colour; None is the largest there is.
        show: makes text of a value, of some four characters.
        note: what a figure means, in a sentence.
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
        scale = self.scale or max(self.values.values(), default=0) or 1
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

    def _row(self, row: str, scale: float) -> Html:
        cells = (self._cell(row, column, scale) for column in self.names)
        return h("tr", h("th", name(row), scope="row"), *cells)

    def _cell(self, row: str, column: str, scale: float) -> Html:
        if row == column:
            return h("td", class_="same")
        value = self.values.get((row, column), 0)
        if not value:
            return h("td", h("span", "0", class_="unseen"))
        return h("td", self.show(value), style=f"--heat:{min(value / scale, 1):.3f}")
