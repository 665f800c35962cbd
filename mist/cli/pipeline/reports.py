"""Reports: match, report, audit. They only read."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mist.cli.paths import LocalPath
from mist.cli.pipeline import pages
from mist.cli.pipeline.options import (
    Source,
    Spark,
    archive_option,
    out_options,
    source_options,
    spark_options,
)
from mist.cli.pipeline.runner import Run, check_file, output_folder, run_job, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mist.pipeline.reading import Messages

__all__ = ["audit", "match", "report"]

Job = Callable[["SparkSession", "Messages", Path | None, Callable[[str], None]], Any]

SUBSCRIPTIONS = click.option(
    "--subscriptions",
    "file",
    metavar="FILE",
    required=True,
    type=LocalPath(),
    help="File with one subscription per line: a,b; also /foo, =/foo, .a.*",
)


def _attributes(context: click.Context, parameter: click.Parameter, text: str) -> str:
    from mist.attributes import Attributes
    from mist.errors import InvalidAudience

    try:
        return Attributes.parse(text).text
    except InvalidAudience as error:
        raise click.BadParameter(str(error)) from None


ATTRIBUTES = click.option(
    "--attributes",
    metavar="TEXT",
    default="",
    callback=_attributes,
    help="Attributes of the subscriber, user=1&groups=a;b: messages for others don't count",
)


def _run_report(
    settings: Spark,
    source: Source,
    out: Path | None,
    overwrite: bool,
    html: Path | None,
    job: Job,
    page: Callable[..., str] | None,
) -> None:
    """Run a job over messages, and write its result to the requested outputs."""

    def work(run: Run) -> None:
        # Wrong input is reported before Spark is started.
        source.origin.check_server()
        check_file("--html", html, out)
        with output_folder(out, overwrite=overwrite) as folder, run.spark() as spark:
            result = job(spark, source.messages(spark), folder, run.progress)
            if result.summary.get("messages") == 0:
                from mist.pipeline.errors import BadInput

                raise BadInput("no message is selected")
            if html is not None and page is not None:
                run.progress(f"writing {html}")
                write_file(html, page(pages.about(run, source), result))
            shown = getattr(result, "table", None)
        run.finish(result.summary, shown)

    run_job(settings, work)


@click.command()
@SUBSCRIPTIONS
@ATTRIBUTES
@click.option("--pairs", is_flag=True, help="All pairs of message and subscription; needs --out")
@source_options
@out_options
@spark_options
def match(
    settings: Spark,
    source: Source,
    file: Path,
    attributes: str,
    pairs: bool,
    out: Path | None,
    overwrite: bool,
    html: Path | None,
) -> None:
    """Match messages with subscriptions.

    Counts the messages that each subscription would have received, or lists all pairs. Matches as
    the server does: targeted messages (users=1&groups=a) count for a subscriber with --attributes,
    by default one without attributes. --out holds subscription string, messages int64; with --pairs
    id int64, subscription string.
    """
    if pairs and out is None:
        raise click.UsageError("--pairs needs --out; there may be very many")
    if pairs and html is not None:
        raise click.UsageError("--pairs and --html: a page shows counts; give one of them")

    def job(spark: Any, messages: Any, folder: Path | None, progress: Any) -> Any:
        from mist.attributes import Attributes
        from mist.pipeline.jobs import match as matching

        return matching.run(
            spark,
            messages,
            _subscriptions(file),
            pairs=pairs,
            out=folder,
            attributes=Attributes.parse(attributes),
            progress=progress,
        )

    _run_report(settings, source, out, overwrite, html, _early(job, file), pages.match)


def _early(job: Job, file: Path) -> Job:
    """The job; its file of subscriptions is checked before Spark is started."""
    from mist.cli.pipeline.runner import errors_as_exit_codes

    with errors_as_exit_codes(verbose=False):
        _subscriptions(file)
    return job


def _subscriptions(file: Path) -> Any:
    from mist.pipeline.kernels.subscriptions import read_file

    return read_file(file)


@click.group(
    epilog="""\b
