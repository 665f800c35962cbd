"""HTML pages of job results: converts rows of Arrow and Spark to what the pages take."""

from typing import TYPE_CHECKING, Any

import attrs
import click

from mist.cli.pipeline.options import Source
from mist.cli.pipeline.runner import Run

if TYPE_CHECKING:
    from mist.pipeline.html.reports.about import About
    from mist.pipeline.jobs.result import LargeResult, Result

__all__ = ["about", "about_accounts", "cooccurrence", "coverage", "match", "tags", "volume"]


def about(run: Run, source: Source) -> "About":
    """The description of the messages on a page."""
    from mist.pipeline.html.reports.about import About

    return About(source.origin.described(), run.began, _by())


def about_accounts(
    run: Run, archive: object, start: str | None, end: str | None, accounted: str
) -> "About":
    """The description of the usage accounting on a page.

    Args:
        accounted: the time that it is complete up to, as text.
    """
    from mist.pipeline.html.reports.about import About

    selected = [
        ("archive", str(archive)),
        ("from", start or "the beginning"),
        ("until", end or "the end"),
        ("accounted up to", accounted),
    ]
    return About(selected, run.began, _by())


def _by() -> str:
    from importlib.metadata import version

    return f"{click.get_current_context().command_path}, mist {version('mist-pubsub')}"


def volume(about: "About", result: "LargeResult") -> str:
    """See `mist.pipeline.jobs.volume`."""
    from pyspark.sql import functions as sf

    from mist.pipeline.html import render
    from mist.pipeline.html.reports.messages import LINES, volume_page
    from mist.pipeline.html.tables import MAX_BARS

    frame = result.frame
    used = frame.groupBy("tag").agg(sf.sum("messages").alias("messages"))
    best = used.orderBy(sf.desc("messages"), "tag").limit(MAX_BARS).collect()
    names = [row["tag"] for row in best]
    lines: dict[str, list[tuple[float, int]]] = {name: [] for name in names[:LINES]}
    for row in frame.filter(sf.col("tag").isin(list(lines))).collect():
        lines[row["tag"]].append((row["hour"].timestamp(), row["messages"]))
    counts = [(row["tag"], row["messages"]) for row in best]
    return render(volume_page(about, result.summary, counts, list(lines.items())))


def tags(about: "About", result: "Result") -> str:
    """See `mist.pipeline.jobs.tags`."""
    from mist.pipeline.html import render
    from mist.pipeline.html.reports.messages import tags_page

    return render(tags_page(about, result.summary, _pairs(result.table, "tag")))


def cooccurrence(about: "About", result: "Result") -> str:
    """See `mist.pipeline.jobs.cooccurrence`."""
    from mist.pipeline.html import render
    from mist.pipeline.html.reports.messages import cooccurrence_page

    return render(cooccurrence_page(about, result.summary, result.table.to_pylist()))


def coverage(about: "About", result: "Result") -> str:
    """See `mist.pipeline.jobs.coverage`."""
    from mist.pipeline.html import render
    from mist.pipeline.html.reports.matching import coverage_page

    return render(coverage_page(about, result.summary, result.table.to_pylist()))


def match(about: "About", result: "Result") -> str:
    """See `mist.pipeline.jobs.match`, of counts."""
    from mist.pipeline.html import render
    from mist.pipeline.html.reports.matching import match_page

    return render(match_page(about, result.summary, _pairs(result.table, "subscription")))


def billing(about: "About", result: Any) -> str:
    """See `mist.pipeline.jobs.billing`."""
    from mist.pipeline.html import render
    from mist.pipeline.html.reports.accounts import billing_page

    return render(billing_page(about, result.summary, result.table.to_pylist()))


def drops(about: "About", result: Any) -> str:
    """See `mist.pipeline.jobs.drops`."""
    from mist.pipeline.html import render
    from mist.pipeline.html.reports.accounts import drops_page

    rows, subscriptions = result.table.to_pylist(), result.subscriptions.to_pylist()
    return render(drops_page(about, result.summary, rows, subscriptions))


def tokens(about: "About", result: Any) -> str:
    """See `mist.pipeline.jobs.tokens`."""
    from mist.pipeline.html import render
    from mist.pipeline.html.reports.accounts import tokens_page

    unused = [attrs.astuple(each, recurse=False) for each in result.unused]
    edges = [attrs.astuple(each, recurse=False) for each in result.edges]
    return render(tokens_page(about, result.summary, unused, edges))


def _pairs(table: Any, name: str) -> list[tuple[str, int]]:
    return list(
        zip(table.column(name).to_pylist(), table.column("messages").to_pylist(), strict=True)
    )
