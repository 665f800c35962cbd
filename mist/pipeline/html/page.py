"""The layout of a report page: findings, source, and what is not shown."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Protocol

import attrs

from mist.pipeline.html.markup import Html, h, join, visible
from mist.pipeline.html.scales import moment

__all__ = ["Page", "Part", "Section", "Tile", "render"]

# Nothing is executed and nothing loaded, even if data were taken for markup.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Part(Protocol):
    """A part of a page: a plot, bars, a table."""

    def render(self, identity: str) -> Html:
        """As HTML. `identity`: prefix of its element ids, unique on the page."""


@attrs.frozen
class Tile:
    """A key figure.

    Attributes:
        more: a few words below it.
        alarm: whether it calls for action.
    """

    label: str
    value: str
    more: str = ""
    alarm: bool = False


@attrs.frozen
class Section:
    """Parts under a heading.

    Attributes:
        says: a sentence or two on how to read them.
    """

    heading: str
    parts: Sequence[Part]
    says: str = ""


@attrs.frozen
class Page:
    """A report.

    Attributes:
        title: its name.
        says: the question it answers, in a sentence.
        tiles: the key figures.
        selected: the selection of messages, as (label, text).
        made: time of the report, Unix seconds.
        omits: its limitations, a sentence each.
    """

    title: str
    says: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    selected: Sequence[tuple[str, str]]
    made: float
    omits: Sequence[str] = ()
    by: str = "mist pipeline"


def render(page: Page) -> str:
    """The page as one self-contained HTML document."""
    style = Html(files("mist.pipeline.html").joinpath("page.css").read_text("utf-8"))
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=POLICY),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="referrer", content="no-referrer"),
        h("meta", name="generator", content=page.by),
        h("title", f"{page.title} · mist"),
        h("style", style),
    )
    main = h("main", _tiles(page.tiles), *(_section(n, it) for n, it in enumerate(page.sections)))
    body = h("body", _top(page), main, _foot(page))
    return f"<!doctype html>\n{h('html', head, body, lang='en')}\n"


def _top(page: Page) -> Html:
    selected = (h("div", h("dt", label), h("dd", text)) for label, text in page.selected)
    return h(
        "header",
        h("p", "mist", class_="brand"),
        h("h1", page.title),
        h("p", page.says, class_="says"),
        h("dl", *selected, h("div", h("dt", "made"), h("dd", moment(page.made))), class_="facts"),
    )


def _tiles(tiles: Sequence[Tile]) -> Html | None:
    if not tiles:
        return None
    return h(
        "dl",
        *(
            h(
                "div",
                h("dt", tile.label),
                h("dd", h("strong", tile.value), h("span", tile.more) if tile.more else None),
                class_="card tile alarm" if tile.alarm else "card tile",
            )
            for tile in tiles
        ),
        class_="tiles",
    )


def _section(number: int, section: Section) -> Html:
    identity = f"s{number}"
    parts = (part.render(f"{identity}-{n}") for n, part in enumerate(section.parts))
    return h(
        "section",
        h("h2", section.heading, id=identity),
        h("p", section.says, class_="soft") if section.says else None,
        join(*parts),
        class_="card",
        aria_labelledby=identity,
    )


def _foot(page: Page) -> Html:
    omits = (
        (h("h2", "What this page doesn't show"), h("ul", *(h("li", it) for it in page.omits)))
        if page.omits
        else ()
    )
    return h("footer", *omits, h("p", f"Made by {visible(page.by)}.", class_="soft"))