Examples:
  mist pipeline report volume --html volume.html
  mist pipeline report coverage --subscriptions wanted.txt --from 2026-11-01"""
)
def report() -> None:
    """Reports as Parquet (--out) and as HTML pages (--html)."""


@report.command()
@click.option("--sizes", is_flag=True, help="Count bytes too, which reads all of the data")
@source_options
@out_options
@spark_options
def volume(settings: Spark, source: Source, sizes: bool, **where: Any) -> None:
    """Messages by hour and tag."""

    def job(spark: Any, messages: Any, folder: Path | None, progress: Any) -> Any:
        from mist.pipeline.jobs import volume as rolling

        return rolling.run(spark, messages, sizes=sizes, out=folder, progress=progress)

    _run_report(settings, source, job=job, page=pages.volume, **where)


@report.command()
@click.option("--top", type=click.IntRange(1, 1_000_000), default=1000, show_default=True)
@source_options
@out_options
@spark_options
def tags(settings: Spark, source: Source, top: int, **where: Any) -> None:
    """The tags used most."""

    def job(spark: Any, messages: Any, folder: Path | None, progress: Any) -> Any:
        from mist.pipeline.jobs import tags as counting

        return counting.run(spark, messages, top=top, out=folder, progress=progress)

    _run_report(settings, source, job=job, page=pages.tags, **where)


@report.command()
@click.option(
    "--among",
    type=click.IntRange(2, 20_000),
    default=1000,
    show_default=True,
    help="Count pairs of the N most used tags",
)
@click.option("--top", type=click.IntRange(1, 1_000_000), default=1000, show_default=True)
@source_options
@out_options
@spark_options
def cooccurrence(settings: Spark, source: Source, among: int, top: int, **where: Any) -> None:
    """Tags that occur together."""

    def job(spark: Any, messages: Any, folder: Path | None, progress: Any) -> Any:
        from mist.pipeline.jobs import cooccurrence as pairing

        return pairing.run(spark, messages, among=among, top=top, out=folder, progress=progress)

    _run_report(settings, source, job=job, page=pages.cooccurrence, **where)


@report.command()
@SUBSCRIPTIONS
@ATTRIBUTES
@click.option("--top", type=click.IntRange(1, 1_000_000), default=1000, show_default=True)
@source_options
@out_options
@spark_options
def coverage(
    settings: Spark, source: Source, file: Path, attributes: str, top: int, **where: Any
) -> None:
    """Subscriptions that never match, tags without subscriptions, and the fan-out."""

    def job(spark: Any, messages: Any, folder: Path | None, progress: Any) -> Any:
        from mist.attributes import Attributes
        from mist.pipeline.jobs import coverage as covering

        given, who = _subscriptions(file), Attributes.parse(attributes)
        return covering.run(
            spark, messages, given, top=top, attributes=who, out=folder, progress=progress
        )

    _run_report(settings, source, job=_early(job, file), page=pages.coverage, **where)


def _account(
    name: str, rows: Callable[[Any], Any], page: Callable[..., str]
) -> Callable[..., None]:
    """The body of a command over the usage accounting in the archive."""

    def command(
        settings: Spark,
        archive: Path,
        start: str | None,
        end: str | None,
        out: Path | None,
        overwrite: bool,
        html: Path | None,
    ) -> None:
        def work(run: Run) -> None:
            from importlib import import_module

            from mist.archive import Archive
            from mist.pipeline.jobs.result import write_table
            from mist.pipeline.side_tables import accounted_up_to, time_range

            job = import_module(f"mist.pipeline.jobs.{name}")
            opened = Archive.open(archive)
            when = time_range(start, end)
            moment = accounted_up_to(opened)  # before it is read: more may be written meanwhile
            check_file("--html", html, out)
            accounted = "nothing yet" if moment is None else moment.isoformat(timespec="minutes")
            with output_folder(out, overwrite=overwrite) as folder, run.spark() as spark:
                result = job.run(spark, opened, when=when, progress=run.progress)
                table = rows(result)
                write_table(table, folder)
                if html is not None:
                    about = pages.about_accounts(run, archive, start, end, accounted)
                    write_file(html, page(about, result))
            run.finish({**result.summary, "accounted_up_to": accounted}, table)

        run_job(settings, work)

    return command


def _accounts_command(group: click.Group, name: str, job: str, help: str, **body: Any) -> None:  # noqa: A002
    function = _account(job, **body)
    for option in (
        click.option("--until", "end", metavar="TIME", help="The minute to stop before"),
        click.option("--from", "start", metavar="TIME", help="The first minute, ISO 8601 (UTC)"),
        archive_option,
        out_options,
        spark_options,
    ):
        function = option(function)
    group.add_command(click.command(name, help=help)(function))


def _tokens_table(result: Any) -> Any:
    import pyarrow as pa

    rows: list[tuple[str | None, ...]]
    rows = [(each.token, "unused grant", each.grant, None) for each in result.unused]
    for edge in result.edges:
        kind = "near the edge" if edge.inside else "beyond the edge"
        rows.append((edge.token, kind, edge.subscription, ",".join(edge.outside)))
    names = ("token", "finding", "what", "not_granted")
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    arrays = [pa.array(list(column), pa.string()) for column in columns]
    return pa.table(dict(zip(names, arrays, strict=True)))


@click.group()
def audit() -> None:
    """Audit grants and their use."""


_accounts_command(
    report,
    "billing",
    "billing",
    "Deliveries by token and day.",
    rows=lambda result: result.table,
    page=pages.billing,
)
_accounts_command(
    report,
    "drops",
    "drops",
    "Messages matched and not delivered, by token and day.",
    rows=lambda result: result.table,
    page=pages.drops,
)
_accounts_command(
    audit,
    "tokens",
    "tokens",
    "Unused grants, and subscriptions near the limit of their grant.",
    rows=_tokens_table,
    page=pages.tokens,
)
