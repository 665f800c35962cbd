"""Tables of figures, also for screen readers."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from mist.pipeline.html.markup import Html, h, name
from mist.pipeline.html.scales import NOTHING, count

__all__ = ["Column", "Table"]

MOST: Final = 200  # rows; a page is for people, and Parquet for the rest


@attrs.frozen
class Column:
    """A column.

    Attributes:
        heading: says the unit, where there is one.
        show: makes text of a value; None where it is a name out of data. `str` is for words
            and days, others make numbers.
    """

    heading: str
    show: Callable[[Any], str] | None = count

    @property
    def alignment(self) -> str | None:
        """The class of its cells."""
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
        whole: how many rows there are, where `rows` are only the first of them.
        folded: whether it is closed at first; printed, it is open.
        empty: what to say where there are no rows.
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
        shown = self.rows[:MOST]
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
            tabindex="0",  # so that it can be scrolled without a mouse
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
