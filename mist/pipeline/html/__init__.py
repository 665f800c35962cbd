"""HTML reports: one self-contained file each, for a browser, a mail or a printer.

    markup      elements; escapes all data
    scales      formatted numbers and times; round values for axes
    plots       time series
    tables      tables, bar charts and heat maps
    page        tiles, sections and plots as a document, with `page.css` inside

A page has no script and loads nothing; its Content-Security-Policy forbids both. The figures of
each plot are in a table beside it.
"""

from mist.pipeline.html.page import Page, Section, Tile, render
from mist.pipeline.html.plots import Series, TimePlot
from mist.pipeline.html.tables import Bars, Column, Heat, Table

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
