"""HTML reports: one self-contained file each, to be read in a browser, sent or printed.

    markup      elements; what makes it impossible to forget escaping
    scales      numbers and times for people; round ones for axes
    plots       over time; `bars`, `heat`, `tables`: what a page is made of
    page        tiles, sections and plots as a document, with `page.css` inside

A page has no script and loads nothing, and its own policy forbids both. Everything that a plot
shows stands in a table beside it.
"""

from mist.pipeline.html.bars import Bars
from mist.pipeline.html.heat import Heat
from mist.pipeline.html.page import Page, Section, Tile, render
from mist.pipeline.html.plots import Series, TimePlot
from mist.pipeline.html.tables import Column, Table

__all__ = [
    "Bars",
    "Column",
    "Heat",
    "Page",
    "Section",
    "Series",
    "Table",
    "Tile",
    "TimePlot",
    "render",
]
